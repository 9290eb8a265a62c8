"""What a run's client says to it while it runs. Never sends anything: that is `emit` and `emit_text`."""

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from loopwright.sdk.port import Port, current_port


class _Conversation:
    """How far one run has read."""

    def __init__(self) -> None:
        self.num_received = 0
        self.reading = asyncio.Lock()  # so that two who wait get two messages


_conversations: WeakKeyDictionary[Port, _Conversation] = WeakKeyDictionary()


async def receive() -> Any:  # noqa: ANN401 (JSON)
    """Waits for the next message of the client that started this run: a JSON value, a str where a person types. None
    when the client has no more to say, now and ever after. A wait that is cancelled loses nothing."""
    port = current_port()
    mine = _conversations.setdefault(port, _Conversation())
    async with mine.reading:
        message = (await port.issue({"op": "receive", "num_received": mine.num_received}))["message"]
        if message is not None:
            mine.num_received += 1
        return message
