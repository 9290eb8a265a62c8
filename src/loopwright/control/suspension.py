"""Decides who gives up pages when others wait for some, and who goes on when there is room. Never touches a block.

Called by the controller around each step. A run that has had nothing to do for a while gives up its pages at once. Runs
that wait for pages themselves are suspended only when nothing can run: first the one that has had the most service, so
that the one that has had the least goes on. Nobody fails for what others hold, as long as something can be dropped, or
somebody is at work who may free something.
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

MAX_SHOWN = 4  # of the runs that hold what a call waits for, in its error


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
        self._stalled_from_s: float | None = None  # since when calls wait for pages, and no step has been over
        self.num_suspended = (
            0  # so far; and the blocks that were taken from runs without calls, and from suspended ones
        )
        self.num_dropped_idle = self.num_dropped_suspended = 0

    def count(self, step: Step) -> None:
        """Takes note of a step that is over."""
        self._stalled_from_s = None
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
        if not self._scheduler.waiting():
            return due_in_s if math.isfinite(due_in_s) else None
        if self._stalled_from_s is not None:
            due_in_s = min(due_in_s, max(self._stalled_from_s + self._config.max_held_s - now_s, 0.0))
        if self._is_somebody_about(now_s):
            return min(due_in_s, self._config.max_idle_s)
        if self._is_stuck():
            return min(due_in_s, self._config.max_stuck_s)
        return due_in_s if math.isfinite(due_in_s) else None

    def hopeless(self, now_s: float, waited_s: float) -> tuple[OpenCall, OutOfPages] | None:
        """A waiting call, with its error, once everybody has been stuck for long, or nothing has run for very long.

        It comes to that only when what others hold cannot be computed again from tokens and positions. `waited_s` is
        how long nobody has done anything."""
        waiting = self._scheduler.waiting()
        if not waiting:
            self._stalled_from_s = None
            return None
        if self._stalled_from_s is None:
            self._stalled_from_s = now_s
        if waited_s >= self._config.max_stuck_s and self._is_stuck():
            return self._of_those_stuck(waiting)
        stalled_s = now_s - self._stalled_from_s
        if stalled_s < self._config.max_held_s:
            return None
        self._stalled_from_s += self._config.max_stuck_s  # the next one fails so much later, if nothing runs till then
        return self._held_up(waiting, now_s, stalled_s)

    def _of_those_stuck(self, waiting: Sequence[OpenCall]) -> tuple[OpenCall, OutOfPages]:
        """The call whose run holds the most blocks."""
        num_held = self._resources.num_held_blocks()
        victim = max(waiting, key=lambda call: (num_held.get(call.run_id, 0), call.rank))
        return victim, OutOfPages(
            f"every call waits for KV pages: {self._num_free()}, and this run holds the most, "
            f"{num_held.get(victim.run_id, 0)}",
            hint="free pages and try again",
        )

    def _held_up(self, waiting: Sequence[OpenCall], now_s: float, stalled_s: float) -> tuple[OpenCall, OutOfPages]:
        """The call that the others wait behind."""
        victim = min(waiting, key=lambda call: call.rank)
        tenant = self._sessions[victim.run_id].tenant
        holders = [self._sessions[run_id] for run_id in self._resources.num_held_blocks() if run_id != victim.run_id]
        silent = [one for one in holders if _is_idle(one)]
        shown = [self._shown(one, now_s) for one in silent if one.tenant == tenant]
        if num_others := len(silent) - len(shown):
            shown.append(f"{num_others} of other tenants")
        silent_hold = f"runs that make no call hold some that cannot be computed again: {', '.join(shown[:MAX_SHOWN])}"
        return victim, OutOfPages(
            f"nothing could run for {stalled_s:.3g} s for want of KV pages: {self._num_free()}; "
            + (silent_hold if shown else "what others hold cannot be computed again"),
            hint="try again when they have freed theirs or are cancelled (loopwright ps, loopwright cancel)",
        )

    def _num_free(self) -> str:
        return f"{self._resources.blocks.num_free} of the pool's {self._resources.blocks.num_total} are free"

    def _shown(self, holder: InlineSession, now_s: float) -> str:
        num_held = self._resources.num_held_blocks()[holder.run_id]
        return f"{num_held} by run {holder.run_id} of {holder.program}, silent for {now_s - holder.idle_since_s:.3g} s"

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
