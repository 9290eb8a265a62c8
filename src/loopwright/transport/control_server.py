"""Serves a core.control.Control to runtime workers over a socket. Never decides anything. Run by compose, model worker.

Each session has a task that carries its completions out; while a client does not take them, that task waits, and what
completes meanwhile stays in control. A client that closes or dies has its sessions closed at once.
"""

import asyncio
import logging
from functools import partial
from typing import assert_never

import msgspec

from loopwright.core.control import Control, Session
from loopwright.core.errors import BadRequest, Cancelled, InternalError, LimitExceeded, LoopwrightError
from loopwright.core.results import Completion
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
            case messages.Hello(name):
                client.name = name
                self._send(peer, messages.Welcome(self._control.models()))
            case messages.OpenSession():
                self._open(peer, client, message)
            case messages.SubmitCall() | messages.InterruptCall() | messages.CloseSession():
                self._take_in_session(peer, client, message)
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
                self._submit(peer, session, message)
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
        task = self._tasks.create_task(self._carry(peer, message.session, session))
        task.add_done_callback(partial(self._carried, client, message.session))

    def _submit(self, peer: Peer, session: Session, message: messages.SubmitCall) -> None:
        try:
            call = messages.decode_call(message.call)
        except msgspec.MsgspecError as error:
            completion = Completion(message.call_id, error=BadRequest(str(error)).info())
            self._complete(peer, message.session, completion)
            return
        session.submit(message.call_id, call)

    async def _carry(self, peer: Peer, session_id: int, session: Session) -> None:
        """Takes the session's completions to the client until either is gone."""
        try:
            while True:
                for completion in await session.receive():
                    await self._link.drained(peer)
                    self._complete(peer, session_id, completion)
        except Cancelled:
            return
        except LoopwrightError as error:
            self._send(peer, messages.SessionEnded(session_id, error.info()))
        except Exception as error:  # a fault in one session must not end the service of the others
            log.exception("session %d failed", session_id)
            self._send(peer, messages.SessionEnded(session_id, InternalError(repr(error)).info()))

    def _complete(self, peer: Peer, session_id: int, completion: Completion) -> None:
        payload = messages.encode(messages.Completed(session_id, completion))
        if len(payload) > MAX_MESSAGE_BYTES:  # sent, it would cut the connection of everybody on that worker
            limit = LimitExceeded(
                f"the call's result has {len(payload)} bytes; at most {MAX_MESSAGE_BYTES} fit",
                hint="ask for fewer distributions in one call, or for a smaller k",
            )
            payload = messages.encode(
                messages.Completed(session_id, Completion(completion.call_id, error=limit.info()))
            )
        self._link.send(peer, payload)

    def _carried(self, client: "_Client", session_id: int, task: asyncio.Task[None]) -> None:
        if (session := client.sessions.pop(session_id, None)) is not None:
            session.close()

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
        self._link.send(peer, messages.encode(message))


class _Client:
    """A connected runtime worker."""

    def __init__(self) -> None:
        self.name = ""
        self.sessions: dict[int, Session] = {}

    def leave(self) -> None:
        for session in list(self.sessions.values()):
            session.close()
