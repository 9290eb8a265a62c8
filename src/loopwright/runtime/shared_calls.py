"""Answers the calls that reach other runs, stores and the client, after asking for permission. Never keeps a value.

A service of the host. What is shared is the exchange's; a run joins it with the first call that needs it.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec

from loopwright.core.errors import BadRequest, LimitExceeded
from loopwright.core.exchange import Exchange, Member, SharedCall
from loopwright.core.ids import RunId, TenantId
from loopwright.core.message_calls import (
    Broadcast,
    NextMessages,
    Pull,
    Push,
    Receive,
    Settle,
    Subscribe,
    Unsubscribe,
)
from loopwright.core.store_calls import (
    StoreCall,
    StoreCompareAndSet,
    StoreDelete,
    StoreExists,
    StoreGet,
    StoreKeys,
    StoreSet,
)
from loopwright.runtime.channels import MAX_VALUE_BYTES
from loopwright.runtime.limits import Limits
from loopwright.runtime.mailbox import Mailbox
from loopwright.runtime.permissions import Permissions
from loopwright.runtime.string_store import StringStore

Table: TypeAlias = Mapping[type, Any]


class SharedCalls:
    """What all runs of this process reach through one exchange, and their own stores."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._own_stores = StringStore(None)

    @asynccontextmanager
    async def open(
        self, run_id: RunId, tenant: TenantId, permissions: Permissions, limits: Limits, mailbox: Mailbox
    ) -> AsyncIterator[Table]:
        """One run's part of the table of answers."""
        run = _RunShares(self._exchange, self._own_stores, run_id, tenant, permissions, limits)
        try:
            yield {
                Broadcast: lambda call: run.send(call.topic, call),
                Subscribe: lambda call: run.in_channel(call.topic, call),
                NextMessages: run.ask,
                Unsubscribe: run.ask,
                Push: lambda call: run.send(call.queue, call),
                Pull: lambda call: run.in_channel(call.queue, call),
                Settle: run.ask,
                Receive: lambda call: mailbox.after(call.num_received),
                **dict.fromkeys(
                    (StoreGet, StoreSet, StoreDelete, StoreExists, StoreKeys, StoreCompareAndSet), run.in_store
                ),
            }
        finally:
            run.close()

    def check_integrity(self) -> None:
        """Every run's own store went with it, but for those that are live."""
        self._own_stores.check_integrity()

    @property
    def num_own_stores(self) -> int:
        return self._own_stores.num_stores

    def close(self) -> None:
        self._own_stores.close()


class _RunShares:
    """One run's door to what it shares, and its own store."""

    def __init__(
        self,
        exchange: Exchange,
        own_stores: StringStore,
        run_id: RunId,
        tenant: TenantId,
        permissions: Permissions,
        limits: Limits,
    ) -> None:
        self._exchange = exchange
        self._own_stores = own_stores
        self._run_id = run_id
        self._tenant = tenant
        self._own = TenantId(run_id)  # no other run has it
        self._permissions = permissions
        self._limits = limits
        self._member: Member | None = None

    def send(self, name: str, call: Broadcast | Push) -> object:
        """A value to a channel."""
        try:
            num_bytes = len(msgspec.json.encode(call.value))
        except RecursionError as error:
            raise BadRequest(f"value: {error}", field="value") from None
        if num_bytes > MAX_VALUE_BYTES:
            raise LimitExceeded(
                f"a value for the channel {name!r} has {num_bytes} bytes; the limit is {MAX_VALUE_BYTES}", field="value"
            )
        return self.in_channel(name, call)

    def in_channel(self, name: str, call: SharedCall) -> object:
        self._permissions.check_channel(name)
        return self.ask(call)

    def in_store(self, call: StoreCall) -> object:
        if not call.store:
            return self._own_stores.answer(call, self._own, self._limits.max_state_bytes)
        self._permissions.check_store(call.store)
        return self.ask(call)

    def ask(self, call: SharedCall) -> object:
        if self._member is None:
            self._member = self._exchange.join(self._run_id, self._tenant, self._limits.max_state_bytes)
        return self._member.ask(call)

    def close(self) -> None:
        if self._member is not None:
            self._member.close()
        self._own_stores.forget(self._own, "")
