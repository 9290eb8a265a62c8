"""Control in another process, seen as core.control.Control. Never decides anything. Made by compose.

When the model worker closes or dies, every session ends with an InternalError that says so, and so does every request.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import count
from typing import assert_never

import msgspec

from loopwright.core.bell import Bell, Doorbell
from loopwright.core.calls import ForwardText, LogprobKind, QueueCall
from loopwright.core.control import ControlLimits, ControlStats
from loopwright.core.errors import (
    BadRequest,
    Cancelled,
    InternalError,
    LoopwrightError,
    Overloaded,
    Unavailable,
    from_info,
)
from loopwright.core.going_on import LastText, Next
from loopwright.core.ids import ONE_TENANT, CallId, RunId, TenantId
from loopwright.core.metrics import Measured
from loopwright.core.model_info import ModelInfo
from loopwright.core.results import CallTiming, Completion, Forwarded, Progress
from loopwright.core.told_tokens import ToldLists
from loopwright.transport import control_messages as messages
from loopwright.transport.link import BINDER, Link, Peer
from loopwright.transport.open_requests import OpenRequests

log = logging.getLogger(__name__)

DIED = "the model worker died"
BACK_SOON = "it is being started again: try again"


class ControlClient:
    """One connection to the model worker; `connect` makes it, `close` ends it and all its sessions."""

    def __init__(self, address: str) -> None:
        self._link = Link.connect(address, self._take, self._lost)
        self._session_ids = count()
        self.bell = Bell()  # for RemoteSession
        self._sessions: dict[int, RemoteSession] = {}
        self._rows: list[tuple[int, CallId, LogprobKind]] = []  # whose the tokens are that come
        self._going: list[tuple[int, CallId, Next]] = []  # not sent yet
        self._loop = asyncio.get_running_loop()
        self._requests: OpenRequests[messages.Answer] = OpenRequests()
        self._is_over = asyncio.Event()
        self._welcome: asyncio.Future[tuple[ModelInfo, ...]] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, address: str, *, name: str, timeout_s: float = 60.0) -> "ControlClient":
        """Waits until the model worker answers. `name` is what its log calls us. Raises Unavailable."""
        client = cls(address)
        client.send(messages.Hello(name))
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(client._welcome)
        except TimeoutError:
            client.close()
            raise Unavailable(f"no model worker answered at {address} within {timeout_s:g} s") from None
        except BaseException:
            client.close()
            raise
        return client

    @property
    def is_alive(self) -> bool:
        return not self._link.is_closed

    async def lost(self) -> None:
        """Waits until the model worker is gone, or the connection was closed."""
        await self._is_over.wait()

    def models(self) -> tuple[ModelInfo, ...]:
        return self._welcome.result()

    def open(
        self, run_id: RunId, limits: ControlLimits, tenant: TenantId = ONE_TENANT, program: str = ""
    ) -> "RemoteSession":
        """Raises Unavailable when the model worker is gone. A refusal of its own comes out of the session's receive."""
        self._check_alive()
        session = RemoteSession(next(self._session_ids), self)
        self._sessions[session.session_id] = session
        self.send(messages.OpenSession(session.session_id, run_id, limits, tenant, program))
        return session

    def expect(self, num_launches: int) -> None:
        """Nothing: with runtime workers of their own, programs start side by side."""

    async def stats(self) -> ControlStats:
        self._check_alive()
        number, answer = self._requests.open()
        self.send(messages.AskStats(number))
        found = await answer
        assert isinstance(found, messages.StatsAnswer)
        return found.stats

    async def metrics(self) -> Measured:
        self._check_alive()
        number, answer = self._requests.open()
        self.send(messages.AskMetrics(number))
        found = await answer
        assert isinstance(found, messages.MetricsAnswer)
        return found.measured

    def peer_died(self) -> None:
        """For whoever watches the model worker's process; the socket notices by itself as well."""
        self._end(DIED)

    def close(self) -> None:
        if self.is_alive:
            self.send(messages.Goodbye())
            self._end("the connection to the model worker was closed")

    @property
    def is_full(self) -> bool:
        """Whether the model worker has not taken what it was sent: calls are refused until it has."""
        return self._link.is_full(BINDER)

    def send(self, message: messages.ToControl) -> None:
        """For RemoteSession. Sent to a model worker that is gone, it goes nowhere."""
        if self._going:
            self._send_going()  # what came before goes before
        self._link.send(BINDER, messages.encode(message))

    def go_on(self, session_id: int, call_id: CallId, one: Next) -> None:
        """For RemoteSession: as `send`, of a call that goes on from the last text of its session; all of one turn of
        the loop are one message."""
        if not self._going:
            self._loop.call_soon(self._send_going)
        self._going.append((session_id, call_id, one))

    def _send_going(self) -> None:
        going, self._going = self._going, []
        if not going:
            return
        session_ids, call_ids, news = zip(*going, strict=True)
        tokens, positions, grow_from, have_grown = zip(*news, strict=True)
        grown = [place for place, has_grown in enumerate(have_grown) if has_grown] if any(have_grown) else []
        message = messages.GoOn(session_ids, call_ids, tokens, positions, grow_from, grown)
        self._link.send_at_once(BINDER, messages.encode(message))

    def forget(self, session: "RemoteSession") -> None:
        """For RemoteSession: closes it on the other side."""
        if self._sessions.pop(session.session_id, None) is not None:
            self.send(messages.CloseSession(session.session_id))

    def _check_alive(self) -> None:
        if not self.is_alive:
            raise Unavailable(DIED, hint=BACK_SOON)

    def _take(self, peer: Peer, payload: bytes) -> None:
        try:
            message = messages.decode_from_control(payload)
        except msgspec.MsgspecError as error:
            log.warning("dropped a malformed message of the model worker: %s", error)
            return
        match message:
            case messages.Lists() | messages.Whose() | messages.Tokens():
                self._take_columns(message)
            case messages.Completed(completions):
                self._deliver(completions)
            case messages.SessionEnded(session_id, info):
                if (session := self._sessions.pop(session_id, None)) is not None:
                    session.end(from_info(info))
            case messages.StatsAnswer() | messages.MetricsAnswer():
                self._requests.answer(message.request, message)
            case messages.RequestFailed(number, info):
                self._requests.fail(number, from_info(info))
            case messages.Welcome(models):
                if not self._welcome.done():
                    self._welcome.set_result(models)
            case _:
                assert_never(message)

    def _deliver(self, completions: Sequence[tuple[int, Completion]]) -> None:
        for session_id, completion in completions:
            if (session := self._sessions.get(session_id)) is not None:
                session.deliver(completion)
        self.bell.tell_all()  # their programs may choose what all others wait for

    def _take_lists(self, told: ToldLists) -> None:
        columns = told.names, told.call_ids, told.kv_lens, told.nums_pages, told.lists
        for place, (session_id, call_id, kv_len, num_pages, found) in enumerate(zip(*columns, strict=True)):
            if (session := self._sessions.get(session_id)) is None:
                continue
            timing = None
            if told.issued_s:
                timing = CallTiming(told.issued_s[place], told.started_s[place], None, told.ended_s, 0, 0, 0)
            result = Forwarded(kv_len=kv_len, num_pages=num_pages, distributions=(found,))
            session.deliver(Completion(call_id, result, None, timing))
        self.bell.tell_all()  # their programs may choose what all others wait for

    def _take_columns(self, message: messages.Lists | messages.Whose | messages.Tokens) -> None:
        if isinstance(message, messages.Lists):
            self._take_lists(message.told)
            return
        if isinstance(message, messages.Whose):
            self._rows = list(zip(message.sessions, message.calls, message.kinds, strict=True))
            return
        left_out = message.left_out
        rows = zip(self._rows, message.token_ids, message.logprobs, strict=True)
        for place, ((session_id, call_id, kind), token_id, logprob) in enumerate(rows):
            if (session := self._sessions.get(session_id)) is not None and place not in left_out:
                session.deliver(Completion(call_id, Progress((token_id,), (logprob,), logprob_kind=kind)))

    def _lost(self, peer: Peer) -> None:
        self._end(DIED)

    def _end(self, reason: str) -> None:
        self._link.close()
        self._is_over.set()
        if not self._welcome.done():
            self._welcome.set_exception(Unavailable(reason))
            self._welcome.exception()  # marked as seen: nobody need be waiting
        self._requests.fail_all(reason, InternalError)
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.end(InternalError(reason, hint="start the run again"))


class RemoteSession:
    """One run's door to the model worker."""

    def __init__(self, session_id: int, client: ControlClient) -> None:
        self.session_id = session_id
        self._client = client
        self._completions: list[Completion] = []
        self._has_news = asyncio.Event()
        self._doorbell: Doorbell | None = None  # of a reader that wants to be told
        self._end: LoopwrightError | None = None
        self._last: LastText | None = None  # that was sent

    def submit(self, call_id: CallId, call: QueueCall) -> None:
        if self._end is not None:
            return
        if self._client.is_full:
            overloaded = Overloaded("the model worker does not keep up with the calls sent to it")
            self.deliver(Completion(call_id, error=overloaded.info()))
            return
        text = call if isinstance(call, ForwardText) else None
        if text is not None and self._last is not None and (one := self._last.next_of(text)) is not None:
            self._client.go_on(self.session_id, call_id, one)
            return
        try:
            raw = msgspec.Raw(messages.encode(call))
        except (OverflowError, UnicodeEncodeError) as error:  # a number beyond 64 bits, half a surrogate pair
            refused = BadRequest(f"the call {type(call).__name__} cannot be sent: {error}")
            self.deliver(Completion(call_id, error=refused.info()))
            return
        self._client.send(messages.SubmitCall(self.session_id, call_id, raw))
        if text is not None:
            self._last = LastText(text)

    def interrupt(self, call_id: CallId) -> None:
        if self._end is None:
            self._client.send(messages.InterruptCall(self.session_id, call_id))

    async def receive(self) -> list[Completion]:
        """Completions that had come before the end of the session are handed out first; then it raises why it ended."""
        await self._has_news.wait()
        return self.take()

    def when_news(self, tell: Callable[[], None]) -> None:
        self._doorbell = Doorbell(self._client.bell, tell)

    def take(self) -> list[Completion]:
        if self._doorbell is not None:
            self._doorbell.has_them()
        if not self._completions and self._end is not None:
            raise self._end
        taken, self._completions = self._completions, []
        if self._end is None:
            self._has_news.clear()
        else:
            self._tell_once()  # that it is over
        return taken

    def close(self) -> None:
        if self._end is None:
            self._client.forget(self)
            self._completions.clear()
            self.end(Cancelled("the session was closed"))

    def deliver(self, completion: Completion) -> None:
        """For ControlClient."""
        self._completions.append(completion)
        self._tell_once()

    def end(self, error: LoopwrightError) -> None:
        """For ControlClient."""
        if self._end is None:
            self._end = error
            self._tell_once()

    def _tell_once(self) -> None:
        self._has_news.set()
        if self._doorbell is not None:
            self._doorbell.news()
