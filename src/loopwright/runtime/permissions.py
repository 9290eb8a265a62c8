"""What a program may reach outside, as its metadata lists it. Never reaches out itself. Asked by egress and tools.

Nothing is permitted by default. A pattern of `http` is `host`, `host:port` or `host:*`, where the host may begin with
`*.`; without a port it stands for 80 and 443. A name stands for public addresses alone: a name that leads to a private
or loopback address is refused unless the address is listed itself. `localhost` stands for loopback. Link-local
addresses and those at which clouds hand out credentials are refused whatever is listed. One of `tools` is the name of a
tool, or `server.*` for all of one MCP server. Names of channels and stores are whole, or end with `*`.
"""

import json
import re
from ipaddress import IPv6Address

import msgspec

from loopwright.core.errors import PermissionDenied, ProgramRejected
from loopwright.runtime.addresses import as_address, canonical_host, reach

DEFAULT_PORTS = (80, 443)
LOOPBACK_NAME = "localhost"
_TOOL = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_./-]+|\.\*)?")
PROGRAM_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
OWN_SOURCE = "@self"
ANY_SOURCE = "@source"


class Permissions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The metadata table `permissions`."""

    http: tuple[str, ...] = ()  # hosts that it may ask: "host", "host:port", "host:*", "*.domain"
    tools: tuple[str, ...] = ()  # of the server: "name", or "server.*" for all of an MCP server
    children: tuple[str, ...] = ()  # deployed programs by name; "@self": functions of its own file, "@source": any text
    channels: tuple[str, ...] = ()  # topics and queues
    state: tuple[str, ...] = ()  # named stores
    models: tuple[str, ...] = ()  # beside the run's own, which needs none

    def __post_init__(self) -> None:
        for pattern in self.http:
            _check_pattern(pattern)
        for name in self.tools:
            _check_tool(name)
        for name in self.children:
            _check_child(name)
        for permission in ("channels", "state", "models"):
            for pattern in getattr(self, permission):
                _check_name_pattern(permission, pattern)

    def check_http(self, host: str, port: int) -> None:
        """Raises PermissionDenied, naming the line to add, unless some pattern covers the canonical host and port."""
        address = as_address(host)
        if address is not None and reach(address) == "never":
            raise PermissionDenied(f"no program may reach {host}:{port}", hint="link-local addresses are out of bounds")
        if not any(_matches(pattern, host, port) for pattern in self.http):
            raise PermissionDenied(
                f"the program may not reach {host}:{port}; permitted: {', '.join(self.http) or 'nothing'}",
                hint=self._line_with("http", _pattern(host, port)),
            )

    def check_address(self, host: str, port: int, found: str) -> None:
        """Raises PermissionDenied unless a connection to `host`, which check_http passed, may go to the address that
        was found for it."""
        if found == host:
            return
        address = as_address(found)
        if address is None or (kind := reach(address)) == "never":
            raise PermissionDenied(f"{host}:{port} leads to {found}, which no program may reach")
        if kind == "public" or (host == LOOPBACK_NAME and address.is_loopback):
            return
        listed = canonical_host(found)
        if not any(_matches(pattern, listed, port) for pattern in self.http):
            raise PermissionDenied(
                f"{host}:{port} leads to {found}, which is not a public address and not listed itself",
                hint=self._line_with("http", _pattern(listed, port)),
            )

    def may_use_tool(self, name: str) -> bool:
        return any(name == one or (one.endswith(".*") and name.startswith(one[:-1])) for one in self.tools)

    def check_tool(self, name: str) -> None:
        """Raises PermissionDenied, naming the line to add."""
        if not self.may_use_tool(name):
            raise PermissionDenied(
                f"the program may not use the tool {name!r}; permitted: {', '.join(self.tools) or 'none'}",
                hint=self._line_with("tools", name),
            )

    def check_channel(self, name: str) -> None:
        """Raises PermissionDenied unless some pattern covers the topic or queue."""
        self._check_named("channels", name, f"use the channel {name!r}")

    def check_store(self, name: str) -> None:
        """Raises PermissionDenied unless some pattern covers the named store."""
        self._check_named("state", name, f"use the store {name!r}")

    def check_model(self, name: str) -> None:
        """Raises PermissionDenied unless some pattern covers the model."""
        self._check_named("models", name, f"use the model {name!r}")

    def check_child(self, name: str) -> None:
        """Raises PermissionDenied, naming the line to add, unless programs of that name may be spawned."""
        if name not in self.children:
            raise PermissionDenied(
                f"the program may not spawn {name}; permitted: {', '.join(self.children) or 'nothing'}",
                hint=self._line_with("children", name),
            )

    def _check_named(self, permission: str, name: str, action: str) -> None:
        patterns: tuple[str, ...] = getattr(self, permission)
        if not any(name == one or (one.endswith("*") and name.startswith(one[:-1])) for one in patterns):
            raise PermissionDenied(
                f"the program may not {action}; permitted: {', '.join(patterns) or 'nothing'}",
                hint=self._line_with(permission, name),
            )

    def _line_with(self, permission: str, name: str) -> str:
        """What the metadata has to say: all that is there, and one more."""
        lists = {one: list(getattr(self, one)) for one in self.__struct_fields__}
        lists[permission].append(name)
        shown = ", ".join(f"{key} = {json.dumps(names)}" for key, names in lists.items() if names)
        verb = "write in" if self != Permissions() else "add to"
        return f"{verb} the program's metadata: permissions = {{ {shown} }}"


def _check_name_pattern(permission: str, pattern: str) -> None:
    if not pattern or "*" in pattern[:-1]:
        raise ProgramRejected(
            f"permissions.{permission} holds {pattern!r}, which is no name",
            hint='write a whole name, or what names begin with and a star: "jobs", "room/*"',
            field=f"permissions.{permission}",
        )


def _check_child(name: str) -> None:
    if name not in (OWN_SOURCE, ANY_SOURCE) and not PROGRAM_NAME.fullmatch(name):
        raise ProgramRejected(
            f"permissions.children holds {name!r}, which names no program",
            hint=f'write the name of a deployed program, "{OWN_SOURCE}" or "{ANY_SOURCE}"',
            field="permissions.children",
        )


def _check_pattern(pattern: str) -> None:
    host, _, port = split_pattern(pattern)
    is_port = port in ("", "*") or (port.isdecimal() and port.isascii() and 0 < int(port) < 65536)
    if not is_port or "/" in pattern or not _is_host(host):
        raise ProgramRejected(
            f"permissions.http holds {pattern!r}, which is no host pattern",
            hint='write "host", "host:port" or "host:*", for example "api.example.org" or "127.0.0.1:*"',
            field="permissions.http",
        )


def _is_host(host: str) -> bool:
    """Whether it is a name, `*.` and a name, or an address in its usual spelling."""
    name = host.removeprefix("*.")
    try:
        canonical = canonical_host(name)
    except ValueError:
        return False
    is_name = as_address(canonical) is None
    return is_name if name != host else is_name or canonical == host.lower()


def _check_tool(name: str) -> None:
    if not _TOOL.fullmatch(name):
        raise ProgramRejected(
            f"permissions.tools holds {name!r}, which names no tool",
            hint='write a tool\'s name, or "server.*" for all of an MCP server',
            field="permissions.tools",
        )


def _matches(pattern: str, host: str, port: int) -> bool:
    wanted_host, has_port, wanted_port = split_pattern(pattern.lower())
    is_port_covered = wanted_port in ("*", str(port)) if has_port else port in DEFAULT_PORTS
    if wanted_host.startswith("*."):
        return is_port_covered and host.endswith(wanted_host[1:]) and len(host) >= len(wanted_host)
    return is_port_covered and host == wanted_host.removesuffix(".")


def split_pattern(pattern: str) -> tuple[str, bool, str]:
    """Host, whether a port is named, the port. An IPv6 address stands in brackets."""
    if pattern.startswith("["):
        host, _, rest = pattern[1:].partition("]")
        return host, rest.startswith(":"), rest[1:]
    host, colon, port = pattern.partition(":")
    return host, bool(colon), port


def _pattern(host: str, port: int) -> str:
    return f"[{host}]:{port}" if isinstance(as_address(host), IPv6Address) else f"{host}:{port}"
