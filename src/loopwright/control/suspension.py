"""Decides who gives up pages when others wait for some, and who goes on when there is room. Never touches a block.

Called by the controller around each step. A run that has had nothing to do for a while gives up its pages at once. Runs
that wait for pages themselves are suspended only when nothing can run: first the one that has had the most service, so
that the one that has had the least goes on. Nobody fails for what others hold, as long as something can be dropped.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from loopwright.control.compiling import CompilingCalls
from loopwright.control.config import ControlConfig
from loopwright.control.grouping import AnyScheduler
from loopwright.control.ordering import OpenCall
from loopwright.control.resource_manager import ResourceManager
from loopwright.control.session import InlineSession
from loopwright.control.step import Step
from loopwright.control.successors import Successors
from loopwright.core.errors import OutOfPages
from loopwright.core.ids import RunId


class Suspension:
    """Over the controller's `sessions`. Knows each run's attained service: the tokens that it had run, but those to
    rebuild what it lost."""

    def __init__(
        self,
        config: ControlConfig,
        resources: ResourceManager,
        scheduler: AnyScheduler,
        compiling: CompilingCalls,
        sessions: Mapping[RunId, InlineSession],
        successors: Successors,
    ) -> None:
        self._config, self._resources, self._scheduler, self._successors = config, resources, scheduler, successors
        self._compiling, self._sessions = compiling, sessions
        self._counted: Counter[RunId] = Counter()  # without the steps that have not been counted yet
        self._run_ids: Sequence[RunId] = ()  # of whom those were, one token for each entry
        self._num_steps = 0
        self.num_suspended = (
            0  # so far; and the blocks that were taken from runs without calls, and from suspended ones
        )
        self.num_dropped_idle = self.num_dropped_suspended = 0

    def count(self, step: Step) -> None:
        """Takes note of a step that is over."""
        run_ids = step.decoded.run_ids
        if run_ids is not self._run_ids:
            self._count_steps()
            self._run_ids = run_ids
        self._num_steps += 1
        for place, call in enumerate(step.rows):
            if call.restoring is None and not call.is_over:
                self._counted[call.run_id] += 1 if place < step.num_short else step.batch_rows[place].num_tokens

    @property
    def num_waiting(self) -> int:
        """Runs that are suspended."""
        return len(self._scheduler.suspended)

    def forget(self, run_id: RunId) -> None:
        """The run is over."""
        self._served.pop(run_id, None)
        self._scheduler.resume(run_id)

    def resume(self) -> None:
        """Lets suspended runs go on that find room, unless others wait for it; the least served first."""
        for run_id in sorted(self._scheduler.suspended, key=self._served.__getitem__):
            calls = self._scheduler.suspended[run_id]
            if self._scheduler.is_blocked or not self._resources.has_room(calls):
                return
            self._scheduler.resume(run_id)

    def drop_idle(self, now_s: float) -> bool:
        """Drops the pages of a run that has had nothing to run for a while. Whether that freed a block."""
        until_s = now_s - self._config.max_idle_s
        holders = [self._sessions[run_id] for run_id in self._resources.num_held_blocks()]
        idle = [one for one in holders if one.idle_since_s <= until_s and _is_idle(one)]
        num_free = self._resources.blocks.num_free
        has_dropped = any(self._drop(one) for one in sorted(idle, key=lambda one: self._order(one.run_id)))
        self.num_dropped_idle += self._resources.blocks.num_free - num_free
        return has_dropped

    def make_room(self, now_s: float) -> bool:
        """When nothing can run: suspends a run for the sake of the least served, or lets a suspended one try."""
        waiting = self._scheduler.waiting()
        if not waiting:
            if math.isfinite(self._scheduler.due_s()):
                return False
            run_id = min(self._scheduler.suspended, key=self._served.__getitem__, default=None)
            if run_id is not None:
                self._scheduler.resume(run_id)
            return run_id is not None
        if self._is_somebody_about(now_s):
            return False
        favoured = min(waiting, key=lambda call: (self._served[call.run_id], call.rank)).run_id
        for run_id in sorted({call.run_id for call in waiting} - {favoured}, key=self._order):
            num_free = self._resources.blocks.num_free
            if self._drop(self._sessions[run_id]):
                self._scheduler.suspend(run_id)
                self.num_suspended += 1
                self.num_dropped_suspended += self._resources.blocks.num_free - num_free
                return True
        return False

    def patience_s(self, now_s: float) -> float | None:
        """After how long something should be done for calls that wait, if nothing happens before."""
        due_in_s = max(self._scheduler.due_s() - now_s, 0.0)
        if self._scheduler.waiting() and self._is_somebody_about(now_s):
            return min(due_in_s, self._config.max_idle_s)
        if self._is_stuck():
            return min(due_in_s, self._config.max_stuck_s)
        return due_in_s if math.isfinite(due_in_s) else None

    def hopeless(self, waited_s: float) -> tuple[OpenCall, OutOfPages] | None:
        """The waiting call whose run holds the most blocks, with its error, once everybody has been stuck for long.

        It comes to that only when what everybody holds cannot be computed again from tokens and positions."""
        if waited_s < self._config.max_stuck_s or not self._is_stuck():
            return None
        blocks, num_held = self._resources.blocks, self._resources.num_held_blocks()
        victim = max(self._scheduler.waiting(), key=lambda call: (num_held.get(call.run_id, 0), call.rank))
        return victim, OutOfPages(
            f"every call waits for KV pages: {blocks.num_free} of the pool's {blocks.num_total} are free, and this run "
            f"holds the most, {num_held.get(victim.run_id, 0)}",
            hint="free pages and try again",
        )

    @property
    def _served(self) -> Counter[RunId]:
        self._count_steps()
        return self._counted

    def _count_steps(self) -> None:
        """Steps of the same rows are counted together."""
        if self._num_steps:
            for run_id in self._run_ids:
                self._counted[run_id] += self._num_steps
            self._num_steps = 0

    def _is_somebody_about(self, now_s: float) -> bool:
        """Whether a run that holds blocks had something to run a moment ago, so that it may well go on or free them."""
        from_s = now_s - self._config.max_idle_s
        holders = [self._sessions[run_id] for run_id in self._resources.num_held_blocks()]
        return any(one.idle_since_s > from_s and _is_idle(one) for one in holders)

    def _is_stuck(self) -> bool:
        """Whether only a failure can free a block: nothing runs, and every run that holds blocks waits for more. A run
        without open calls, or with one that waits for its program, is busy elsewhere, and will free what it holds."""
        holders = self._resources.num_held_blocks()
        open_calls = [self._sessions[run_id].open_calls.values() for run_id in holders]
        is_everybody_waiting = all(calls and not any(call.is_paused for call in calls) for calls in open_calls)
        return bool(self._scheduler.waiting()) and is_everybody_waiting and not self._compiling.num_waiting

    def _drop(self, session: InlineSession) -> bool:
        """As `ResourceManager.drop`."""
        self._successors.let_go(session)
        return self._resources.drop(session.run_id, session.open_calls.values())

    def _order(self, run_id: RunId) -> tuple[int, RunId]:
        """Who gives up pages first."""
        return -self._served[run_id], run_id


def _is_idle(session: InlineSession) -> bool:
    """Whether nothing that the run has asked for could run: its program is busy elsewhere, or has yet to say what it
    thinks of a segment that it watches."""
    calls = session.open_calls.values()
    if not calls:
        return True
    return any(call.is_paused for call in calls) and all(call.is_paused or call.num_blockers for call in calls)
