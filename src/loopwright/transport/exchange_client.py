"""The exchange in another process, seen as core.exchange.Exchange. Never decides anything. Made by compose.

When that process closes or dies, every call that waits fails, and so does every later one.
"""

import asyncio
import logging
from itertools import count
from typing import Any, assert_never

import msgspec

from loopwright.core.errors import Unavailable, from_info
from loopwright.core.exchange import SharedCall
from loopwright.core.ids import RunId, TenantId
from loopwright.transport import exchange_messages as messages
from loopwright.transport.link import BINDER, Link, Peer
from loopwright.transport.open_requests import OpenRequests

log = logging.getLogger(__name__)

DIED = "the process with the channels and stores died"


class ExchangeClient:
    """One connection; `connect` makes it, `close` ends it, and its members leave."""

    def __init__(self, address: str) -> None:
        self._link = Link.connect(address, self._take, lambda _: self._end(DIED))
        self._member_ids = count()
        self._requests: OpenRequests[msgspec.Raw | None] = OpenRequests()
        self._welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, address: str, *, timeout_s: float = 60.0) -> "ExchangeClient":
        """Waits until the other side answers. Raises Unavailable."""
        client = cls(address)
        client.send(messages.Hello())
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(client._welcome)
        except TimeoutError:
            client.close()
            raise Unavailable(f"no exchange answered at {address} within {timeout_s:g} s") from None
        except BaseException:
            client.close()
            raise
        return client

    def join(self, run_id: RunId, tenant: TenantId, max_state_bytes: int) -> "RemoteMember":
        member = RemoteMember(next(self._member_ids), self)
        self.send(messages.Join(member.number, run_id, tenant, max_state_bytes))
        return member

    async def ask(self, member: int, call: SharedCall) -> Any:  # noqa: ANN401 (JSON)
        """For RemoteMember."""
        if self._link.is_closed:
            raise Unavailable(DIED, hint="restart the server")
        encoded = messages.encode_json(call)
        request, answer = self._requests.open()
        self.send(messages.Ask(member, request, encoded))
        try:
            return await answer
        except asyncio.CancelledError:
            self.send(messages.GiveUp(member, request))
            self._requests.answer(request, None)  # forgotten: what still comes is of no use
            raise

    def send(self, message: messages.ToExchange) -> None:
        """For RemoteMember. Sent to a process that is gone, it goes nowhere."""
        self._link.send(BINDER, messages.encode(message))

    @property
    def num_waiting(self) -> int:
        """Calls without an answer yet."""
        return len(self._requests)

    def close(self) -> None:
        if not self._link.is_closed:
            self.send(messages.Goodbye())
            self._end("the connection to the channels and stores was closed")

    def _take(self, peer: Peer, payload: bytes) -> None:
        try:
            message = messages.decode_from_exchange(payload)
        except msgspec.MsgspecError as error:
            log.warning("dropped a malformed message of the exchange: %s", error)
            return
        match message:
            case messages.Answer(request, answer):
                self._requests.answer(request, msgspec.Raw(answer))
            case messages.AskFailed(request, info):
                self._requests.fail(request, from_info(info))
            case messages.Welcome():
                if not self._welcome.done():
                    self._welcome.set_result(None)
            case _:
                assert_never(message)

    def _end(self, reason: str) -> None:
        self._link.close()
        if not self._welcome.done():
            self._welcome.set_exception(Unavailable(reason))
            self._welcome.exception()  # marked as seen: nobody need be waiting
        self._requests.fail_all(reason, Unavailable)


class RemoteMember:
    """One run's door to the exchange."""

    def __init__(self, number: int, client: ExchangeClient) -> None:
        self.number = number
        self._client = client
        self._is_closed = False

    async def ask(self, call: SharedCall) -> Any:  # noqa: ANN401 (JSON)
        """As core.exchange.Member."""
        return await self._client.ask(self.number, call)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._client.send(messages.Leave(self.number))
