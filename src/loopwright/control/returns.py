"""How long a step waits for programs that have just been answered and are choosing a token. Never waits itself, and
reads no clock.

Programs that make a call for each token are answered by the same step, and are back one after the other. A step for the
first of them costs nearly what one for all of them costs, and all others have to wait for its end. Asked by the
controller before it has a step formed.
"""

from collections.abc import Iterable, Mapping
from statistics import median

from loopwright.control.feeds import Feed
from loopwright.control.ordering import OpenCall
from loopwright.control.segments import SegmentFeed
from loopwright.control.session import InlineSession
from loopwright.core.ids import RunId

NUM_QUICK = 2
"""So many times in a row a run must have been back soon enough before a step waits for it."""

MAX_STEPS = 4.0
"""How many steps of the last ones' length a step waits at most."""

MAX_HOLD_S = 0.1

STRAGGLING = 3.0
"""Who takes so many times as long as the one in the middle is not waited for, unless that is within a step's time."""

SURE_SHARE = 0.8
"""If all are back within this part of a step's time, nothing can be gained by not waiting: that takes two steps."""

WINDOW = 8
"""Tokens of each run after which it is looked at whether waiting is right."""

MIN_PATIENCE, MAX_PATIENCE = 2, 64
"""Windows after which the other way is tried: at first, and when it was the worse one again and again."""


class Returns:
    """Runs that have no open call since a step answered one. A step waits for those that were quick the last times.

    Where they take as long as a step, or longer, half of them might better compute while the others choose. Which is
    better is tried: tokens a second, together and apart."""

    def __init__(self) -> None:
        self._steps_s = (0.0, 0.0)  # how long the last two steps took
        self._awaited: set[InlineSession] = set()
        self._told_s = 0.0  # when the last of them was answered
        self._delays_s: list[float] = []  # of those that came back since the last step was over
        self._middle_s = 0.0  # of the one in the middle, the last time
        self._limit_s = 0.0  # how soon a run has to be back to be waited for
        self._is_together, self._is_trying = True, False
        self._rates: dict[bool, float] = {}  # tokens a second, by that
        self._patience, self._num_windows = MIN_PATIENCE, 0
        self._over_s = self._began_s = 0.0  # the last step; the window
        self._num_told, self._seen = 0, set[InlineSession]()  # in it

    @property
    def are_awaited(self) -> bool:
        """Whether somebody is, as far as is known."""
        return bool(self._awaited)

    def step_over(self, taken_s: float, now_s: float) -> None:
        """A step is over, and answers its calls now."""
        usual_s, self._steps_s = min(self._steps_s), (self._steps_s[1], taken_s)
        pause_s, self._over_s = now_s - self._over_s - taken_s, now_s
        if self._delays_s:
            self._middle_s = median(self._delays_s)
            self._delays_s.clear()
        step_s = min(self._steps_s)
        self._limit_s = min(max(step_s, STRAGGLING * self._middle_s), MAX_STEPS * step_s, MAX_HOLD_S)
        if max(taken_s, pause_s) > 2 * MAX_STEPS * usual_s:  # a long prompt, or nobody was there: that says nothing
            self._begin_window(now_s)
        elif self._num_told >= WINDOW * max(len(self._seen), 1):
            self._judge(self._num_told / max(now_s - self._began_s, 1e-9), now_s)

    def told(self, session: InlineSession, now_s: float) -> None:
        """The step has answered the only open call of the run."""
        session.told_s = self._told_s = now_s
        self._num_told += 1
        self._seen.add(session)
        if session.num_quick >= NUM_QUICK:
            self._awaited.add(session)

    def called(self, session: InlineSession, now_s: float) -> None:
        """The run makes a call."""
        if session.told_s is None:
            return
        delay_s = now_s - session.told_s
        self._delays_s.append(delay_s)
        session.num_quick = session.num_quick + 1 if delay_s <= self._limit_s else 0
        session.told_s = None
        self._awaited.discard(session)

    def gone(self, session: InlineSession) -> None:
        """The run is over."""
        self._awaited.discard(session)
        self._seen.discard(session)

    def will_hold(self, calls: Iterable[OpenCall], session_of: Mapping[RunId, InlineSession]) -> bool:
        """Whether a step will wait for these calls' runs, which have run, and are not answered yet."""
        return self._is_together and any(
            isinstance(call.work, Feed)
            and not isinstance(call.work, SegmentFeed)
            and (session := session_of.get(call.run_id)) is not None
            and session.num_quick >= NUM_QUICK
            for call in calls
        )

    def hold_s(self, now_s: float) -> float:
        """For how many seconds the next step should wait; 0.0 is not at all."""
        if not self._awaited or not self._is_together:
            return 0.0
        left_s = self._told_s + self._limit_s - now_s
        if left_s <= 0:
            self._awaited.clear()
        return max(left_s, 0.0)

    def _judge(self, rate: float, now_s: float) -> None:
        """A window is over, with so many tokens a second."""
        self._rates[self._is_together] = rate
        self._num_windows += 1
        if self._is_trying:
            is_better = rate > self._rates[not self._is_together]
            self._patience = MIN_PATIENCE if is_better else min(2 * self._patience, MAX_PATIENCE)
            self._turn(is_together=self._is_together == is_better, is_trying=False)
        elif self._is_together and len(self._seen) / rate <= (1 + SURE_SHARE) * min(self._steps_s):
            self._num_windows = 0
        elif self._num_windows >= self._patience:
            self._turn(is_together=not self._is_together, is_trying=True)
        self._begin_window(now_s)

    def _turn(self, *, is_together: bool, is_trying: bool) -> None:
        self._is_together, self._is_trying, self._num_windows = is_together, is_trying, 0
        if not is_together:
            self._awaited.clear()

    def _begin_window(self, now_s: float) -> None:
        self._began_s, self._num_told = now_s, 0
        self._seen.clear()
