"""Where the runs of a server meet: their channels, in memory, and the stores they share. Never asks who may do what.

Implements core.exchange.Exchange in the one process of a server that there is always one of; made by compose. The
runtime checks permissions before it asks.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from loopwright.core.exchange import SharedCall
from loopwright.core.ids import RunId, TenantId
from loopwright.core.message_calls import Broadcast, NextMessages, Pull, Push, Settle, Subscribe, Unsubscribe
from loopwright.core.results import Done
from loopwright.core.store_calls import StoreCall
from loopwright.runtime.channels import ChannelMember, Channels
from loopwright.runtime.string_store import Payload, StringStore

STORE_FILE = "stores.sqlite3"


class LocalExchange:
    """All tenants' channels and stores. With a directory, stores are kept there, and its disk is used on a thread."""

    def __init__(self, directory: Path | None = None) -> None:
        self._channels: dict[TenantId, Channels] = {}
        self._store = StringStore(directory / STORE_FILE if directory is not None else None)
        self._thread = ThreadPoolExecutor(1, "loopwright-store") if directory is not None else None

    def join(self, run_id: RunId, tenant: TenantId, max_state_bytes: int) -> "LocalMember":
        channels = self._channels.setdefault(tenant, Channels())
        return LocalMember(self, tenant, channels.join(), max_state_bytes)

    async def ask_store(self, call: StoreCall, tenant: TenantId, max_bytes: int) -> Payload:
        """As `StringStore.answer`. Transactions follow each other in the order in which they were asked for."""
        if self._thread is None:
            return self._store.answer(call, tenant, max_bytes)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._store.answer, call, tenant, max_bytes)

    def left(self, tenant: TenantId) -> None:
        if self._channels[tenant].is_empty:
            del self._channels[tenant]

    @property
    def num_members(self) -> int:
        """Runs that have joined and not left."""
        return sum(channels.num_members for channels in self._channels.values())

    def check_integrity(self) -> None:
        for channels in self._channels.values():
            assert not channels.is_empty
            channels.check_integrity()
        if self._thread is None:
            self._store.check_integrity()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
        self._store.close()


class LocalMember:
    """A run's door."""

    def __init__(self, exchange: LocalExchange, tenant: TenantId, mine: ChannelMember, max_state_bytes: int) -> None:
        self._exchange = exchange
        self._tenant = tenant
        self._channels = exchange._channels[tenant]
        self._mine = mine
        self._max_state_bytes = max_state_bytes
        self._is_closed = False

    async def ask(self, call: SharedCall) -> Any:  # noqa: ANN401 (JSON)
        """As core.exchange.Member."""
        match call:
            case Broadcast():
                return {"num_subscribers": self._channels.broadcast(call.topic, _encoded(call.value))}
            case Subscribe():
                self._mine.subscribe(call.subscription, call.topic, call.max_messages)
            case NextMessages():
                first, messages = await self._mine.next_messages(call.subscription, call.num_seen)
                return {"first": first, "messages": messages}
            case Unsubscribe():
                self._mine.unsubscribe(call.subscription)
            case Push():
                self._channels.push(call.queue, _encoded(call.value))
            case Pull():
                return {"value": await self._mine.pull(call.ticket, call.queue)}
            case Settle():
                self._mine.settle(call.ticket, is_taken=call.is_taken)
            case _:
                return await self._exchange.ask_store(call, self._tenant, self._max_state_bytes)
        return Done()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._mine.leave()
            self._exchange.left(self._tenant)


def _encoded(value: Any) -> msgspec.Raw:  # noqa: ANN401 (JSON)
    return msgspec.Raw(msgspec.json.encode(value))
