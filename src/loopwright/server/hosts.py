"""Refuses requests that a web page has aimed at this machine by DNS rebinding. Never looks beyond the Host header.

A page of evil.example may let its name resolve to 127.0.0.1; its requests still say `Host: evil.example`. So a server
that listens on a loopback address answers to loopback names only. Used by app.
"""

import ipaddress
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from loopwright.core.errors import PermissionDenied
from loopwright.server.errors import error_response


class HostCheck:
    """An ASGI middleware."""

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            name = host_name(Headers(scope=scope).get("host", ""))
            if name not in self._allowed:
                error = PermissionDenied(
                    f"this server does not answer to the host {name!r}", hint=f"use {' or '.join(self._allowed)}"
                )
                await error_response(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)


def allowed_hosts(bound_host: str) -> Collection[str] | None:
    """The names to answer to, of a server bound to this host; None is any."""
    names = ("localhost", "127.0.0.1", "::1")
    if bound_host in names:
        return names
    try:
        is_loopback = ipaddress.ip_address(bound_host).is_loopback
    except ValueError:
        return None
    return (*names, bound_host) if is_loopback else None


def host_name(header: str) -> str:
    """The name in a Host header, without port and brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()
