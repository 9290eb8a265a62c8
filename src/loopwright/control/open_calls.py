"""Gives open calls what came of their rows, ends them, and lets those go on that waited for them. Never forms a step.

Called by the controller, when a step is over and when a run changes its mind. What is peculiar to the decode group and
to watched segments is in `decode_calls` and `watched_calls`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import chain

from loopwright.control import ordering
from loopwright.control.compiling import CompilingCalls
from loopwright.control.decode_calls import DecodeCalls
from loopwright.control.feeds import Feed, forwarded
from loopwright.control.going_calls import GoingCalls
from loopwright.control.grouping import AnyScheduler
from loopwright.control.moment import Moment
from loopwright.control.observing import Observer
from loopwright.control.ordering import OpenCall
from loopwright.control.resource_manager import ResourceManager
from loopwright.control.returns import Returns
from loopwright.control.segments import SegmentFeed
from loopwright.control.session import InlineSession
from loopwright.control.step import Step
from loopwright.control.step_times import StepTimes
from loopwright.control.successors import Successors
from loopwright.control.watched_calls import WatchedCalls
from loopwright.control.watching import WatchedFeed
from loopwright.core.batch import NO_DECODE_RESULT, DecodeResult, HeadRow, RowResult, StepResult
from loopwright.core.calls import ClearQueue, ExportPages, ImportPages, Synchronize, UnexportPages
from loopwright.core.errors import Cancelled, ErrorInfo, LoopwrightError
from loopwright.core.ids import RunId
from loopwright.core.results import CallResult, CallTiming, Completion, Done

SettledCall = Synchronize | ClearQueue | ExportPages | UnexportPages | ImportPages
"""Calls that wait for their turn and then need no engine."""


class OpenCalls:
    """Over the calls that the controller's `sessions` hold."""

    def __init__(
        self,
        resources: ResourceManager,
        scheduler: AnyScheduler,
        compiling: CompilingCalls,
        sessions: Mapping[RunId, InlineSession],
        observer: Observer,
        step_times: StepTimes,
        moment: Moment,
        tell_due: Callable[[], None],
        returns: Returns,
        successors: Successors,
    ) -> None:
        self._resources, self._scheduler, self._compiling = resources, scheduler, compiling
        self._sessions = sessions
        self._observer = observer
        self._step_times = step_times
        self._moment, self._returns, self._successors = moment, returns, successors
        self._num_rows = 0  # of the step that was over last
        self.going = GoingCalls(sessions, successors, returns, observer, moment)
        self.decoded = DecodeCalls(self._finish, self._fail, resources.trim, tell_due, self._rest)
        self.watched = WatchedCalls(resources, self._finish, self._fail, self._withdraw, self.decoded.tell_last)

    # A step is over

    def take_step(self, step: Step, result: StepResult) -> None:
        """What came of a step, for each of its calls."""
        self._num_rows = step.num_rows
        self.decoded.take(step.decoding, step.decoded, result.decodes)
        for call in step.copying:
            call.num_in_steps -= 1
            self.watched.go_back(call)
        left = self.going.take(step, result.rows) if step.num_going else ()
        for call, row in chain(left, step.outcomes(result, step.num_going)):
            call.num_in_steps -= 1
            if not call.is_over:  # with its run, or because a call of this very step failed
                self._take(call, row)

    def fail_step(self, step: Step, info: ErrorInfo) -> None:
        """A step failed as a whole: as if each of its entries had, and nothing else."""
        for call, private in step.private:
            self._resources.mark_empty(call, private.page)  # its new block may be empty
        failed = RowResult(error=info)
        results = [[failed] * len(calls) for calls in (step.rows, step.heads, step.shifts)]
        self.decoded.take(
            step.decoding, step.decoded, DecodeResult.of_rows(step.decoded.rows, [failed] * len(step.decoded))
        )
        for call in step.copying:  # what their pages held is lost
            call.num_in_steps -= 1
            self._fail(call, info)
        for call, _ in step.outcomes(StepResult(NO_DECODE_RESULT, *results)):
            call.num_in_steps -= 1
            if not call.is_over:
                self._take(call, failed)

    # A call is over, or can go on

    def settle(self, ready: Iterable[OpenCall]) -> None:
        """Takes calls that wait for nobody on their way: to the scheduler, or, with nothing to run, to their end."""
        waiting = deque(ready)
        while waiting:
            call = waiting.popleft()
            if call.failure is None and (failure := ordering.taint(call)) is not None:
                ordering.fail(call, failure)
            if call.failure is None and (not isinstance(call.call, SettledCall) or self._resources.has_dropped(call)):
                if not call.is_running:  # else it joined the step of the call that it waited for
                    self._scheduler.add(call, self._moment.now_s)
                continue
            if call.is_running:
                self._resources.mark_lost(call)
            if isinstance(call.call, ClearQueue):
                ordering.clear(call.queue, call.num_clears)
            result = self._exchange(call) if call.failure is None else None
            timing = self._observed(call)
            waiting.extend(self.discard(call))
            call.inbox.put(Completion(call.call_id, result, call.failure, timing))

    def refuse(self, call: OpenCall, info: ErrorInfo) -> None:
        """Fails a call that cannot run; one that is watched, when its program has seen what there is."""
        if isinstance(call.work, WatchedFeed):
            self.watched.refuse(call, call.work, info)
        else:
            self._fail(call, info)

    def interrupt(self, call: OpenCall) -> None:
        """Ends a segment at its next token boundary; a call that has not started fails as Cancelled."""
        if not call.is_started:
            ordering.fail(call, Cancelled(f"call {call.call_id} was interrupted before it started").info())
            self._compiling.drop(call)
            if call.num_blockers == 0:
                self.settle([call])
        elif isinstance(call.work, SegmentFeed):
            call.work.is_interrupted = True
            if call.decoding is not None:
                call.decoding.look_at(call)
            if not call.is_running:
                self._end_interrupted(call, call.work)

    def discard(self, call: OpenCall) -> list[OpenCall]:
        """Takes the call out of everything. Returns those that now wait for nobody."""
        call.is_over = True
        if isinstance(call.work, SegmentFeed):
            call.work.give_up_ahead()
        if call.decoding is not None:
            call.decoding.leave(call)
        self._compiling.drop(call)
        self._resources.mark_written(call)
        ready = ordering.leave(call)
        self._resources.release(call)
        session = self._sessions[call.run_id]
        if session.kept is not None and session.kept.call is call:
            session.kept = None
        del session.open_calls[call.call_id]
        call.queue.num_open -= 1
        session.idle_since_s = self._moment.now_s
        return ready

    # What came of one row

    def _take(self, call: OpenCall, row: RowResult) -> None:
        if isinstance(call.work, WatchedFeed) and call.restoring is None:
            self.watched.take_row(call, call.work, row)
            self._sessions[call.run_id].idle_since_s = self._moment.now_s  # if it waits for its program now
        elif row.error is not None:
            self._resources.give_up_restoring(call)
            self.watched.go_back(call)
            self.refuse(call, row.error)
        elif call.restoring is not None:
            is_restored = call.restoring.advance(row)
            if isinstance(call.work, SegmentFeed) and call.work.is_interrupted:
                self._end_interrupted(call, call.work)
            elif is_restored:
                self._take_restored(call)
            self.watched.go_back(call)
        elif isinstance(call.work, Feed):
            self._take_row(call, call.work, row)
        elif isinstance(call.work, HeadRow):
            self._finish(call, forwarded(row, call.work.sampling))
        else:
            self._finish(call, Done())

    def _withdraw(self, call: OpenCall) -> None:
        """A watched segment goes on, or not, from other tokens than the decode group has: it is one of that no more."""
        self.decoded.forget(call)
        if call.decoding is not None:
            call.decoding.withdraw(call)
            self._scheduler.rest(call, self._moment.step_over_s)

    def _rest(self, call: OpenCall, error: ErrorInfo | None) -> None:
        """A watched segment is none of the decode group's any more: it waits for its program, or is over."""
        feed = call.work
        assert isinstance(feed, WatchedFeed)
        self._scheduler.rest(call, self._moment.now_s)
        self._sessions[call.run_id].idle_since_s = self._moment.now_s
        self.watched.take_end(call, feed, error)

    def _take_restored(self, call: OpenCall) -> None:
        """The call has dropped pages back; perhaps not all of them."""
        self._resources.finish_restoring(call)
        if isinstance(call.call, SettledCall) and not self._resources.has_dropped(call):
            self.settle([call])
        else:
            self._scheduler.restored(call)

    def _take_row(self, call: OpenCall, feed: Feed, row: RowResult) -> None:
        try:
            is_over = feed.advance(row)
        except LoopwrightError as error:  # its grammar cannot go on
            self._fail(call, error.info())
            return
        if feed.has_run_many and not is_over:
            self._resources.record(call)
        if not isinstance(feed, SegmentFeed):
            if is_over:
                cost = self._step_times.draft_cost(self._num_rows, feed.num_drafts) if feed.num_drafts else None
                self._finish_forward(call, feed.result(len(call.pages), cost))
            return
        if feed.view is not None:
            self._resources.slide(call)
        if (progress := feed.progress()) is not None:
            call.inbox.put(Completion(call.call_id, progress))
        if is_over:
            self._resources.trim(call)
            self._finish(call, feed.segment(len(call.pages)))

    def _end_interrupted(self, call: OpenCall, feed: SegmentFeed) -> None:
        """Ends a segment at the token boundary where it is."""
        if isinstance(feed, WatchedFeed):
            self.watched.end_interrupted(call, feed)
        else:
            self._resources.trim(call)
            self._finish(call, feed.segment(len(call.pages)))

    def _finish_forward(self, call: OpenCall, result: CallResult) -> None:
        """Its program says what follows, and may go on from here."""
        session = self._sessions[call.run_id]
        if self._successors.keep(call, session):
            session.idle_since_s = self._moment.now_s
            call.inbox.put(Completion(call.call_id, result, None, self._observed(call)))
        else:
            self._finish(call, result)
        if not session.open_calls:
            self._returns.told(session, self._moment.now_s)

    def _finish(self, call: OpenCall, result: CallResult) -> None:
        self._end(call, result)

    def _fail(self, call: OpenCall, info: ErrorInfo) -> None:
        ordering.fail(call, info)
        self._end(call, error=info)

    def _end(self, call: OpenCall, result: CallResult | None = None, error: ErrorInfo | None = None) -> None:
        if not call.is_over:
            self.decoded.tell_last(call)
            timing = self._observed(call)
            ready = self.discard(call)
            call.inbox.put(Completion(call.call_id, result, error, timing))
            self.settle(ready)

    def _exchange(self, call: OpenCall) -> CallResult | None:
        """Does what a SettledCall asks for. None if it failed."""
        try:
            return self._resources.exchange(call, self._sessions[call.run_id].tenant)
        except LoopwrightError as error:
            ordering.fail(call, error.info())
            return None

    def _observed(self, call: OpenCall) -> CallTiming | None:
        return self._observer.call_over(call, self._sessions[call.run_id], self._moment.now_s)
