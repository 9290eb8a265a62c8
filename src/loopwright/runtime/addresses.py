"""Hosts in one spelling, and which addresses a program may be led to. Never resolves a name.

Asked by permissions, for what a program writes, and when a connection is made, for what a name turned out to be.
"""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Reach: TypeAlias = Literal["public", "listed", "never"]
"""public: whoever may reach the name. listed: only who lists the address itself. never: nobody."""

_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")

_NEVER = tuple(
    map(
        ip_network,
        (
            *("0.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4", "::/128", "ff00::/8"),  # no host at all, or many
            *("169.254.0.0/16", "fe80::/10"),  # link-local; most clouds hand out their machine's credentials here
            *("100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),  # … and here
            *("fd00:ec2::/32", "fd20:ce::254/128"),
        ),
    )
)

_EMBEDDING = (  # IPv6 networks whose addresses lead to an IPv4 address, and how many bits stand after that
    (IPv6Network("::ffff:0:0/96"), 0),
    (IPv6Network("::ffff:0:0:0/96"), 0),
    (IPv6Network("::/96"), 0),
    (IPv6Network("64:ff9b::/96"), 0),
    (IPv6Network("2002::/16"), 80),
)
_TEREDO = IPv6Network("2001::/32")


def canonical_host(text: str) -> str:
    """A name in lower case without the root's dot, or an address as `ipaddress` writes it, from any spelling that
    resolvers take: 0x7f.1, 2130706433 and ::ffff:127.0.0.1 are 127.0.0.1. Raises ValueError for what is neither."""
    if ":" in text:
        address = IPv6Address(text)
        if address.scope_id is not None:
            raise AddressValueError(f"{text!r} names an interface")
        return str(address.ipv4_mapped or address)
    host = text.lower().removesuffix(".")
    if not _NAME.fullmatch(host) or len(host) > 253:
        raise ValueError(f"{text[:100]!r} is no host name")
    if _NUMBER.fullmatch(host.rpartition(".")[2]):  # as browsers decide it: whatever ends in a number is an address
        return str(_ipv4_in_any_spelling(host))
    return host


def as_address(host: str) -> Address | None:
    """The address that a canonical host is; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def reach(address: Address) -> Reach:
    """Who may be led to this address; of one that stands for another, the stricter of both."""
    found = [_reach(address)]
    if isinstance(address, IPv6Address) and (embedded := _embedded_ipv4(address)) is not None:
        found.append(_reach(embedded))
        if address in _EMBEDDING[2][0] and address != IPv6Address("::1"):  # nobody uses these but to confuse
            found.append("listed")
    return "never" if "never" in found else "listed" if "listed" in found else "public"


def _reach(address: Address) -> Reach:
    if any(address.version == network.version and address in network for network in _NEVER):
        return "never"
    return "public" if address.is_global and not address.is_multicast else "listed"


def _embedded_ipv4(address: IPv6Address) -> IPv4Address | None:
    if address in _TEREDO:
        return IPv4Address(~int(address) & 0xFFFFFFFF)
    for network, num_bits_after in _EMBEDDING:
        if address in network and address not in (IPv6Address("::"), IPv6Address("::1")):
            return IPv4Address(int(address) >> num_bits_after & 0xFFFFFFFF)
    return None


def _ipv4_in_any_spelling(host: str) -> IPv4Address:
    """As inet_aton reads it: one to four numbers, decimal, octal or hexadecimal, of which the last fills the rest."""
    parts = host.split(".")
    if len(parts) > 4 or not all(map(_NUMBER.fullmatch, parts)):
        raise AddressValueError(f"{host!r} is no address")
    numbers = [_number(part) for part in parts]
    if any(number > 255 for number in numbers[:-1]) or numbers[-1] >= 256 ** (5 - len(numbers)):
        raise AddressValueError(f"{host!r} is no address: a part is too large")
    value = numbers[-1]
    for place, number in enumerate(numbers[:-1]):
        value += number << 8 * (3 - place)
    return IPv4Address(value)


def _number(part: str) -> int:
    if part.startswith("0x"):
        return int(part[2:] or "0", 16)
    return int(part, 8 if part.startswith("0") else 10)
