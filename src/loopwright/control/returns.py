"""How long a step waits for programs that have just been answered and are choosing a token. Never waits itself, and
reads no clock.

Programs that make a call for each token are answered by the same step, and are back one after the other. A step for the
first of them costs nearly what one for all of them costs, and all others have to wait for its end. Asked by the
controller before it has a step formed.
"""

import math
from collections.abc import Iterable, Mapping
from statistics import median

from loopwright.control.feeds import Feed
from loopwright.control.ordering import OpenCall
from loopwright.control.segments import SegmentFeed
from loopwright.control.session import InlineSession
from loopwright.core.ids import RunId

NUM_QUICK = 2
"""So many times in a row a run must have been back within a step's time before a step waits for it."""

MAX_HOLD_S = 0.1


class Returns:
    """Runs that have no open call since a step answered one. A step waits for those that were quick the last times, if
    all of them together will be back within the time of a step: if not, half of them better compute while the others
    choose."""

    def __init__(self) -> None:
        self._steps_s = (0.0, 0.0)  # how long the last two steps took
        self._awaited: set[InlineSession] = set()
        self._told_s = 0.0  # when the last of them was answered
        self._num_told = 0  # runs that the last step answered
        self._delays_s: list[float] = []  # of those that came back since
        self._each_s = math.inf  # what each run adds to the time until all are back

    @property
    def are_awaited(self) -> bool:
        """Whether somebody is, as far as is known."""
        return bool(self._awaited)

    def step_over(self, taken_s: float) -> None:
        """A step is over, and answers its calls now."""
        self._steps_s = (self._steps_s[1], taken_s)
        if self._num_told:
            missing = [math.inf] * (self._num_told - len(self._delays_s))
            delay_s = median([*self._delays_s, *missing])  # of the one in the middle; some may never come
            each_s = 2 * delay_s / (self._num_told + 1)
            self._each_s = each_s if math.isinf(self._each_s) else (self._each_s + each_s) / 2
            self._num_told = 0
        self._delays_s.clear()

    def told(self, session: InlineSession, now_s: float) -> None:
        """The step has answered the only open call of the run."""
        session.told_s = self._told_s = now_s
        self._num_told += 1
        if session.num_quick >= NUM_QUICK:
            self._awaited.add(session)

    def called(self, session: InlineSession, now_s: float) -> None:
        """The run makes a call."""
        if session.told_s is None:
            return
        delay_s = now_s - session.told_s
        if self._told_s == session.told_s:
            self._delays_s.append(delay_s)
        session.num_quick = session.num_quick + 1 if delay_s <= self._limit_s else 0
        session.told_s = None
        self._awaited.discard(session)

    def gone(self, session: InlineSession) -> None:
        """The run is over."""
        self._awaited.discard(session)

    def will_hold(self, calls: Iterable[OpenCall], session_of: Mapping[RunId, InlineSession], num_waiting: int) -> bool:
        """Whether a step will wait for these calls' runs, beside so many who wait already; they have run, and are not
        answered yet."""
        choosing = [call for call in calls if isinstance(call.work, Feed) and not isinstance(call.work, SegmentFeed)]
        sessions = [session_of[call.run_id] for call in choosing if call.run_id in session_of]
        num_quick = sum(session.num_quick >= NUM_QUICK for session in sessions)
        return num_quick > 0 and self._is_worth_it(num_quick + num_waiting)

    def hold_s(self, now_s: float, num_waiting: int) -> float:
        """For how many seconds the next step should wait, which so many wait for already; 0.0 is not at all."""
        if not self._awaited or not self._is_worth_it(len(self._awaited) + num_waiting):
            return 0.0
        left_s = self._told_s + self._limit_s - now_s
        if left_s <= 0:
            self._awaited.clear()
        return max(left_s, 0.0)

    @property
    def _limit_s(self) -> float:
        """How long a step waits at most."""
        return min(*self._steps_s, MAX_HOLD_S)

    def _is_worth_it(self, num_runs: int) -> bool:
        return self._each_s * num_runs <= self._limit_s
