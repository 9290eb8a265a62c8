"""A segment with tools as it is written: pieces of text, and each call when it is complete. Never executes a call.

Made by Context.stream.
"""

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
        self.turn: Turn | None = None

    def __aiter__(self) -> "ToolStream":
        return self

    async def __anext__(self) -> Chunk | ToolCall:
        while not self._ready:
            if self.turn is not None:
                raise StopAsyncIteration
            await self._read_on()
        return self._ready.popleft()

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
        text = "".join(part for part in parts if isinstance(part, str))
        self._ready.append(Chunk(text, chunk.tokens))
        self._ready.extend(part for part in parts if isinstance(part, ToolCall))
