"""Server-sent events: their form, and the response that sends them while a run goes on. Never knows what they mean.

Used by the routes. The form is that of the HTML standard, section "Server-sent events".
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import dataclass

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
    """What a run becomes for one client: events, as bytes, and what an error is that comes after the first of them."""

    chunks: AsyncGenerator[bytes]
    failed: Callable[[LoopwrightError], bytes] = error_event


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
                try:
                    async for chunk in chunks:
                        await _send_body(send, chunk)
                except LoopwrightError as error:
                    await _send_body(send, stream.failed(error))
                await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_body(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _headers(run: LiveRun) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", EVENT_STREAM),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),  # proxies that know it pass each chunk on at once
        (b"x-run-id", run.run_id.encode()),
    ]
