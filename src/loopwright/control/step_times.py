"""How long steps take by how much is in them, as the last ones were. Never measures: the controller does.

Tells what drafts cost: a program that guesses cannot know with how many others it shares its steps, nor what a token
more takes on this device.
"""

from bisect import insort
from collections import deque
from statistics import median
from typing import TypeAlias

from loopwright.core.step_costs import StepCosts

_Taken: TypeAlias = dict[int, deque[tuple[int, float]]]  # (tokens, seconds) by the number of bits of the tokens

MIN_STEP_S = 0.005
"""Of shorter steps too much is the host's, and changes with what else it does."""

NUM_KEPT = 9
"""Of each size, the last steps, whose median counts."""


class StepTimes:
    """Durations by size, where sizes between two powers of two are one.

    Steps of which half or more are drafts count apart: each of their tokens has logits, which a prompt's have not."""

    def __init__(self) -> None:
        self._plain: _Taken = {}
        self._judging: _Taken = {}
        self._has_judged = False  # whether the last step was of drafts

    def note(self, num_tokens: int, taken_s: float, num_drafts: int = 0, waited_s: float = 0.0) -> None:
        """A step of so many tokens, over all its rows, took so long, after the engine had waited so long for calls.

        Between two steps of drafts it waits for programs to guess again, which plain tokens need not: that is part of
        what drafts cost. Who needs longer for it than a step takes does something else as well."""
        if not num_tokens:
            return
        judges = 2 * num_drafts >= num_tokens
        if judges and self._has_judged and waited_s < taken_s:
            taken_s += waited_s
        self._has_judged = judges
        taken = self._judging if judges else self._plain
        taken.setdefault(num_tokens.bit_length(), deque(maxlen=NUM_KEPT)).append((num_tokens, taken_s))

    def draft_cost(self, num_rows: int, num_drafts: int) -> float | None:
        """What `num_drafts` more in each of so many rows of one token take, in steps without them; None if that is not
        known. In each row, as if all did what one does: so it is for all of them together that drafts pay or not."""
        plain, judging = _points(self._plain), _points(self._plain | self._judging)
        if len(plain) < 2 or judging[-1][1] < MIN_STEP_S:
            return None
        if plain[0][0] > num_rows * (1 + num_drafts):
            plain = judging  # prompts alone: a line through them says nothing of steps so narrow
        plain_s = StepCosts(plain).rows_s(num_rows)
        judging_s = StepCosts(judging).rows_s(num_rows * (1 + num_drafts))
        return max(judging_s / plain_s - 1.0, 0.0) if plain_s > 0 else None


def _points(taken: _Taken) -> tuple[tuple[int, float], ...]:
    """(tokens, seconds) by rising tokens, and with seconds that do not fall."""
    points: list[tuple[int, float]] = []
    for steps in taken.values():
        insort(points, (round(median(size for size, _ in steps)), median(taken_s for _, taken_s in steps)))
    longest_s = 0.0
    for place, (size, taken_s) in enumerate(points):
        longest_s = max(longest_s, taken_s)
        points[place] = (size, longest_s)
    return tuple(points)
