"""What a child program may do: what its metadata lists, as far as its parent may too. Never asks for anything.

Called when a child is spawned. A pattern with `*` covers what it matches; of two that overlap the narrower one is left.
"""

from loopwright.runtime.permissions import DEFAULT_PORTS, Permissions, split_pattern

DENIED_TO_CHILD = "a child may do only what its parent may as well: list it in the metadata of both"


def narrowed(child: Permissions, parent: Permissions) -> Permissions:
    """What both permit, field by field."""
    both = {name: _both(name, getattr(child, name), getattr(parent, name)) for name in child.__struct_fields__}
    return Permissions(**both)


def _both(field: str, ours: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[str, ...]:
    if field == "http":
        found = [pattern for one in ours for other in theirs for pattern in _both_hosts(one, other)]
    else:
        pairs = [(one, other) for one in ours for other in theirs]
        found = [one if _covers(other, one) else other for one, other in pairs if _overlap(one, other)]
    return tuple(dict.fromkeys(found))


def _overlap(one: str, other: str) -> bool:
    return _covers(one, other) or _covers(other, one)


def _covers(pattern: str, other: str) -> bool:
    """Whether a name, or what names begin with and `*`, stands for all that the other does."""
    return pattern == other or (pattern.endswith("*") and other.startswith(pattern[:-1]))


def _both_hosts(one: str, other: str) -> list[str]:
    """Patterns for the hosts and ports that both match."""
    (host, ports), (other_host, other_ports) = _host_and_ports(one), _host_and_ports(other)
    if _is_within(host, other_host):
        narrower = host
    elif _is_within(other_host, host):
        narrower = other_host
    else:
        return []
    shown = f"[{narrower}]" if ":" in narrower else narrower
    common = ports & other_ports if ports and other_ports else ports or other_ports
    if not ports and not other_ports:
        return [f"{shown}:*"]
    return [f"{shown}:{port}" for port in sorted(common)]


def _host_and_ports(pattern: str) -> tuple[str, set[int]]:
    """The host, and the ports; none stands for all of them."""
    host, has_port, port = split_pattern(pattern.lower())
    if not has_port:
        return host, set(DEFAULT_PORTS)
    return host, set() if port == "*" else {int(port)}


def _is_within(host: str, pattern: str) -> bool:
    return host == pattern or (pattern.startswith("*.") and host.removeprefix("*").endswith(pattern[1:]))
