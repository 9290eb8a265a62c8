"""Runs in another process, seen as core.runs.Runs. Never decides anything. Made by compose, used by the router.

When the runtime worker closes or dies, its requests fail, and each of its event streams gets the final event that the
worker can no longer send.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import TypeVar

import msgspec

from loopwright.core.clock import Clock, SystemClock
from loopwright.core.control import ControlStats
from loopwright.core.errors import BadRequest, InternalError, LoopwrightError, Unavailable, from_info
from loopwright.core.events import Event, Finished
from loopwright.core.ids import ONE_TENANT, RunId, TenantId
from loopwright.core.metrics import Measured
from loopwright.core.model_info import ModelInfo
from loopwright.core.runs import ClientInput, ProgramInfo, RunInfo, RunSpec
from loopwright.transport import runs_messages as messages
from loopwright.transport.link import BINDER, Link, Peer
from loopwright.transport.open_requests import OpenRequests

log = logging.getLogger(__name__)

DIED = "the runtime worker died"
WINDOW = 256  # events of one stream under way or not yet read

AnswerT = TypeVar("AnswerT", bound=messages.Answer)


class RunsClient:
    """One connection to a runtime worker; `connect` makes it, `close` ends it, and with it what it started."""

    def __init__(self, address: str, clock: Clock) -> None:
        self._link = Link.connect(address, self._take, self._lost)
        self._clock = clock
        self._is_over = asyncio.Event()
        self._requests: OpenRequests[messages.Answer] = OpenRequests()
        self._stream_ids = count()
        self._streams: dict[int, _Stream] = {}
        self._reason = DIED  # why the connection ended, once it has
        self._welcome: asyncio.Future[tuple[ModelInfo, ...]] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(
        cls, address: str, *, name: str, clock: Clock | None = None, timeout_s: float = 60.0
    ) -> "RunsClient":
        """Waits until the runtime worker answers. `name` is what its log calls us. Raises Unavailable."""
        client = cls(address, clock or SystemClock())
        client._send(messages.Hello(name))
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(client._welcome)
        except TimeoutError:
            client.close()
            raise Unavailable(f"no runtime worker answered at {address} within {timeout_s:g} s") from None
        except BaseException:
            client.close()
            raise
        return client

    @property
    def is_alive(self) -> bool:
        return not self._link.is_closed

    def models(self) -> tuple[ModelInfo, ...]:
        return self._welcome.result()

    async def deploy(self, name: str, source: str, filename: str, tenant: TenantId = ONE_TENANT) -> ProgramInfo:
        deployed = await self._ask(
            messages.ProgramDeployed, lambda number: messages.DeployProgram(number, name, source, filename, tenant)
        )
        return deployed.program

    async def undeploy(self, name: str, tenant: TenantId = ONE_TENANT) -> None:
        await self._ask(messages.ProgramRemoved, lambda number: messages.RemoveProgram(number, name, tenant))

    async def programs(self) -> tuple[ProgramInfo, ...]:
        return (await self._ask(messages.ProgramsAnswer, messages.AskPrograms)).programs

    async def start(self, spec: RunSpec) -> RunId:
        """As Runs.start. When the caller gives up before the answer, the run is cancelled as soon as it exists."""
        return (await self._ask(messages.RunStarted, lambda number: messages.StartRun(number, spec))).run

    async def events(self, run_id: RunId, after: int = -1) -> AsyncIterator[Event]:
        """As Runs.events. Of a worker that died, the final event is made here."""
        stream_id, stream = next(self._stream_ids), _Stream(run_id, after)
        if self.is_alive:
            self._streams[stream_id] = stream
            self._send(messages.OpenStream(stream_id, run_id, after, WINDOW))
        else:
            stream.end(self._final_event(stream))
        try:
            while True:
                event = await stream.take()
                yield event
                if isinstance(event, Finished):
                    return
                if num_events := stream.credit_due():
                    self._send(messages.GrantCredit(stream_id, num_events))
        finally:
            if self._streams.pop(stream_id, None) is not None:
                self._send(messages.CloseStream(stream_id))

    async def cancel(self, run_id: RunId) -> None:
        await self._ask(messages.RunCancelled, lambda number: messages.CancelRun(number, run_id))

    async def send(self, run_id: RunId, sent: ClientInput) -> None:
        await self._ask(messages.InputTaken, lambda number: messages.SendInput(number, run_id, sent))

    async def runs(self) -> tuple[RunInfo, ...]:
        return (await self._ask(messages.RunsAnswer, messages.AskRuns)).runs

    async def stats(self) -> ControlStats:
        return (await self._ask(messages.StatsAnswer, messages.AskStats)).stats

    async def metrics(self) -> Measured:
        return (await self._ask(messages.MetricsAnswer, messages.AskMetrics)).measured

    async def ended(self) -> None:
        """Waits until the connection has ended, however it did."""
        await self._is_over.wait()

    def peer_died(self) -> None:
        """For whoever watches the worker's process; the socket notices by itself as well."""
        self._end(DIED)

    def close(self) -> None:
        if self.is_alive:
            self._send(messages.Goodbye())
            self._end("the connection to the runtime worker was closed")

    async def _ask(self, kind: type[AnswerT], make_request: Callable[[int], messages.Request]) -> AnswerT:
        if not self.is_alive:
            raise Unavailable(self._reason, hint="another one is being started; try again")
        number, answer = self._requests.open()
        try:
            self._send(make_request(number))
        except BadRequest as error:
            self._requests.fail(number, error)
        try:
            return _expect(kind, await answer)
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._disown(answer.result())  # it came in the same turn of the loop
            raise

    def _send(self, message: messages.ToRuns) -> None:
        try:
            self._link.send(BINDER, messages.encode(message))
        except UnicodeEncodeError as error:  # half a surrogate pair in a text of the caller's
            raise BadRequest(f"not Unicode text: {error.reason}") from error

    def _take(self, peer: Peer, payload: bytes) -> None:
        try:
            message = messages.decode_from_runs(payload)
        except (msgspec.MsgspecError, RecursionError) as error:
            log.warning("dropped a malformed message of a runtime worker: %s", error)
            return
        match message:
            case messages.StreamEvent(stream_id, event):
                if (stream := self._streams.get(stream_id)) is not None:
                    stream.add(event)
            case messages.StreamFailed(stream_id, info):
                if (stream := self._streams.pop(stream_id, None)) is not None:
                    stream.end(from_info(info))
            case messages.RequestFailed(number, info):
                self._requests.fail(number, from_info(info))
            case messages.Welcome(models):
                if not self._welcome.done():
                    self._welcome.set_result(models)
            case _:
                self._take_answer(message)

    def _take_answer(self, message: messages.Answer) -> None:
        if not self._requests.answer(message.request, message):
            self._disown(message)

    def _disown(self, message: messages.Answer) -> None:
        """An answer that nobody waits for any more: a run that nobody will read is cancelled."""
        if isinstance(message, messages.RunStarted):
            number, ignored = self._requests.open()
            ignored.cancel()
            self._send(messages.CancelRun(number, message.run))

    def _lost(self, peer: Peer) -> None:
        self._end(DIED)

    def _end(self, reason: str) -> None:
        if self.is_alive:
            self._reason = reason
        self._link.close()
        self._is_over.set()
        if not self._welcome.done():
            self._welcome.set_exception(Unavailable(reason))
            self._welcome.exception()  # marked as seen: nobody need be waiting
        self._requests.fail_all(reason, Unavailable)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.end(self._final_event(stream))

    def _final_event(self, stream: "_Stream") -> Finished:
        error = InternalError(self._reason, hint="start the run again")
        return Finished(
            run=stream.run_id,
            seq=stream.last_seq + 1,
            time_s=self._clock.wall_s(),
            code=error.code,
            error=error.info(),
        )


class _Stream:
    """The reader's end of a run's events. Holds at most WINDOW of them: the worker sends what it has credit for."""

    def __init__(self, run_id: RunId, after: int) -> None:
        self.run_id = run_id
        self.last_seq = after
        self._events: deque[Event] = deque()
        self._error: LoopwrightError | None = None
        self._has_news = asyncio.Event()
        self._num_taken = 0  # since the last credit

    def add(self, event: Event) -> None:
        self._events.append(event)
        self.last_seq = event.seq
        self._has_news.set()

    def end(self, last: Finished | LoopwrightError) -> None:
        if isinstance(last, Finished):
            self._events.append(last)
        else:
            self._error = last
        self._has_news.set()

    async def take(self) -> Event:
        while not self._events:
            if self._error is not None:
                raise self._error
            self._has_news.clear()
            await self._has_news.wait()
        self._num_taken += 1
        return self._events.popleft()

    def credit_due(self) -> int:
        """How much to grant now: a message for every half window, not for every event."""
        if self._num_taken < WINDOW // 2:
            return 0
        num_taken, self._num_taken = self._num_taken, 0
        return num_taken


def _expect(kind: type[AnswerT], answer: messages.Answer) -> AnswerT:
    if not isinstance(answer, kind):
        raise InternalError(f"the runtime worker answered {type(answer).__name__} where {kind.__name__} was due")
    return answer
