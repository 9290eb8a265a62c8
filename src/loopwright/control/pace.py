"""How many tokens of prompts a step may have beside rows that decode, so that nobody waits long for the next token.

Never measures and never cuts: the controller says how long steps took, the scheduler asks. A step with prompts takes as
long as one without, and so much more for each of their tokens; both are medians of the last steps.
"""

from collections import deque
from statistics import median

NUM_KEPT = 9
"""Of each kind, the last steps, whose median counts."""

MIN_MEASURED = 128
"""Tokens of prompts in a step from which what one takes can be told."""

FIRST_ROOM = 512
"""Tokens of prompts while nothing is known."""

MIN_ROOM = 256
"""And what they get in any case: those who wait for their first token come forward too."""

TILE = 128
"""Matrix products are of so many tokens; a last one that is not full takes as long."""


class Pace:
    """What steps take, by how many rows of one token and how many tokens of prompts they have."""

    def __init__(self) -> None:
        self._plain_s: dict[int, deque[float]] = {}  # of steps without prompts, by the power of two of their rows
        self._token_s: deque[float] = deque(maxlen=NUM_KEPT)  # what a token of a prompt takes

    def note(self, num_single: int, num_prompt: int, taken_s: float) -> None:
        """A step of so many rows of one token, and so many tokens of longer rows, took so long."""
        if num_prompt >= MIN_MEASURED:
            self._token_s.append(max(0.0, taken_s - self._of_rows(num_single)) / num_prompt)
        elif num_single and not num_prompt:
            self._plain_s.setdefault(num_single.bit_length(), deque(maxlen=NUM_KEPT)).append(taken_s)

    def room(self, num_single: int, limit_s: float) -> int:
        """Tokens of prompts for a step of so many rows of one token that is to take `limit_s` at most."""
        if not self._token_s:
            return FIRST_ROOM
        left_s, token_s = limit_s - self._of_rows(num_single), median(self._token_s)
        if token_s <= 0:
            return FIRST_ROOM if left_s > 0 else MIN_ROOM
        fitting = int(left_s / token_s)
        return max(MIN_ROOM, fitting - (num_single + fitting) % TILE)

    def _of_rows(self, num_single: int) -> float:
        """Seconds of a step without prompts: of the next size that ran, or the largest that did."""
        if not num_single or not self._plain_s:
            return 0.0
        size = num_single.bit_length()
        known = min((one for one in self._plain_s if one >= size), default=max(self._plain_s))
        return median(self._plain_s[known])
