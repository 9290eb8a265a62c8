"""A segment under way, and a stream of its chunks. Never knows what a context holds: it tells it when it is over.

Begun by Context, and finished by whoever waits for it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from loopwright.sdk.errors import Cancelled, LoopwrightError
from loopwright.sdk.port import Stream
from loopwright.sdk.turn import Chunk, Turn
from loopwright.sdk.turnstile import Turnstile

Payload = dict[str, Any]


class Segment:
    """A segment that was begun on a context. Whoever finishes it brings the context up to date, by `settle`.

    `fail` is called instead if the segment fails, and `free`, with what it came to, if the context is gone. `nothing`
    is its turn if it is interrupted before it could start."""

    def __init__(
        self,
        parts: Stream,
        *,
        settle: Callable[[Payload], Turn],
        fail: Callable[[], None],
        free: Callable[[Payload], None],
        nothing: Turn,
    ) -> None:
        self.parts = parts
        self._settle, self._fail, self._free, self._nothing = settle, fail, free, nothing
        self._is_interrupted = False
        self._turn: Turn | None = None

    async def finish(self) -> Turn:
        """Waits for the end and accounts for it, once. If this is cancelled, the context's next step does it."""
        if self._turn is not None:
            return self._turn
        try:
            payload = await self.parts.final()
        except asyncio.CancelledError:
            self.interrupt()
            raise
        except LoopwrightError as error:
            self._fail()
            if not (self._is_interrupted and isinstance(error, Cancelled)):
                raise
            self._turn = self._nothing
            return self._turn
        self._turn = self._settle(payload)
        return self._turn

    def interrupt(self) -> None:
        self._is_interrupted = True
        self.parts.interrupt()

    def abandon(self) -> None:
        """The context is gone: end early and free what the segment grew."""
        self.parts.interrupt()
        self.parts.when_ended(self._free)


class TokenStream:
    """An asynchronous iterator of chunks. `turn` is there once it has run out."""

    def __init__(
        self,
        turnstile: Turnstile,
        begin: Callable[[], Awaitable[Segment]],
        end: Callable[[Segment], Awaitable[Turn]],
        is_over: Callable[[], bool],
    ) -> None:
        self._turnstile = turnstile
        self._begin, self._end, self._is_over = begin, end, is_over
        self._segment: Segment | None = None
        self.turn: Turn | None = None

    def __aiter__(self) -> "TokenStream":
        return self

    async def __anext__(self) -> Chunk:
        if self.turn is not None:
            raise StopAsyncIteration
        with self._turnstile:
            if self._segment is None:
                self._segment = await self._begin()
            part = await self._segment.parts.next_part()
            if part is not None:
                return Chunk(part["text"], tuple(part["tokens"]))
            self.turn = await self._end(self._segment)
        raise StopAsyncIteration

    def __del__(self) -> None:
        if self._segment is not None and self.turn is None and not self._is_over():
            self._segment.interrupt()
