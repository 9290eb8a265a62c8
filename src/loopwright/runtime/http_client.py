"""One run's HTTP exchanges. Never decides what is permitted: it asks its gate before every hop, and the dialer asks it
before every connection.

Called by the egress. Connections belong to one run and end with it: what was checked for one program never serves
another. Nothing of the environment counts: no proxy, no netrc, no certificates but those that the server trusts.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import httpcore
import httpx

from loopwright.core.errors import BadRequest, LimitExceeded, NotFound, Unavailable
from loopwright.core.outside_calls import HttpClose, HttpExchange, HttpOpen, HttpRead, HttpRequest
from loopwright.core.results import Done
from loopwright.runtime.dialing import Dialer, Resolve
from loopwright.runtime.request_head import Head, read_head, redirected

MAX_BODY_BYTES = 4 << 20
MAX_CONNECTIONS = 32
MAX_STREAMS = 24  # fewer than connections: open streams never keep all others from going on


class Gate(Protocol):
    """What is permitted: Permissions, or what the server's own configuration names."""

    def check_http(self, host: str, port: int) -> None: ...

    def check_address(self, host: str, port: int, found: str) -> None: ...


@dataclass(slots=True)
class _Stream:
    """A body that is being read."""

    response: httpcore.Response
    pieces: AsyncIterator[bytes]
    url: str
    timeout_s: float
    next_piece: asyncio.Task[bytes | None] | None = None  # outlives a read that its program gave up
    is_being_read: bool = False


class HttpClient:
    """The exchanges of one run. `close` ends all that are open."""

    def __init__(self, gate: Gate, resolve: Resolve, ssl_context: ssl.SSLContext) -> None:
        self._gate = gate
        self._streams: dict[int, _Stream] = {}
        self._num_opened = 0
        self._num_opening = 0
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl_context,
            max_connections=MAX_CONNECTIONS,
            network_backend=Dialer(gate.check_address, resolve),
        )

    async def request(self, call: HttpRequest) -> dict[str, Any]:
        """Raises PermissionDenied, BadRequest (URL, headers), LimitExceeded (body, redirects), Unavailable."""
        async with _typed_errors(call.method, call.url, call.timeout_s):
            response, head = await self._send(call)
            try:
                body = await _read(response, call.url)
            finally:
                await response.aclose()
        return {**_answer(response, head), "body": body}

    async def open(self, call: HttpOpen) -> dict[str, Any]:
        """As `request`, up to the body."""
        if len(self._streams) + self._num_opening >= MAX_STREAMS:
            raise LimitExceeded(f"{MAX_STREAMS} HTTP streams are open, which is the limit", hint="close some")
        self._num_opening += 1
        try:
            async with _typed_errors(call.method, call.url, call.timeout_s):
                response, head = await self._send(call)
        finally:
            self._num_opening -= 1
        self._num_opened += 1
        stream = _Stream(response, response.aiter_stream().__aiter__(), call.url, call.timeout_s)
        self._streams[self._num_opened] = stream
        return {"stream": self._num_opened, **_answer(response, head)}

    async def read(self, call: HttpRead) -> dict[str, Any]:
        """Raises NotFound for a stream that is closed, BadRequest for a second read at a time, Unavailable."""
        stream = self._streams.get(call.stream)
        if stream is None:
            raise NotFound(f"no HTTP stream {call.stream} is open", field="stream")
        if stream.is_being_read:
            raise BadRequest(f"the HTTP stream {call.stream} is being read", field="stream", hint="one read at a time")
        if stream.next_piece is None:
            stream.next_piece = asyncio.create_task(anext(stream.pieces, None))
        stream.is_being_read = True
        try:
            async with _typed_errors("read", stream.url, stream.timeout_s):
                piece = await asyncio.shield(stream.next_piece)
        finally:
            stream.is_being_read = False
            if stream.next_piece is not None and stream.next_piece.done():
                stream.next_piece = None
        return {"body": piece or b"", "is_end": piece is None}

    async def close_stream(self, call: HttpClose) -> Done:
        """Also when it is closed already."""
        if (stream := self._streams.pop(call.stream, None)) is not None:
            await _end(stream)
        return Done()

    async def close(self) -> None:
        streams = list(self._streams.values())
        self._streams.clear()
        for stream in streams:
            await _end(stream)
        await self._pool.aclose()

    async def _send(self, call: HttpExchange) -> tuple[httpcore.Response, Head]:
        """The answer of the last hop, and what was asked there."""
        head = read_head(call)
        for num_left in range(call.max_redirects, -1, -1):
            self._gate.check_http(head.host, head.port)
            response = await self._pool.handle_async_request(_core_request(head))
            follow = redirected(head, response.status, dict(response.headers)) if call.max_redirects else None
            if follow is None:
                return response, head
            await response.aclose()
            if num_left:
                head = follow
        raise LimitExceeded(f"{call.url}: more than {call.max_redirects} redirects", field="max_redirects")


def _core_request(head: Head) -> httpcore.Request:
    url = httpcore.URL(scheme=head.scheme, host=head.host, port=head.port, target=head.target)
    headers = [(name.encode("ascii"), value.encode("latin-1")) for name, value in head.headers.items()]
    return httpcore.Request(head.method, url, headers=headers, content=head.body)


def _answer(response: httpcore.Response, head: Head) -> dict[str, Any]:
    headers: dict[str, str] = {}
    for raw_name, raw_value in response.headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return {"status": response.status, "headers": headers, "url": head.url}


async def _read(response: httpcore.Response, url: str) -> bytes:
    body = bytearray()
    async with aclosing(response.aiter_stream()) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise LimitExceeded(
                    f"{url}: the body is longer than {MAX_BODY_BYTES} bytes", hint="read it with http.stream"
                )
    return bytes(body)


async def _end(stream: _Stream) -> None:
    if stream.next_piece is not None:
        stream.next_piece.cancel()
        await asyncio.gather(stream.next_piece, return_exceptions=True)
    await stream.response.aclose()


@asynccontextmanager
async def _typed_errors(method: str, url: str, timeout_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise Unavailable(f"{method} {url}: no answer in {timeout_s} s", field="timeout_s") from None
    except httpcore.LocalProtocolError as error:
        raise BadRequest(f"{method} {url}: {error}", field="headers") from None
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
        raise Unavailable(f"{method} {url}: {error or type(error).__name__}") from None


def make_ssl_context() -> ssl.SSLContext:
    """The certificates that a server's identity is checked with. Takes a tenth of a second."""
    return httpx.create_ssl_context(trust_env=False)
