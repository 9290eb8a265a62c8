"""A segment with tools as it is written: pieces of text, and each call when it is complete. Never executes a call.

Made by Context.stream.
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from loopwright.sdk.turn import Chunk, ToolCall, Turn

if TYPE_CHECKING:
    from loopwright.sdk.segment import TokenStream
    from loopwright.sdk.tool_calls import ToolCallReader, ToolUse


class ToolStream:
    """An asynchronous iterator of chunks, whose text is what no call is made of, and calls. `turn` is there once it has
    run out. Leaving it early ends the segment there."""

    def __init__(self, chunks: "TokenStream", use: "ToolUse") -> None:
        self._chunks = chunks
        self._use = use
        self._reader: ToolCallReader | None = None  # the format is known when the segment has begun
        self._ready: deque[Chunk | ToolCall] = deque()
        self._gave_call = False
        self.turn: Turn | None = None

    def __aiter__(self) -> "ToolStream":
        return self

    async def __anext__(self) -> Chunk | ToolCall:
        if self._gave_call:
            self._gave_call = False
            await asyncio.sleep(0)  # a task that was made for the call starts now, however much text has come meanwhile
        while not self._ready:
            if self.turn is not None:
                raise StopAsyncIteration
            await self._read_on()
        part = self._ready.popleft()
        self._gave_call = isinstance(part, ToolCall)
        return part

    async def _read_on(self) -> None:
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            turn = self._chunks.turn
            assert turn is not None
            reader = self._reader or self._use.reader()
            self._ready.extend(Chunk(part, ()) for part in reader.flush() if isinstance(part, str))
            self.turn = reader.finish(turn)
            return
        if self._reader is None:
            self._reader = self._use.reader()
        parts = self._reader.push(chunk.text)
        if not parts or isinstance(parts[0], ToolCall):
            parts.insert(0, "")
        tokens = chunk.tokens
        for part in parts:
            self._ready.append(Chunk(part, tokens) if isinstance(part, str) else part)
            tokens = ()
