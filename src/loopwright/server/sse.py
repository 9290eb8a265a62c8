"""Server-sent events: their form, and the response that sends them while a run goes on. Never knows what they mean.

Used by the routes. The form is that of the HTML standard, section "Server-sent events".
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Self

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from loopwright.core.errors import LoopwrightError
from loopwright.core.events import Event
from loopwright.server.disconnect import unless_disconnected
from loopwright.server.errors import openai_error
from loopwright.server.json_text import encode_json
from loopwright.server.live_run import LiveRun

EVENT_STREAM = b"text/event-stream; charset=utf-8"

QUIET_S = 15.0
"""After so long without a word a stream says that it lives: what stands between may close a connection that is idle."""

ALIVE = b": alive\n\n"
"""A comment, which readers of events leave out."""

LAST_WORDS = "loopwright.last_words"
"""Where a request's scope has what writes an error as the end of its stream, once that has begun."""


def sse_data(payload: bytes) -> bytes:
    """An event without a name. JSON has no line ends of its own, so one line holds it."""
    return b"data: %b\n\n" % payload


def sse_named(name: str, value: object) -> bytes:
    """An event with a name, and a value as JSON."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode_json(value))


def sse_event(event: Event) -> bytes:
    """A run's event, with its type as name and its number as id."""
    name = event.__struct_config__.tag
    return b"event: %b\nid: %d\ndata: %b\n\n" % (str(name).encode(), event.seq, encode_json(event))


def error_event(error: LoopwrightError) -> bytes:
    """OpenAI's error object as an event."""
    return sse_data(encode_json(openai_error(error)))


@dataclass(frozen=True, slots=True)
class EventStream:
    """What a run becomes for one client: events, as bytes, what an error is that comes after the first of them, and
    what is said when there is nothing to say."""

    chunks: AsyncGenerator[bytes]
    failed: Callable[[LoopwrightError], bytes] = error_event
    alive: bytes = ALIVE


class SseResponse(Response):
    """Opens the run, sends the events that `stream` makes of it, and closes it, at the latest when the client goes.

    Nothing is sent before the first chunk is there, so an error that comes earlier still is an HTTP status of its own.
    One that comes later is an event in the words of the stream, which ends there."""

    def __init__(
        self, live_run: AbstractAsyncContextManager[LiveRun], stream: Callable[[LiveRun], EventStream]
    ) -> None:
        self._live_run = live_run
        self._stream_of = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await unless_disconnected(receive, self._stream(scope, send))

    async def _stream(self, scope: Scope, send: Send) -> None:
        async with self._live_run as run:
            stream = self._stream_of(run)
            async with aclosing(stream.chunks) as chunks:
                first = await anext(chunks, b"")  # of events that were told before, none may be left
                scope[LAST_WORDS] = stream.failed
                await send({"type": "http.response.start", "status": 200, "headers": _headers(run)})
                await _send_body(send, first)
                async with _Pulse.of(send, stream.alive) as pulse:
                    try:
                        async for chunk in chunks:
                            await _send_body(send, chunk)
                            pulse.spoke()
                    except LoopwrightError as error:
                        await _send_body(send, stream.failed(error))
                await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Pulse:
    """Says that a stream lives while it is quiet."""

    def __init__(self) -> None:
        self._clock_s = asyncio.get_running_loop().time
        self._spoke_s = self._clock_s()

    @classmethod
    @asynccontextmanager
    async def of(cls, send: Send, alive: bytes) -> AsyncIterator[Self]:
        pulse = cls()
        beating = asyncio.create_task(pulse._beat(send, alive))
        try:
            yield pulse
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    def spoke(self) -> None:
        """The stream has said something just now."""
        self._spoke_s = self._clock_s()

    async def _beat(self, send: Send, alive: bytes) -> None:
        while True:
            if (left_s := self._spoke_s + QUIET_S - self._clock_s()) > 0:
                await asyncio.sleep(left_s)
            else:
                await _send_body(send, alive)
                self.spoke()


async def _send_body(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _headers(run: LiveRun) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", EVENT_STREAM),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),  # proxies that know it pass each chunk on at once
        (b"x-run-id", run.run_id.encode()),
    ]
