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

from loopwright.core.calls import Forward, ForwardText, Generate
from loopwright.core.control import Control, Session
from loopwright.core.errors import BadRequest, Cancelled, InternalError, LimitExceeded, LoopwrightError
from loopwright.core.going_on import GoesOn, LastText, Next
from loopwright.core.ids import CallId
from loopwright.core.results import Completion
from loopwright.core.told_tokens import ReadTogether, ToldLists, Whose
from loopwright.transport import control_messages as messages
from loopwright.transport.link import MAX_MESSAGE_BYTES, LinkServer, Peer

ARRIVING_S = 0.05
"""So long after its run began a first call is expected; nobody waits for a program that does other things first."""

RUNNING = (Generate, ForwardText, Forward)
"""Calls that a step runs."""

log = logging.getLogger(__name__)


class ControlServer(LinkServer["_Client"]):
    """One listening address; any number of clients."""

    def __init__(self, control: Control, address: str) -> None:
        super().__init__(address, _Client)
        self._control = control
        self._arriving: set[Session] = set()  # they were opened a moment ago, and have called for nothing to run

    def _take(self, peer: Peer, payload: bytes) -> None:
        try:
            message = messages.decode_to_control(payload)
        except msgspec.MsgspecError as error:
            log.warning("dropped a malformed message of a runtime worker: %s", error)
            return
        client = self._client(peer)
        match message:
            case messages.GoOn():  # the most frequent first
                self._go_on(peer, client, message)
            case messages.SubmitCall() | messages.InterruptCall() | messages.CloseSession():
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
        one = client.sessions.get(message.session)
        if one is None:
            return  # it ended before the client heard of it
        match message:
            case messages.SubmitCall():
                self._submit(peer, client, one, message)
            case messages.InterruptCall():
                one.session.interrupt(message.call_id)
            case messages.CloseSession():
                del client.sessions[message.session]
                one.session.close()
                self._arrived(one.session)
            case _:
                assert_never(message)

    def _open(self, peer: Peer, client: "_Client", message: messages.OpenSession) -> None:
        try:
            session = self._control.open(message.run, message.limits, message.tenant, message.program)
        except LoopwrightError as error:
            self._send(peer, messages.SessionEnded(message.session, error.info()))
            return
        client.sessions[message.session] = _Open(session)
        self._arriving.add(session)
        asyncio.get_running_loop().call_later(ARRIVING_S, self._arrived, session)
        self._control.expect(len(self._arriving))
        session.when_news(partial(self._carry, peer, client, message.session, session))
        if isinstance(session, ReadTogether):
            if client.reader is None:
                client.reader = _Reader(self, peer, client)
            session.when_tokens(client.reader, message.session)

    def _submit(self, peer: Peer, client: "_Client", one: "_Open", message: messages.SubmitCall) -> None:
        try:
            call = messages.decode_call(message.call)
        except msgspec.MsgspecError as error:
            completion = Completion(message.call_id, error=BadRequest(str(error)).info())
            self._complete(peer, client, message.session, completion)
            return
        if isinstance(call, ForwardText):
            one.last = LastText(call)
        one.session.submit(message.call_id, call)
        if isinstance(call, RUNNING):
            self._arrived(one.session)

    def _go_on(self, peer: Peer, client: "_Client", message: messages.GoOn) -> None:
        columns = message.sessions, message.calls, message.tokens, message.positions, message.grow_from
        for place, (session_id, call_id, token, position, grow_from) in enumerate(zip(*columns, strict=True)):
            one = client.sessions.get(session_id)
            if one is None:
                continue
            new = Next(token, position, grow_from, place in message.grown)
            try:
                self._submit_next(one, call_id, new)
            except Exception as fault:  # a fault over one call must not lose those of other runs behind it
                if not isinstance(fault, LoopwrightError):
                    log.exception("a call that goes on could not be taken")
                    fault = InternalError("this call could not be taken", hint="try again")
                self._complete(peer, client, session_id, Completion(call_id, error=fault.info()))

    def _submit_next(self, one: "_Open", call_id: CallId, new: Next) -> None:
        if (last := one.last) is None:
            raise BadRequest("a call goes on from another, and none was sent")
        if one.go_on is None or not one.go_on(call_id, new):
            one.session.submit(call_id, last.text_of(new))
        last.go_on(new)

    def _arrived(self, session: Session) -> None:
        """The session has its first call, or may have none for long: nobody waits for it."""
        if session in self._arriving:
            self._arriving.remove(session)
            self._control.expect(len(self._arriving))

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
        if (one := client.sessions.pop(session_id, None)) is not None:
            one.session.close()

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

    def take_lists(self, peer: Peer, client: "_Client", told: ToldLists) -> bool:
        """For _Reader: what a step found for the client's sessions as one message. False while it does not take what
        it was sent, and for what is too much at once."""
        if client.held_up or self._link.is_full(peer):
            return False
        payload = messages.encode(messages.Lists(told))
        if len(payload) > MAX_MESSAGE_BYTES:
            return False
        self._send_completed(peer, client)  # what came before goes before
        self._link.send_at_once(peer, payload)
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
        self.take_lists = partial(server.take_lists, peer, client)

    def take_tokens(
        self, whose: Whose, token_ids: Sequence[int], logprobs: Sequence[float], left_out: Sequence[int]
    ) -> bool:
        return self._take(whose, token_ids, logprobs, left_out)


class _Open:
    """A session that a client opened. Its `last` text is what calls go on from."""

    __slots__ = ("go_on", "last", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.go_on = session.go_on if isinstance(session, GoesOn) else None
        self.last: LastText | None = None


class _Client:
    """A connected runtime worker."""

    def __init__(self) -> None:
        self.name = ""
        self.sessions: dict[int, _Open] = {}
        self.completed: list[tuple[int, Completion]] = []  # by session, in this turn of the loop
        self.reader: _Reader | None = None  # once it has a session
        self.whose: Whose | None = None  # what it was told last
        self.held_up: set[int] = set()  # sessions whose completions wait until it takes what it was sent

    def leave(self) -> None:
        for one in list(self.sessions.values()):
            one.session.close()
