"""Refuses what a route does not know of a query, by name: a parameter, or a value of one that has a list of them.

Never reads a query for a route. Put around those that have no body, by app: clients of Anthropic's add a parameter of
no meaning to requests that have one.
"""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from loopwright.core.errors import BadRequest
from loopwright.core.nearest import did_you_mean

MAX_SHOWN = 50


class KnownQuery:
    """An ASGI application around a route's. `known` are JSON schemas by name."""

    def __init__(self, app: ASGIApp, known: Mapping[str, Mapping[str, Any]]) -> None:
        self._app = app
        self._known = known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for name, value in Request(scope).query_params.multi_items():
            self._check(name, value)
        await self._app(scope, receive, send)

    def _check(self, name: str, value: str) -> None:
        if name not in self._known:
            shown, known = name[:MAX_SHOWN], ", ".join(self._known)
            hint = did_you_mean(name, self._known) or (f"it takes {known}" if known else "it takes none")
            raise BadRequest(f"{shown}: is no parameter of this route's query", hint=hint, field=shown)
        values = self._known[name].get("items", {}).get("enum")
        if values is not None and value not in values:
            raise BadRequest(f"{name}: {value[:MAX_SHOWN]!r} is none of {', '.join(values)}", field=name)
