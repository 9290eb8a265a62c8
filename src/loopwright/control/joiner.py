"""Puts calls into a step that wait for nobody but calls of that step. Never has one run that could not run by itself.

Called by the scheduler when all that waits for nobody has its place. Who may share a step is `joining`'s to say.
"""

from collections import deque
from collections.abc import Mapping
from itertools import chain

from loopwright.control.feeds import Feed
from loopwright.control.joining import Joining
from loopwright.control.ordering import AnyResource, OpenCall
from loopwright.control.reads import check_reads
from loopwright.control.resource_manager import ResourceManager
from loopwright.control.step import Step
from loopwright.core.errors import LoopwrightError


class Joiner:
    """For steps of `max_rows` rows of one token, and `max_tokens` tokens in all."""

    def __init__(self, resources: ResourceManager, max_rows: int, max_tokens: int) -> None:
        self._resources = resources
        self._max_rows, self._max_tokens = max_rows, max_tokens

    def join(self, step: Step, num_decoding: int, now_s: float) -> int:
        """Adds what may run in the step with what it waits for. How many rows these are, the last ones of the step."""
        calls = chain(step.copies, step.shifts, step.embeds, step.rows, step.heads)
        frontier = deque([call for call in calls if call.dependents and call.restoring is None])
        if not frontier:
            return 0
        num_before, joining = len(step.rows), Joining(self._resources.shape.block_size)
        while frontier:
            for call in joining.freed_by(frontier.popleft()):
                if self._join(call, step, num_decoding, joining.promised):
                    call.started_s = now_s
                    step.joined.append(call)
                    if call.dependents:
                        frontier.append(call)
        return len(step.rows) - num_before

    def _join(self, call: OpenCall, step: Step, num_decoding: int, promised: Mapping[AnyResource, int]) -> bool:
        """Whether the call is in the step now. One that cannot run keeps its turn, and is refused then."""
        feed = call.work
        if not isinstance(feed, Feed):
            taken = step.light_list(call)
            if taken is None or len(taken) == self._max_rows or step.is_copied_from(call):
                return False
            if not self._secure(call, promised):
                return False
            taken.append(call)
            return True
        budget = self._max_tokens - num_decoding - sum(row.num_tokens for row in step.batch_rows)
        if feed.num_left == 1 and step.num_rows >= self._max_rows:
            return False
        if budget <= 0 or (feed.num_left > budget and not feed.is_chunkable) or not self._secure(call, promised):
            return False
        step.rows.append(call)
        step.batch_rows.append(feed.next_row(budget))
        return True

    def _secure(self, call: OpenCall, promised: Mapping[AnyResource, int]) -> bool:
        if not self._resources.can_join(call):
            return False
        try:
            check_reads(call, self._resources.shape.block_size, promised)
            call.is_started = self._resources.secure(call)
        except LoopwrightError:
            return False
        return call.is_started
