"""Owns what the client of a run has sent and the program has not taken. Never decides who the client is.

Written through the launcher, read by the run's service; for one program, which counts what it has.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from loopwright.core.errors import BadRequest, Overloaded
from loopwright.core.runs import ClientInput

MAX_WAITING_BYTES = 4 << 20
MESSAGE_OVERHEAD_BYTES = 128


class Mailbox:
    """Messages by number, from 0 on. `asks` is called when the program waits for one that is not here, once each."""

    def __init__(self, asks: Callable[[], None], *, is_closed: bool = False) -> None:
        self._asks = asks
        self._messages: deque[msgspec.Raw] = deque()
        self._num_bytes = 0
        self._first = 0  # the number of the first message here
        self._num_asked = 0  # messages that were asked for
        self._is_closed = is_closed
        self._news = asyncio.Event()

    def put(self, sent: ClientInput) -> None:
        """Takes all of it, or none. Raises Overloaded when too much is waiting already; BadRequest after the end."""
        if self._is_closed and sent.messages:
            raise BadRequest("the run's input has ended; it takes no more messages", field="message")
        encoded = [msgspec.Raw(msgspec.json.encode(message)) for message in sent.messages]
        num_bytes = self._num_bytes + sum(map(_size, encoded))
        if num_bytes > MAX_WAITING_BYTES and encoded:
            raise Overloaded(
                f"the run would have {num_bytes} bytes of messages to read; the limit is {MAX_WAITING_BYTES}",
                hint="send more when the program has read some",
            )
        self._messages += encoded
        self._num_bytes = num_bytes
        self._is_closed = self._is_closed or sent.is_end
        self._news.set()

    async def after(self, num_received: int) -> dict[str, Any]:
        """Drops the first `num_received` of all times and waits for the next: {message}, null after the last."""
        while self._messages and self._first < num_received:
            self._num_bytes -= _size(self._messages.popleft())
            self._first += 1
        while not self._messages:
            if self._is_closed:
                return {"message": None}
            if self._num_asked <= num_received:
                self._num_asked = num_received + 1
                self._asks()
            self._news.clear()
            await self._news.wait()
        return {"message": self._messages[0]}


def _size(message: msgspec.Raw) -> int:
    return len(message) + MESSAGE_OVERHEAD_BYTES
