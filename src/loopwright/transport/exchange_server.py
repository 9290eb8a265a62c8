"""Serves a core.exchange.Exchange to runtime workers over a socket. Never decides anything. Run by compose, parent.

Every call is a task, begun in the order in which calls come. A client that closes or dies has its members leave: what
they were lent goes back.
"""

import logging
from typing import TYPE_CHECKING, assert_never

import msgspec

from loopwright.core.errors import BadRequest, InternalError, LoopwrightError
from loopwright.core.exchange import Exchange, Member
from loopwright.transport import exchange_messages as messages
from loopwright.transport.link import LinkServer, Peer

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger(__name__)


class ExchangeServer(LinkServer["_Client"]):
    """One listening address; any number of clients."""

    def __init__(self, exchange: Exchange, address: str) -> None:
        super().__init__(address, _Client)
        self._exchange = exchange

    def _take(self, peer: Peer, payload: bytes) -> None:
        try:
            message = messages.decode_to_exchange(payload)
        except msgspec.MsgspecError as error:
            log.warning("dropped a malformed message of a runtime worker: %s", error)
            return
        client = self._client(peer)
        match message:
            case messages.Hello():
                self._link.send(peer, messages.encode(messages.Welcome()))
            case messages.Join(number, run_id, tenant, max_state_bytes):
                client.members[number] = self._exchange.join(run_id, tenant, max_state_bytes)
            case messages.Ask():
                self._begin(peer, client, message)
            case messages.GiveUp():
                if (asked := client.tasks.get(message.request)) is not None:
                    asked.cancel()
            case messages.Leave(number):
                client.members.pop(number).close()
            case messages.Goodbye():
                self._dismiss(peer)
            case _:
                assert_never(message)

    def _begin(self, peer: Peer, client: "_Client", asked: messages.Ask) -> None:
        task = self._tasks.create_task(self._answer(peer, client.members[asked.member], asked))
        client.tasks[asked.request] = task
        task.add_done_callback(lambda _: client.tasks.pop(asked.request, None))

    async def _answer(self, peer: Peer, member: Member, asked: messages.Ask) -> None:
        answer: messages.FromExchange
        try:
            payload = await member.ask(messages.decode_call(asked.call))
            answer = messages.Answer(asked.request, messages.encode_json(payload))
        except (msgspec.MsgspecError, RecursionError) as error:
            answer = messages.AskFailed(asked.request, BadRequest(f"malformed call: {error}").info())
        except LoopwrightError as error:
            answer = messages.AskFailed(asked.request, error.info())
        except Exception as error:  # a fault over one call must not end the service of the others
            log.exception("a call of the exchange failed")
            answer = messages.AskFailed(asked.request, InternalError(repr(error)).info())
        self._link.send(peer, messages.encode(answer))


class _Client:
    """A connected runtime worker."""

    def __init__(self) -> None:
        self.name = ""
        self.members: dict[int, Member] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    def leave(self) -> None:
        for task in tuple(self.tasks.values()):
            task.cancel()
        for member in self.members.values():
            member.close()
