"""How long steps take by how much is in them, as the last ones were. Never measures: the controller does.

Tells what drafts cost: a program that guesses cannot know with how many others it shares its steps, nor what a token
more takes on this device.
"""

from bisect import insort
from collections import deque
from statistics import median

from loopwright.core.step_costs import StepCosts

MIN_STEP_S = 0.005
"""Of shorter steps too much is the host's, and changes with what else it does."""

NUM_KEPT = 9
"""Of each size, the last steps, whose median counts."""


class StepTimes:
    """Durations by size, where sizes between two powers of two are one."""

    def __init__(self) -> None:
        self._taken: dict[int, deque[tuple[int, float]]] = {}

    def note(self, num_tokens: int, taken_s: float) -> None:
        """A step of so many tokens, over all its rows, took so long."""
        if num_tokens:
            self._taken.setdefault(num_tokens.bit_length(), deque(maxlen=NUM_KEPT)).append((num_tokens, taken_s))

    def draft_cost(self, num_rows: int, num_drafts: int) -> float | None:
        """What `num_drafts` more in each of so many rows of one token take, in steps without them; None if that is not
        known. In each row, as if all did what one does: so it is for all of them together that drafts pay or not."""
        points = self._points()
        if len(points) < 2 or points[-1][1] < MIN_STEP_S:
            return None
        costs = StepCosts(tuple(points))
        plain_s = costs.rows_s(num_rows)
        return max(costs.rows_s(num_rows * (1 + num_drafts)) / plain_s - 1.0, 0.0) if plain_s > 0 else None

    def _points(self) -> list[tuple[int, float]]:
        """(tokens, seconds) by rising tokens, and with seconds that do not fall."""
        points: list[tuple[int, float]] = []
        for steps in self._taken.values():
            insort(points, (round(median(size for size, _ in steps)), median(taken_s for _, taken_s in steps)))
        longest_s = 0.0
        for place, (size, taken_s) in enumerate(points):
            longest_s = max(longest_s, taken_s)
            points[place] = (size, longest_s)
        return points
