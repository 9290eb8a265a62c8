"""Whose request this is, as the server itself knows it: never what a client says of itself in a body. Keeps no keys.

A middleware asks once for each request, and whatever run the request starts belongs to that tenant: no route can forget
it. Used by app and live_run.
"""

import hashlib
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TypeAlias

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from loopwright.core.errors import LoopwrightError, Unauthenticated
from loopwright.core.ids import ONE_TENANT, TenantId
from loopwright.server.errors import error_response

TenantOf: TypeAlias = Callable[[HTTPConnection], TenantId]

OPEN_PATHS = frozenset(("/health",))
"""What is answered to anybody: it says nothing but that the server lives."""

_tenant: ContextVar[TenantId] = ContextVar("tenant", default=ONE_TENANT)


def everybody(connection: HTTPConnection) -> TenantId:
    """A server that tells nobody apart."""
    return ONE_TENANT


def by_key(tenants: Mapping[str, TenantId]) -> TenantOf:
    """A server with keys: whose key it is that a request carries, as OpenAI's clients do (Authorization: Bearer) or
    Anthropic's (x-api-key)."""
    by_hash = {_hash(key): tenant for key, tenant in tenants.items()}  # looked up, a hash tells nothing by its timing

    def tenant_of(connection: HTTPConnection) -> TenantId:
        if connection.url.path in OPEN_PATHS:
            return ONE_TENANT
        scheme, _, bearer = connection.headers.get("authorization", "").partition(" ")
        key = connection.headers.get("x-api-key") or (bearer.strip() if scheme.lower() == "bearer" else "")
        if (tenant := by_hash.get(_hash(key))) is None:
            raise Unauthenticated(
                "the key is not one of this server's" if key else "the request has no key",
                hint="send one as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            )
        return tenant

    return tenant_of


def current_tenant() -> TenantId:
    """That of the request in whose task this is asked."""
    return _tenant.get()


class Identified:
    """Middleware that asks `tenant_of` before anything else looks at a request; what it raises is the answer."""

    def __init__(self, app: ASGIApp, tenant_of: TenantOf) -> None:
        self._app = app
        self._tenant_of = tenant_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                tenant = self._tenant_of(HTTPConnection(scope))
            except LoopwrightError as error:
                await error_response(error, scope["path"])(scope, receive, send)
                return
            _tenant.set(tenant)  # for this request's task, and those that it starts
        await self._app(scope, receive, send)


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
