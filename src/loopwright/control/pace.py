"""How many tokens of prompts a step may have beside rows that decode, so that nobody waits long for the next token.

Never measures and never cuts: the controller says how long steps took, the scheduler asks. What steps took is known by
their size in tiles, for it grows by no rule: up to some hundreds of tokens a step may take what its launches take.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

NUM_KEPT = 5
"""Of each size, and without prompts, the last steps, whose median counts."""

MIN_MEASURED = 128
"""Tokens of prompts in a step that tells something."""

FIRST_ROOM = 512
"""Tokens of prompts while nothing is known; less is only for what is known to take too long otherwise."""

MIN_ROOM = 256
"""And what they get in any case: those who wait for their first token come forward too."""

TILE = 128
"""Matrix products are of so many tokens; a last one that is not full takes as long."""

MAX_AGE = 256
"""After so many further steps with prompts a size is forgotten."""

MAX_DOUBT = 16
"""And after so many one that took too long is tried again: something else may have held it up. Twice as many if it was
tried again in vain, and so on."""

WASTE = 1.5
"""A size whose tokens take so many times as long as those of a smaller one is not worth having: beyond what is captured
as a graph, launches are what a step takes."""

JUMP = 1.5
"""If those of the next known size take so many times as long, there is such an edge between the two."""

SLACK = 0.1
"""Where MIN_ROOM takes longer than the limit, what takes so little more is as good as free."""


class _Size(NamedTuple):
    taken_s: deque[float]
    noted_at: int  # of the last one, in steps


class Pace:
    """What steps with prompts took, by how many tiles of tokens they had, rows of one token among them."""

    def __init__(self) -> None:
        self._plain_s: deque[float] = deque(maxlen=NUM_KEPT)  # of steps without
        self._sizes: dict[int, _Size] = {}
        self._num_noted = 0  # steps

    def note(self, num_single: int, num_prompt: int, taken_s: float) -> None:
        """A step of so many rows of one token, and so many tokens of longer rows, took so long."""
        if num_single and not num_prompt:
            self._plain_s.append(taken_s)
        if num_prompt < MIN_MEASURED:
            return
        self._num_noted += 1
        size = -(-(num_single + num_prompt) // TILE)
        kept = self._sizes.pop(size).taken_s if size in self._sizes else deque[float](maxlen=NUM_KEPT)
        kept.append(taken_s)
        self._sizes[size] = _Size(kept, self._num_noted)  # the last one: they are by when they were noted
        oldest = next(iter(self._sizes))
        if self._num_noted - self._sizes[oldest].noted_at > MAX_AGE:
            del self._sizes[oldest]

    def room(self, num_single: int, limit_s: float) -> int:
        """Tokens of prompts for a step of so many rows of one token that is to take `limit_s` at most."""
        if not self._sizes:
            return FIRST_ROOM
        known = {size: median(one.taken_s) for size, one in self._sizes.items()}
        known[0] = median(self._plain_s) if self._plain_s else 0.0
        # So many there are in any case. No larger step is shorter: a size that something held up does not count.
        least = -(-(num_single + MIN_ROOM) // TILE)
        least_s = min((taken_s for size, taken_s in known.items() if size >= least), default=0.0)
        if least in known:
            limit_s = max(limit_s, (1 + SLACK) * least_s)
        best = _best([(size, taken_s) for size, taken_s in known.items() if taken_s <= limit_s], least)
        more = self._num_more(known, best, limit_s - known[best], (num_single + FIRST_ROOM) // TILE)
        return max(MIN_ROOM, (best + more) * TILE - num_single)

    def _num_more(self, known: dict[int, float], best: int, left_s: float, usual: int) -> int:
        """Tiles that fit beside the best that is known to, by what other sizes take. Where they say none, one more if
        the last one took no time, or up to `usual` if nothing tells what it took: launches may hide some."""
        larger = min((one for one in self._sizes if one > best and self._is_believed(one)), default=0)
        if larger and best and known[larger] * best > JUMP * known[best] * larger:
            return int(larger > best + 1)  # by one tile at a time: what is tried beyond the edge is lost
        if larger:
            return max(0, int((larger - best) * left_s / (known[larger] - known[best])))
        if best == 0:
            return 0
        fitting = int(best * left_s / max(known[best] - known[0], 1e-6))
        smaller = max((one for one in self._sizes if one < best), default=0)
        is_free = known[best] - known[smaller] < left_s * (best - smaller) if smaller else best < usual
        return max(min(fitting, best), int(is_free))

    def _is_believed(self, size: int) -> bool:
        """Whether what a size took counts though it is more than fits."""
        taken_s, noted_at = self._sizes[size]
        return self._num_noted - noted_at <= MAX_DOUBT << (len(taken_s) - 1)


def _best(fitting: Sequence[tuple[int, float]], least: int) -> int:
    """The largest of the sizes, given with what they took, or one from `least` on whose tokens take clearly less; 0 if
    there is none."""
    largest, largest_s = max(fitting, default=(0, 0.0))
    cheapest, cheapest_s = min(
        (one for one in fitting if least <= one[0]), key=lambda one: one[1] / one[0], default=(0, 0.0)
    )
    is_waste = cheapest and largest_s * cheapest > WASTE * cheapest_s * largest
    return cheapest if is_waste else largest
