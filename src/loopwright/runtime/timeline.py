"""Where one run's time went: at each moment it is in one phase, so that phases add up to the whole. Reads no clock.

Fed by the run's observation with the times of what happened, in any order; asked once, when the run is over.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Phase: TypeAlias = Literal["decode", "prefill", "queue", "unfinished", "program", "tool", "wait"]

PHASE_MEANINGS: dict[Phase, str] = {
    "decode": "a segment samples tokens",
    "prefill": "a call runs, and has no token yet",
    "queue": "a call waits for its first step, or the run for its launch",
    "unfinished": "a call was with control when the run ended, and nothing is known of how far it was",
    "program": "the program computes, or waits for its turn to",
    "tool": "it waits for a tool or an HTTP exchange",
    "wait": "it waits for its client, for other runs, or for time to pass",
}
"""Of several at a time the first counts. The engine's come before the program's: what a program computes while its
tokens are made costs the run no time."""

PHASES: tuple[Phase, ...] = tuple(PHASE_MEANINGS)
_RANKS = {phase: rank for rank, phase in enumerate(PHASES)}

MAX_SPANS = 128
"""Stretches that are told one by one. Those after them are told together, one for each phase."""

MAX_PENDING = 256
"""Of moments that are not settled: so few that settling them holds nobody up."""


@dataclass(slots=True)
class Stretch:
    """Time in one phase. `count` > 1: so many stretches told as one, which began with the first and took `seconds`."""

    phase: Phase
    start_s: float
    seconds: float
    count: int = 1


class Timeline:
    """From `start_s` on. `base` is the phase of a moment of which nobody said anything."""

    def __init__(self, start_s: float, base: Phase) -> None:
        self.start_s = start_s
        self._base = base
        self._settled_s = start_s  # up to here phases are decided
        self._pending: list[tuple[int, float, float]] = []  # rank, start, end
        self._full_at = MAX_PENDING
        self._single: list[Stretch] = []
        self._merged: dict[Phase, Stretch] = {}

    def add(self, phase: Phase, start_s: float, end_s: float) -> None:
        """Says that something of that phase went on from here to there."""
        if end_s > start_s:
            self._pending.append((_RANKS[phase], start_s, end_s))

    @property
    def is_full(self) -> bool:
        """Whether it is time to `settle`."""
        return len(self._pending) > self._full_at

    def settle(self, until_s: float) -> None:
        """Decides the phases of all moments before; nothing is added there any more."""
        events: list[tuple[float, int, int]] = []
        later: list[tuple[int, float, float]] = []
        for rank, start_s, end_s in self._pending:
            if end_s > until_s:
                later.append((rank, max(start_s, until_s), end_s))
            start_s, end_s = max(start_s, self._settled_s), min(end_s, until_s)
            if end_s > start_s:
                events += ((start_s, rank, 1), (end_s, rank, -1))
        events.sort()
        counts = [0] * len(PHASES)
        present = 0  # a bit for each rank that counts
        for at_s, rank, change in [*events, (until_s, 0, 0)]:
            first = (present & -present).bit_length() - 1
            self._append(PHASES[first] if present else self._base, at_s)
            counts[rank] += change
            present = present | 1 << rank if counts[rank] else present & ~(1 << rank)
        self._pending = later
        self._full_at = max(MAX_PENDING, 2 * len(later))  # while something goes on for long, what is behind it stays

    def stretches(self) -> Sequence[Stretch]:
        """All of it, as far as it is settled, in order."""
        return [*self._single, *self._merged.values()]

    def totals(self) -> dict[Phase, float]:
        """Seconds by phase; they add up to what is settled."""
        totals: dict[Phase, float] = {}
        for one in self.stretches():
            totals[one.phase] = totals.get(one.phase, 0.0) + one.seconds
        return totals

    def _append(self, phase: Phase, until_s: float) -> None:
        seconds = until_s - self._settled_s
        if seconds <= 0:
            return
        last = self._single[-1] if self._single else None
        if phase in self._merged:
            self._merged[phase].seconds += seconds
            self._merged[phase].count += 1
        elif last is not None and last.phase == phase and not self._merged:
            last.seconds += seconds
        elif len(self._single) < MAX_SPANS:
            self._single.append(Stretch(phase, self._settled_s, seconds))
        else:
            self._merged[phase] = Stretch(phase, self._settled_s, seconds)
        self._settled_s = until_s
