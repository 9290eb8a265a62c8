"""Hands requests to another HTTP server of this machine, over a Unix socket, and its answers back. Never reads either.

Of several processes that speak HTTP, one keeps what must be in one place: responses that are kept, programs that are
deployed, what is counted. The others answer what needs none of it. Used by `compose`, around their applications.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from loopwright.core.errors import Unavailable
from loopwright.server.errors import error_response

ANSWERED_ANYWHERE = frozenset(
    {
        "/health", "/ready", "/openapi.json", "/tokenize", "/detokenize", "/v1/models", "/v1/chat/completions",
        "/v1/chat/completions/render", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens",
    }
)  # fmt: skip
"""Paths whose answers need nothing that is kept in one process."""

_OF_THE_CONNECTION = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"expect", b"te"})


class Forwarding:
    """An ASGI application: `app` answers the paths `here`, and whoever listens at the socket `path` all others."""

    def __init__(self, app: ASGIApp, path: Path, here: Collection[str] = ANSWERED_ANYWHERE) -> None:
        self._app, self._here = app, here
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
        self._transport = httpx.AsyncHTTPTransport(uds=str(path), limits=limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._here:
            await self._app(scope, receive, send)
            return
        body = _Body(receive)
        answering = asyncio.create_task(self._answer(scope, body, send))
        leaving = asyncio.create_task(body.client_left())
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answering, leaving):
                if not task.done():
                    task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(answering, leaving, return_exceptions=True)
        if not answering.cancelled():
            with suppress(ClientDisconnect):  # before its request was whole
                answering.result()

    async def close(self) -> None:
        """Closes its connections."""
        await self._transport.aclose()

    async def _answer(self, scope: Scope, body: "_Body", send: Send) -> None:
        query: bytes = scope["query_string"]
        raw_path = scope["raw_path"] + (b"?" + query if query else b"")
        request = httpx.Request(
            scope["method"],
            httpx.URL(scheme="http", host="localhost", raw_path=raw_path),
            headers=_passed_on(scope["headers"]),
            content=body.parts() if body.has_one(scope) else None,
        )
        try:
            response = await self._transport.handle_async_request(request)
        except httpx.TransportError as error:
            unavailable = Unavailable(f"the server's main process does not answer: {error}", hint="try again")
            await error_response(unavailable)(scope, _nothing, send)
            return
        try:
            headers = _passed_on(response.headers.raw)
            await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            assert isinstance(response.stream, httpx.AsyncByteStream)
            async for part in response.stream:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await response.aclose()


class _Body:
    """What comes of one request."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_whole = asyncio.Event()

    def has_one(self, scope: Scope) -> bool:
        """Whether a body is announced. If not, nothing is waited for but the client's leaving."""
        announced = any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])
        if not announced:
            self._is_whole.set()
        return announced

    async def parts(self) -> AsyncIterator[bytes]:
        """Raises ClientDisconnect."""
        while True:
            message: Mapping[str, Any] = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            if part := message.get("body"):
                yield part
            if not message.get("more_body"):
                self._is_whole.set()
                return

    async def client_left(self) -> None:
        """Waits until the client is gone, once its request is whole."""
        await self._is_whole.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _passed_on(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Those that are not about one connection, in lower case."""
    return [(name.lower(), value) for name, value in headers if name.lower() not in _OF_THE_CONNECTION]


async def _nothing() -> MutableMapping[str, Any]:
    return {"type": "http.disconnect"}
