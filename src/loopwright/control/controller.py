"""The one door of the control layer: takes calls, keeps the engine busy, delivers what came. Never touches a tensor.

Entered by the runtime through `core.control`. `serve` is the one task that may wait; `schedule`, `complete` and
`fail_step`, which it calls in turn, only decide, so that tests can take each step by hand.
"""

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict
from secrets import token_hex
from typing import TYPE_CHECKING

from loopwright.control import ordering
from loopwright.control.arrivals import Arrivals
from loopwright.control.compiling import CompilingCalls
from loopwright.control.config import ControlConfig
from loopwright.control.counts import StepCounts
from loopwright.control.direct_calls import DirectCall, answer, find_queue
from loopwright.control.grouping import goes_ahead, make_scheduler
from loopwright.control.intake import Intake
from loopwright.control.measuring import control_series
from loopwright.control.moment import Moment
from loopwright.control.observing import Observer
from loopwright.control.open_calls import OpenCalls
from loopwright.control.pace import Pace
from loopwright.control.resource_manager import ResourceManager
from loopwright.control.returns import Returns
from loopwright.control.session import InlineSession
from loopwright.control.step import Step
from loopwright.control.step_results import result_of
from loopwright.control.step_times import StepTimes
from loopwright.control.successors import Successors
from loopwright.control.suspension import Suspension
from loopwright.core.batch import Batch, StepResult
from loopwright.core.bell import Bell
from loopwright.core.calls import QueueCall, SetPriority
from loopwright.core.clock import Clock
from loopwright.core.control import ControlLimits, ControlStats
from loopwright.core.errors import BadRequest, ErrorInfo, InternalError, LoopwrightError, Unavailable, from_info
from loopwright.core.executor import Executor
from loopwright.core.going_on import Next
from loopwright.core.grammars import GrammarCompiler
from loopwright.core.ids import ONE_TENANT, CallId, RunId, TenantId
from loopwright.core.instrument import SILENT, Meter
from loopwright.core.metrics import NOTHING_MEASURED, Measured
from loopwright.core.model_info import ModelInfo
from loopwright.core.results import Completion
from loopwright.core.watch_calls import WatchCall

if TYPE_CHECKING:
    from loopwright.control.ordering import OpenCall

logger = logging.getLogger(__name__)

PREPARE_S = 0.0005
"""So long after a step is submitted the engine's thread has launched it, and is not held up."""


class Controller:
    """The control layer over one engine. Implements `core.control.Control`.

    `token_bytes` are the bytes of each token id, b"" for control tokens; ids beyond it have none. Of texts
    that may hold calls of tools they are `bytes_with_marks`."""

    def __init__(
        self,
        executor: Executor,
        token_bytes: Sequence[bytes],
        model_info: ModelInfo,
        clock: Clock,
        config: ControlConfig = ControlConfig(),  # noqa: B008 (frozen)
        grammars: GrammarCompiler | None = None,
        meter: Meter | None = None,
        bytes_with_marks: Sequence[bytes] | None = None,
    ) -> None:
        shape = executor.shape
        self._executor = executor
        self._model_info = model_info
        self._clock = clock
        self._config = config
        self._compiling = CompilingCalls(grammars, self._wake_from_any_thread)
        self._loop: asyncio.AbstractEventLoop | None = None  # that of `serve`
        self._meter = meter
        self._source = f"control-{token_hex(8)}"
        self._moment = Moment(clock.now_s())  # when a run last did something, or a step ended
        self._observer = Observer(meter or SILENT, shape.block_bytes)
        self._resources = ResourceManager(shape, prefix_cache=config.prefix_cache, moment=self._moment)
        self._pace = Pace()
        self._scheduler = make_scheduler(config, self._resources, self._pace)
        no_text = (b"",) * (shape.vocab_size - len(token_bytes))
        texts = ((*token_bytes, *no_text), (*(bytes_with_marks or token_bytes), *no_text))
        self._successors = Successors(self._resources, is_on=config.policy == "adaptive")
        self._intake = Intake(self._resources, self._compiling, model_info, *texts, self._successors)
        self._sessions: dict[RunId, InlineSession] = {}
        self.bell = Bell()  # for InlineSession
        self._step_times = StepTimes()
        self._returns = Returns()
        self._calls = OpenCalls(
            self._resources,
            self._scheduler,
            self._compiling,
            self._sessions,
            self._observer,
            self._step_times,
            self._moment,
            self.bell.tell_all,
            self._returns,
            self._successors,
        )
        self._suspension = Suspension(
            config, self._resources, self._scheduler, self._compiling, self._sessions, self._successors
        )
        self._max_running = 1 + goes_ahead(config, shape)
        self._running: deque[Step] = deque()  # the second one is ahead
        self._unwanted: list[tuple[OpenCall, Step]] = []  # of runs that ended while the step ran
        self._counts = StepCounts()
        self._arrivals = Arrivals()
        self._wake = asyncio.Event()
        self._is_holding = False  # a step waits for more, so that a call alone is no news
        self._loss: ErrorInfo | None = None  # why the engine can run nothing any more

    def models(self) -> tuple[ModelInfo, ...]:
        return (self._model_info,)

    def open(
        self, run_id: RunId, limits: ControlLimits, tenant: TenantId = ONE_TENANT, program: str = ""
    ) -> InlineSession:
        """Begins a run. Raises BadRequest while a run of that id is open, or has calls in the running step, and why the
        engine is lost, if it is."""
        self._check_engine()
        if run_id in self._sessions:
            raise BadRequest(f"run {run_id} is open already", field="run_id")
        session = InlineSession(self, run_id, limits, tenant, program)
        self._resources.open(run_id, limits, tenant)
        self._sessions[run_id] = session
        return session

    def expect(self, num_launches: int) -> None:
        """As `Control.expect`."""
        self._arrivals.expect(num_launches)
        if not num_launches:
            self._wake.set()

    async def stats(self) -> ControlStats:
        """Raises why the engine is lost, if it is."""
        self._check_engine()
        calls = [call for session in self._sessions.values() for call in session.open_calls.values()]
        return ControlStats(
            **asdict(self._counts),
            num_blocks=self._resources.blocks.num_total,
            num_free_blocks=self._resources.blocks.num_free,
            num_free_slots=self._resources.slots.num_free,
            num_live_runs=sum(not session.inbox.is_closed for session in self._sessions.values()),
            num_waiting_calls=sum(not call.is_running for call in calls),
        )

    async def metrics(self) -> Measured:
        """What was counted since the start, and what is so now. Nothing without a meter."""
        if self._meter is None:
            return NOTHING_MEASURED
        self._observer.tell_steps()
        for session in self._sessions.values():
            self._observe_held(session)
        series = control_series(self._meter, self._resources, self._suspension, self._sessions.values())
        return Measured({self._source: series})

    async def serve(self) -> None:
        """Runs steps for as long as its task lives; waits only for the engine, or for something to do."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._serve()
        finally:
            for step in self._running:
                step.give_up_ahead()

    async def _serve(self) -> None:
        submitted: deque[tuple[Batch, Future[StepResult]]] = deque()
        idle_from_s = self._clock.now_s()  # since when the engine has nothing but the first of these
        waited_s = 0.0  # how long it had nothing before that
        while True:
            self._wake.clear()
            if not submitted and (hold_s := self._hold_s()):
                self._is_holding = True
                self.bell.tell_all()  # they are whom it waits for
                await self._wait_for_change(hold_s)
                self._is_holding = False
                continue
            was_idle = not submitted
            self._submit_all(submitted)
            if was_idle and submitted:
                waited_s = self._clock.now_s() - idle_from_s
                idle_from_s += waited_s
            self._calls.decoded.tell()  # of the step before
            if not submitted:
                await self._wait_for_change(self._suspension.patience_s(self._clock.now_s()))
                continue
            batch, running = submitted.popleft()
            if self._running[0].num_going:
                asyncio.get_running_loop().call_later(PREPARE_S, self._prepare)
            try:
                result = await result_of(running)
            except Exception as error:  # noqa: BLE001 (whatever the engine's fault is, it ends the step's calls only)
                ended_s = self._clock.now_s()
                logger.error("a step of %d rows failed after %.3f s: %s", batch.num_rows, ended_s - idle_from_s, error)
                self.fail_step(error)
            else:
                ended_s = self._clock.now_s()
                if not submitted and not self._hold_s(self._running[0]):
                    self._submit_all(submitted)  # who came while it ran need not wait until its result is taken
                self._calls.going.tell(self._running[0], result.rows, ended_s)  # all else while programs choose
                self._note_step(batch, ended_s - idle_from_s, waited_s)
                self._take_step(result)
            waited_s, idle_from_s = 0.0, ended_s if submitted else self._clock.now_s()

    def _prepare(self) -> None:
        """What can be done before a step is over."""
        if self._running:
            self._calls.going.prepare(self._running[0])

    def _submit_all(self, submitted: deque[tuple[Batch, Future[StepResult]]]) -> None:
        """Adds steps, as many as the engine takes and as can be formed now."""
        while len(submitted) < self._max_running and (batch := self._formed()) is not None:
            submitted.append((batch, self._submitted(batch)))

    def _note_step(self, batch: Batch, busy_s: float, waited_s: float) -> None:
        """The engine had this step alone for so long, and before it nothing for so long."""
        self._counts.busy_s += busy_s
        self._returns.step_over(busy_s, self._clock.now_s())
        num_tokens, num_long = batch.num_tokens, batch.num_long_tokens
        self._arrivals.step_over(busy_s, has_prompts=num_long > 0 and self._max_running > 1)
        self._step_times.note(num_tokens, busy_s, batch.num_drafts, waited_s)
        self._pace.note(num_tokens - num_long, num_long, busy_s)
        self._observer.step_ran(busy_s)

    def schedule(self) -> Batch | None:
        """The next batch, which is running from now on; None if nothing can run, or can run ahead of what runs."""
        if self._running:
            return self._schedule_ahead()
        self._take_compiled()
        while True:
            self._suspension.resume()
            step = self._scheduler.form(self._clock.now_s())
            has_dropped = self._scheduler.is_blocked and self._suspension.drop_idle(self._clock.now_s())
            self._take_unrunnable(step)
            if not step.is_empty:
                return self._started(step)
            if not (step.refused or step.settled or has_dropped or self._make_room()):
                return None

    def complete(self, result: StepResult) -> None:
        """Takes what came of the running step, and tells those who want to see their tokens."""
        self._take_step(result)
        self._calls.decoded.tell()

    def fail_step(self, error: Exception) -> None:
        """Ends the running step, which failed as a whole: as if each of its entries had, and nothing else."""
        step = self._end_step()
        self._counts.num_failed_steps += 1
        self._observer.step_failed()
        if not isinstance(error, Unavailable):  # which says itself what is gone
            error = InternalError(f"the engine failed while it ran this call: {error}", hint="try again")
        self._calls.fail_step(step, error.info())

    def lose_engine(self, error: LoopwrightError) -> None:
        """The engine can run nothing any more: its steps fail, and from now on no run begins."""
        self._loss = error.info()

    def issue(self, session: InlineSession, call_id: CallId, call: QueueCall) -> None:
        """Takes a call of an open run. What is wrong with it becomes its completion."""
        if session.inbox.is_closed:
            return
        assert call_id not in session.open_calls, f"call {call_id} of run {session.run_id} is open"
        self._changed(session)
        session.last_call = call_id
        if session.kept is not None and (next_one := self._intake.succeed(session, call_id, call)) is not None:
            self._scheduler.add_again(next_one)
            return
        try:
            if isinstance(call, DirectCall):
                result = answer(call, session, self._resources, self._model_info)
                if isinstance(call, SetPriority):
                    self._scheduler.reorder()
                session.inbox.put(Completion(call_id, result))
                return
            if isinstance(call, WatchCall):
                done = self._calls.watched.answer(call, session, self._model_info)
                session.idle_since_s = self._moment.now_s
                session.inbox.put(Completion(call_id, done))
                return
            queue = find_queue(session, call.queue)
        except LoopwrightError as error:
            session.inbox.put(Completion(call_id, error=error.info()))
            return
        ready = self._intake.take(session, queue, call_id, call)
        if ready is not None:
            self._calls.settle([ready])

    def go_on(self, session: InlineSession, call_id: CallId, one: Next) -> bool:
        """As `core.going_on.GoesOn`."""
        if session.inbox.is_closed:
            return True
        assert call_id not in session.open_calls, f"call {call_id} of run {session.run_id} is open"
        self._changed(session)
        call = self._intake.go_on(session, call_id, one)
        if call is None:
            return False
        session.last_call = call_id
        self._scheduler.add_again(call)
        return True

    def interrupt(self, session: InlineSession, call_id: CallId) -> None:
        """Ends a segment at its next token boundary; a call that has not started fails as Cancelled."""
        call = session.open_calls.get(call_id)
        if call is None or call.failure is not None:
            return
        self._changed()
        self._calls.interrupt(call)

    def close(self, session: InlineSession) -> None:
        """Ends a run: what is not in the running step is gone now, the rest when the step is over."""
        if session.inbox.is_closed:
            return
        self._returns.gone(session)
        self._successors.let_go(session)
        self._changed()
        session.inbox.close()
        for call in list(session.open_calls.values()):
            if not call.is_running:
                self._calls.discard(call)
                continue
            self._unwanted.append((call, next(step for step in reversed(self._running) if step.has(call))))
            if call.decoding is not None:
                call.decoding.end(call)
        self._resources.unbind_all(session.run_id)
        self._resources.exports.end_run(session.run_id)
        self._forget_if_empty(session)

    def check_integrity(self) -> None:
        """Asserts that names, calls, blocks and slots add up. Any time."""
        calls = [call for session in self._sessions.values() for call in session.open_calls.values()]
        assert all(not call.is_over for call in calls), "a call that is over is still open"
        num_open = Counter(call.queue for call in calls)
        queues = [queue for session in self._sessions.values() for queue in session.queues.values()]
        assert all(queue.num_open == num_open[queue] for queue in queues), "a queue's open calls are miscounted"
        self._resources.check_integrity([*calls, *self._successors.kept(self._sessions.values())])

    def _check_engine(self) -> None:
        if self._loss is not None:
            raise from_info(self._loss)

    # Running

    def _formed(self) -> Batch | None:
        """As `schedule`, and tells how long it took."""
        began_s = self._clock.now_s()
        batch = self.schedule()
        if batch is not None:
            self._observer.step_formed(self._clock.now_s() - began_s)
        return batch

    def _submitted(self, batch: Batch) -> Future[StepResult]:
        try:
            return self._executor.submit(batch)
        except Exception as error:  # noqa: BLE001 (the step's turn to fail has not come)
            failed: Future[StepResult] = Future()
            failed.set_exception(error)
            return failed

    def _schedule_ahead(self) -> Batch | None:
        if len(self._running) == self._max_running:
            return None
        self._take_compiled()
        step = self._scheduler.form_ahead(self._clock.now_s(), self._running[-1])
        if step is None:
            return None
        self._take_unrunnable(step)
        return None if step.is_empty else self._started(step)

    def _take_compiled(self) -> None:
        """Calls whose grammars are compiled now."""
        for call, error in self._compiling.take():
            if error is not None:
                ordering.fail(call, error.info())
            if call.num_blockers == 0:
                self._calls.settle([call])

    def _take_unrunnable(self, step: Step) -> None:
        """What came up when the step was formed, and is not in it."""
        for call, error in step.refused:
            self._calls.refuse(call, error.info())
        self._calls.settle(step.settled)

    def _started(self, step: Step) -> Batch:
        for call in step.calls:
            call.num_in_steps += 1
        self._running.append(step)
        return step.batch()

    # Ending

    def _take_step(self, result: StepResult) -> None:
        step = self._end_step()
        self._counts.count(step)
        self._calls.take_step(step, result)
        self._observer.step_over(step, self._moment)

    def _observe_held(self, session: InlineSession) -> None:
        self._observer.held(session, self._resources.holdings(session.run_id).pages.take_unit_seconds())

    def _forget_if_empty(self, session: InlineSession) -> None:
        if not session.open_calls:
            self._observe_held(session)
            self._suspension.forget(session.run_id)
            self._resources.forget(session.run_id)
            del self._sessions[session.run_id]

    def _end_step(self) -> Step:
        step = self._running.popleft()
        self._moment.now_s = self._clock.now_s()
        self._suspension.count(step)
        if step.rows or step.decoded.wasted:
            self._counts.num_wasted_rows += step.num_wasted
        if self._unwanted:
            self._discard_unwanted(step)
        return step

    def _discard_unwanted(self, step: Step) -> None:
        """Those of runs that ended, whose last row was in the step."""
        unwanted = [call for call, last in self._unwanted if last is step]
        self._unwanted = [one for one in self._unwanted if one[1] is not step]
        for call in unwanted:
            if not call.is_over:
                self._calls.discard(call)
            if call.run_id in self._sessions:
                self._forget_if_empty(self._sessions[call.run_id])

    # Waiting

    def _changed(self, caller: InlineSession | None = None) -> None:
        self._moment.now_s = self._clock.now_s()
        self._calls.going.disturb()
        if caller is not None:
            self._returns.called(caller, self._moment.now_s)
        if not (self._is_holding and self._returns.are_awaited):
            self._wake.set()

    def _wake_from_any_thread(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    def _make_room(self) -> bool:
        """When nothing can run: has somebody give up pages, or, if that cannot be, fail. False if nobody does yet."""
        now_s = self._clock.now_s()
        if self._suspension.make_room(now_s):
            return True
        found = self._suspension.hopeless(now_s, now_s - self._moment.now_s)
        if found is None:
            return False
        call, error = found
        self._moment.now_s = now_s  # its run gets time to free what it holds before the next one fails
        logger.warning("a call of run %s fails: %s", call.run_id, error.message)
        self._calls.refuse(call, error.info())
        return True

    def _hold_s(self, ended: Step | None = None) -> float:
        """For how long the engine should do nothing, for more to run at once. `ended` is a step whose calls have not
        been answered yet, though it is over."""
        now_s = self._clock.now_s()
        if launching_s := self._arrivals.hold_s(now_s, would_hold_up=self._scheduler.is_decoding):
            return launching_s
        if self._scheduler.has_segments:
            return 0.0
        if ended is not None and self._returns.will_hold(ended.rows, self._sessions):
            return math.inf
        return self._returns.hold_s(now_s)

    async def _wait_for_change(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return
