"""Decides who gives up pages when others wait for some, and who goes on when there is room. Never touches a block.

Called by the controller around each step. A run that does nothing at the moment gives up its pages at once. Runs that
wait for pages themselves are suspended only when nothing can run: first the one that has had the most service, so that
the one that has had the least goes on. Nobody fails for what others hold, as long as something can be dropped.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from loopwright.control.ordering import OpenCall
from loopwright.control.resource_manager import ResourceManager
from loopwright.control.scheduler import Scheduler, Step
from loopwright.core.ids import RunId


class Suspension:
    """Knows each run's attained service: the tokens that it had run, but those to rebuild what it lost."""

    def __init__(self, resources: ResourceManager, scheduler: Scheduler) -> None:
        self._resources, self._scheduler = resources, scheduler
        self._served: Counter[RunId] = Counter()

    def count(self, step: Step) -> None:
        """Takes note of a step that is over."""
        for call, row in zip(step.rows, step.batch_rows, strict=True):
            if call.restoring is None:
                self._served[call.run_id] += row.num_tokens

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

    def drop_idle(self, open_calls: Mapping[RunId, Collection[OpenCall]]) -> bool:
        """Drops the pages of a run without open calls. Whether that freed a block."""
        idle = [run_id for run_id, calls in open_calls.items() if not calls]
        return any(self._resources.drop(run_id, ()) for run_id in sorted(idle, key=self._order))

    def make_room(self, open_calls: Mapping[RunId, Collection[OpenCall]]) -> bool:
        """When nothing can run: suspends a run for the sake of the least served, or lets a suspended one try."""
        waiting = self._scheduler.waiting()
        if not waiting:
            run_id = min(self._scheduler.suspended, key=self._served.__getitem__, default=None)
            if run_id is not None:
                self._scheduler.resume(run_id)
            return run_id is not None
        favoured = min(waiting, key=lambda call: (self._served[call.run_id], call.rank)).run_id
        for run_id in sorted({call.run_id for call in waiting} - {favoured}, key=self._order):
            if self._resources.drop(run_id, open_calls[run_id]):
                self._scheduler.suspend(run_id)
                return True
        return False

    def _order(self, run_id: RunId) -> tuple[int, RunId]:
        """Who gives up pages first."""
        return -self._served[run_id], run_id
