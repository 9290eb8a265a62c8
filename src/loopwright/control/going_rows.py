"""Calls that go on from one another, each with a row that was made when the call came. Never admits one that needs a
block.

Part of the scheduler: such a call is in none of its lists while its program chooses, and comes back as it was.
"""

from loopwright.control.feeds import Feed
from loopwright.control.ordering import OpenCall
from loopwright.control.step import Step
from loopwright.core.batch import ForwardRow


class GoingRows:
    """Those that came for the next step, by arrival."""

    def __init__(self) -> None:
        self.calls: list[OpenCall] = []
        self._rows = list[ForwardRow]()  # theirs
        self.num_apart = 0  # calls of the last step that may be among those of the next

    def add(self, call: OpenCall, feed: Feed) -> bool:
        """Takes a call that came back, if it is apart and goes on as it did. Whether it did."""
        if not (call.is_apart and feed.is_going_on):
            return False
        self.calls.append(call)
        self._rows.append(feed.row_going_on())
        return True

    def take(self, step: Step, num_formed: int, now_s: float) -> None:
        """Has all of them in a step, of which they are the first rows."""
        assert not step.rows
        calls, rows = self.calls, self._rows
        self.calls, self._rows = [], []
        if any(call.is_over for call in calls):  # with its run
            rows = [row for call, row in zip(calls, rows, strict=True) if not call.is_over]
            calls = [call for call in calls if not call.is_over]
        for call in calls:
            call.served_at, call.is_started, call.started_s = num_formed, True, now_s
        step.rows, step.batch_rows, step.num_going = calls, rows, len(calls)
        self.num_apart = len(calls)

    def served(self, call: OpenCall, feed: Feed) -> bool:
        """Whether a call is apart from now on that had its row as any other: it is over with that row."""
        call.is_apart = feed.is_going_on
        self.num_apart += call.is_apart
        return call.is_apart

    def give_up(self) -> list[OpenCall]:
        """Those that came, to wait as any other."""
        calls, self.calls, self._rows = self.calls, [], []
        for call in calls:
            call.is_apart = False
        return [call for call in calls if not call.is_over]
