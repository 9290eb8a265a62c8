"""Messages between runs: topics, which everybody hears, and queues, whose values go to one each. Never keeps a value.

For programs whose permissions list the names: `permissions = { channels = ["room", "jobs/*"] }`.
"""

import asyncio
from collections import deque
from types import TracebackType
from typing import Any

from loopwright.sdk.argument_check import checked
from loopwright.sdk.errors import LoopwrightError
from loopwright.sdk.port import current_port
from loopwright.sdk.run_state import run_state


class MessagesLost(LoopwrightError):
    """A subscriber did not read for so long that messages were dropped, the oldest: `num_lost` of them. Those that
    came after are there still; go on reading, or not."""

    code = "program_error"

    def __init__(self, topic: str, num_lost: int) -> None:
        super().__init__(
            f"{num_lost} messages of {topic!r} were lost before they were read",
            hint="read faster, or subscribe with a larger max_messages",
        )
        self.num_lost = num_lost


@checked
async def broadcast(topic: str, value: Any) -> int:  # noqa: ANN401 (JSON)
    """Sends a JSON value to all that are subscribed now; returns how many. Waits for none of them."""
    answer = await current_port().issue({"op": "broadcast", "topic": topic, "value": value})
    num_subscribers: int = answer["num_subscribers"]
    return num_subscribers


@checked
class subscribe:
    """What is broadcast to a topic, from the moment the block is entered:

        async with subscribe("room") as messages:
            async for message in messages: ...

    At most `max_messages` (4,096 or fewer) and 4 MiB wait for the reader; beyond that the oldest go, and the reader is
    told by MessagesLost."""

    def __init__(self, topic: str, *, max_messages: int = 256) -> None:
        self._topic = topic
        self._max_messages = max_messages
        self._number = -1
        self._num_seen = 0
        self._messages: deque[Any] = deque()  # numbers num_seen, num_seen + 1 …
        self._reading = asyncio.Lock()

    async def __aenter__(self) -> "subscribe":
        self._number = run_state().take_names()
        op = {"op": "subscribe", "topic": self._topic, "subscription": self._number}
        await current_port().issue({**op, "max_messages": self._max_messages})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not current_port().is_closed:
            current_port().post({"op": "unsubscribe", "subscription": self._number})

    def __aiter__(self) -> "subscribe":
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 (JSON)
        return await self.next()

    async def next(self) -> Any:  # noqa: ANN401 (JSON)
        """Waits for the next message. Raises MessagesLost once where some are missing. A wait that is cancelled, by a
        timeout for instance, loses nothing."""
        async with self._reading:
            if not self._messages:
                await self._fetch()
            self._num_seen += 1
            return self._messages.popleft()

    async def _fetch(self) -> None:
        op = {"op": "next_messages", "subscription": self._number, "num_seen": self._num_seen}
        answer = await current_port().issue(op)
        self._messages.extend(answer["messages"])
        num_lost = answer["first"] - self._num_seen
        if num_lost:
            self._num_seen = answer["first"]
            raise MessagesLost(self._topic, num_lost)


@checked
async def push(queue: str, value: Any) -> None:  # noqa: ANN401 (JSON)
    """Puts a JSON value at the end of a queue. It stays there until somebody pulls it, also beyond this run."""
    await current_port().issue({"op": "push", "queue": queue, "value": value})


@checked
async def pull(queue: str) -> Any:  # noqa: ANN401 (JSON)
    """Takes the first value of a queue; waits while there is none. Every value goes to one who pulls. A wait that is
    cancelled loses none: what had come for it is first in the queue again."""
    port = current_port()
    ticket = run_state().take_names()
    is_taken = False
    try:
        answer = await port.issue({"op": "pull", "queue": queue, "ticket": ticket})
        is_taken = True
    finally:
        if not port.is_closed:
            port.post({"op": "settle", "ticket": ticket, "is_taken": is_taken})
    return answer["value"]
