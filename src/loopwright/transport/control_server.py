"""Serves a core.control.Control to runtime workers over a socket. Never decides anything. Run by compose, model worker.

What completes in one turn of the loop, for all sessions of a client, is one message: that is a step's. While a client
does not take what it is sent, what completes stays in control. One that closes or dies has its sessions closed at once.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import assert_never

import msgspec

from loopwright.core.control import Control, Session
from loopwright.core.errors import BadRequest, Cancelled, InternalError, LimitExceeded, LoopwrightError
from loopwright.core.results import Completion
from loopwright.core.told_tokens import ReadTogether, Whose
from loopwright.transport import control_messages as messages
from loopwright.transport.link import MAX_MESSAGE_BYTES, LinkServer, Peer

log = logging.getLogger(__name__)


class ControlServer(LinkServer["_Client"]):
    """One listening address; any number of clients."""

    def __init__(self, control: Control, address: str) -> None:
        super().__init__(address, _Client)
        self._control = control

    def _take(self, peer: Peer, payload: bytes) -> None:
        try:
            message = messages.decode_to_control(payload)
        except msgspec.MsgspecError as error:
            log.warning("dropped a malformed message of a runtime worker: %s", error)
            return
        client = self._client(peer)
        match message:
            case messages.SubmitCall() | messages.InterruptCall() | messages.CloseSession():  # the most frequent first
                self._take_in_session(peer, client, message)
            case messages.Hello(name):
                client.name = name
                self._send(peer, messages.Welcome(self._control.models()))
            case messages.OpenSession():
                self._open(peer, client, message)
            case messages.AskStats() | messages.AskMetrics():
                self._tasks.create_task(self._answer(peer, message))
            case messages.Goodbye():
                self._dismiss(peer)
            case _:
                assert_never(message)

    def _take_in_session(self, peer: Peer, client: "_Client", message: messages.InSession) -> None:
        session = client.sessions.get(message.session)
        if session is None:
            return  # it ended before the client heard of it
        match message:
            case messages.SubmitCall():
                self._submit(peer, client, session, message)
            case messages.InterruptCall():
                session.interrupt(message.call_id)
            case messages.CloseSession():
                del client.sessions[message.session]
                session.close()
            case _:
                assert_never(message)

    def _open(self, peer: Peer, client: "_Client", message: messages.OpenSession) -> None:
        try:
            session = self._control.open(message.run, message.limits, message.tenant, message.program)
        except LoopwrightError as error:
            self._send(peer, messages.SessionEnded(message.session, error.info()))
            return
        client.sessions[message.session] = session
        session.when_news(partial(self._carry, peer, client, message.session, session))
        if isinstance(session, ReadTogether):
            if client.reader is None:
                client.reader = _Reader(self, peer, client)
            session.when_tokens(client.reader, message.session)

    def _submit(self, peer: Peer, client: "_Client", session: Session, message: messages.SubmitCall) -> None:
        try:
            call = messages.decode_call(message.call)
        except msgspec.MsgspecError as error:
            completion = Completion(message.call_id, error=BadRequest(str(error)).info())
            self._complete(peer, client, message.session, completion)
            return
        session.submit(message.call_id, call)

    def _carry(self, peer: Peer, client: "_Client", session_id: int, session: Session) -> None:
        """Takes the session's completions to the client, or waits with them until it takes what it was sent."""
        if self._link.is_full(peer):
            if session_id not in client.held_up:
                client.held_up.add(session_id)
                self._tasks.create_task(self._carry_later(peer, client, session_id, session))
            return
        try:
            for completion in session.take():
                self._complete(peer, client, session_id, completion)
        except Cancelled:
            return
        except LoopwrightError as error:
            self._end_session(peer, client, session_id, error)
        except Exception as error:  # a fault in one session must not end the service of the others
            log.exception("session %d failed", session_id)
            self._end_session(peer, client, session_id, InternalError(repr(error)))

    async def _carry_later(self, peer: Peer, client: "_Client", session_id: int, session: Session) -> None:
        await self._link.drained(peer)
        client.held_up.discard(session_id)
        if session_id in client.sessions:
            self._carry(peer, client, session_id, session)

    def _end_session(self, peer: Peer, client: "_Client", session_id: int, error: LoopwrightError) -> None:
        self._send(peer, messages.SessionEnded(session_id, error.info()))
        if (session := client.sessions.pop(session_id, None)) is not None:
            session.close()

    def _complete(self, peer: Peer, client: "_Client", session_id: int, completion: Completion) -> None:
        """Has it in the message of this turn of the loop: a step completes something for most of the sessions."""
        if not client.completed:
            asyncio.get_running_loop().call_soon(self._send_completed, peer, client)
        client.completed.append((session_id, completion))

    def take_tokens(
        self, peer: Peer, client: "_Client", whose: Whose, token_ids: Sequence[int], logprobs: Sequence[float],
        left_out: Sequence[int],
    ) -> bool:  # fmt: skip
        """For _Reader: a step's tokens of the client's sessions as one message. False while it does not take what it
        was sent."""
        if client.held_up or self._link.is_full(peer):
            return False
        self._send_completed(peer, client)  # what came before goes before
        if client.whose is not whose:
            client.whose = whose
            told = messages.Whose(list(whose.names), list(whose.call_ids), list(whose.kinds))
            self._link.send(peer, messages.encode(told))
        self._link.send(peer, messages.encode(messages.Tokens(list(token_ids), list(logprobs), list(left_out))))
        return True

    def _send_completed(self, peer: Peer, client: "_Client") -> None:
        completed, client.completed = client.completed, []
        if completed:
            self._send_together(peer, completed)

    def _send_together(self, peer: Peer, completed: list[tuple[int, Completion]]) -> None:
        payload = messages.encode(messages.Completed(completed))
        if len(payload) <= MAX_MESSAGE_BYTES:  # sent, a larger one would cut the connection of everybody on that worker
            self._link.send_at_once(peer, payload)
        elif len(completed) > 1:
            half = len(completed) // 2
            self._send_together(peer, completed[:half])
            self._send_together(peer, completed[half:])
        else:
            limit = LimitExceeded(
                f"the call's result has {len(payload)} bytes; at most {MAX_MESSAGE_BYTES} fit",
                hint="ask for fewer distributions in one call, or for a smaller k",
            )
            ((session_id, completion),) = completed
            failed = Completion(completion.call_id, error=limit.info())
            self._link.send(peer, messages.encode(messages.Completed([(session_id, failed)])))

    async def _answer(self, peer: Peer, asked: messages.AskStats | messages.AskMetrics) -> None:
        answer: messages.FromControl
        try:
            if isinstance(asked, messages.AskStats):
                answer = messages.StatsAnswer(asked.request, await self._control.stats())
            else:
                answer = messages.MetricsAnswer(asked.request, await self._control.metrics())
        except LoopwrightError as error:
            answer = messages.RequestFailed(asked.request, error.info())
        self._send(peer, answer)

    def _send(self, peer: Peer, message: messages.FromControl) -> None:
        if (client := self._clients.get(peer)) is not None:  # what came before goes before
            self._send_completed(peer, client)
        self._link.send(peer, messages.encode(message))


class _Reader:
    """Reads for a client's sessions. Implements `core.told_tokens.TokenReader`."""

    def __init__(self, server: ControlServer, peer: Peer, client: "_Client") -> None:
        self._take = partial(server.take_tokens, peer, client)

    def take_tokens(
        self, whose: Whose, token_ids: Sequence[int], logprobs: Sequence[float], left_out: Sequence[int]
    ) -> bool:
        return self._take(whose, token_ids, logprobs, left_out)


class _Client:
    """A connected runtime worker."""

    def __init__(self) -> None:
        self.name = ""
        self.sessions: dict[int, Session] = {}
        self.completed: list[tuple[int, Completion]] = []  # by session, in this turn of the loop
        self.reader: _Reader | None = None  # once it has a session
        self.whose: Whose | None = None  # what it was told last
        self.held_up: set[int] = set()  # sessions whose completions wait until it takes what it was sent

    def leave(self) -> None:
        for session in list(self.sessions.values()):
            session.close()
