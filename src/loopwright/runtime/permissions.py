"""What a program may reach outside, as its metadata lists it. Never reaches out itself. Asked by the host's egress.

Nothing is permitted by default. A pattern is `host`, `host:port` or `host:*`, where the host may begin with `*.`;
without a port it stands for 80 and 443. Names of channels and stores are whole, or end with `*`.
"""

import json
import re

import msgspec

from loopwright.core.errors import PermissionDenied, ProgramRejected

DEFAULT_PORTS = (80, 443)
PROGRAM_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
OWN_SOURCE = "@self"
ANY_SOURCE = "@source"


class Permissions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The metadata table `permissions`."""

    http: tuple[str, ...] = ()  # hosts that it may ask: "host", "host:port", "host:*", "*.domain"
    children: tuple[str, ...] = ()  # deployed programs by name; "@self": functions of its own file, "@source": any text
    channels: tuple[str, ...] = ()  # topics and queues
    state: tuple[str, ...] = ()  # named stores
    models: tuple[str, ...] = ()  # beside the run's own, which needs none

    def __post_init__(self) -> None:
        for pattern in self.http:
            _check_pattern(pattern)
        for name in self.children:
            _check_child(name)
        for permission in ("channels", "state", "models"):
            for pattern in getattr(self, permission):
                _check_name_pattern(permission, pattern)

    def check_http(self, host: str, port: int) -> None:
        """Raises PermissionDenied, naming the line to add, unless some pattern covers the host and port."""
        if not any(_matches(pattern, host.lower(), port) for pattern in self.http):
            raise PermissionDenied(
                f"the program may not reach {host}:{port}; permitted: {', '.join(self.http) or 'nothing'}",
                hint=f'add to the program\'s metadata: permissions = {{ http = ["{host}:{port}"] }}',
            )

    def check_channel(self, name: str) -> None:
        """Raises PermissionDenied unless some pattern covers the topic or queue."""
        _check_named("channels", self.channels, name, f"use the channel {name!r}")

    def check_store(self, name: str) -> None:
        """Raises PermissionDenied unless some pattern covers the named store."""
        _check_named("state", self.state, name, f"use the store {name!r}")

    def check_model(self, name: str) -> None:
        """Raises PermissionDenied unless some pattern covers the model."""
        _check_named("models", self.models, name, f"use the model {name!r}")

    def check_child(self, name: str) -> None:
        """Raises PermissionDenied, naming the line to add, unless programs of that name may be spawned."""
        if name not in self.children:
            raise PermissionDenied(
                f"the program may not spawn {name}; permitted: {', '.join(self.children) or 'nothing'}",
                hint=f'add to the program\'s metadata: permissions = {{ children = ["{name}"] }}',
            )


def _check_named(permission: str, patterns: tuple[str, ...], name: str, action: str) -> None:
    if not any(name == one or (one.endswith("*") and name.startswith(one[:-1])) for one in patterns):
        raise PermissionDenied(
            f"the program may not {action}; permitted: {', '.join(patterns) or 'nothing'}",
            hint=f"add to the program's metadata: permissions = {{ {permission} = [{json.dumps(name)}] }}",
        )


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
    is_port = port in ("", "*") or (port.isdigit() and 0 < int(port) < 65536)
    if not host or not is_port or "/" in pattern or "*" in host.removeprefix("*."):
        raise ProgramRejected(
            f"permissions.http holds {pattern!r}, which is no host pattern",
            hint='write "host", "host:port" or "host:*", for example "api.example.org" or "127.0.0.1:*"',
            field="permissions.http",
        )


def _matches(pattern: str, host: str, port: int) -> bool:
    wanted_host, has_port, wanted_port = split_pattern(pattern.lower())
    is_port_covered = wanted_port in ("*", str(port)) if has_port else port in DEFAULT_PORTS
    if wanted_host.startswith("*."):
        return is_port_covered and host.endswith(wanted_host[1:]) and len(host) >= len(wanted_host)
    return is_port_covered and host == wanted_host


def split_pattern(pattern: str) -> tuple[str, bool, str]:
    """Host, whether a port is named, the port. An IPv6 address stands in brackets."""
    if pattern.startswith("["):
        host, _, rest = pattern[1:].partition("]")
        return host, rest.startswith(":"), rest[1:]
    host, colon, port = pattern.partition(":")
    return host, bool(colon), port
