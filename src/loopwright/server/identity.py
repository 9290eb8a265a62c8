"""Whose request this is, as the server itself knows it: never what a client says of itself in a body. Knows no keys.

A middleware asks once for each request, and whatever run the request starts belongs to that tenant: no route can forget
it. Used by app and live_run.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeAlias

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from loopwright.core.ids import ONE_TENANT, TenantId

TenantOf: TypeAlias = Callable[[HTTPConnection], TenantId]

_tenant: ContextVar[TenantId] = ContextVar("tenant", default=ONE_TENANT)


def everybody(connection: HTTPConnection) -> TenantId:
    """A server that tells nobody apart."""
    return ONE_TENANT


def current_tenant() -> TenantId:
    """That of the request in whose task this is asked."""
    return _tenant.get()


class Identified:
    """Middleware that asks `tenant_of` before anything else looks at a request."""

    def __init__(self, app: ASGIApp, tenant_of: TenantOf) -> None:
        self._app = app
        self._tenant_of = tenant_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            _tenant.set(self._tenant_of(HTTPConnection(scope)))  # for this request's task, and those that it starts
        await self._app(scope, receive, send)
