"""Owns what "now" means. Never sleeps. Given to every object that measures or limits time, so that tests decide it."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of monotonic and of wall time, both in seconds."""

    def now_s(self) -> float: ...

    def wall_s(self) -> float: ...


class SystemClock:
    """The machine's clock."""

    def now_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()


class FakeClock:
    """A clock that moves only when told to; for tests."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return self._now_s

    def advance(self, seconds_s: float) -> None:
        self._now_s += seconds_s
