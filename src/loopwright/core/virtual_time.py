"""An asyncio loop whose time passes only when nobody has anything to do, and then at once. Never sleeps by itself.

Used where thousands of programs on a simulated device are to be studied in seconds, and by tests of what waits.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from loopwright.core.clock import Clock

T = TypeVar("T")


def run_in_virtual_time(main: Callable[[Clock], Coroutine[Any, Any, T]]) -> T:
    """Runs `main` to its end, with the loop's clock, which starts at 0. For a thread without a running loop.

    A task that waits for another thread does so in real time, and no time passes meanwhile."""
    loop = VirtualTimeLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(LoopClock(loop)))


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Where another loop sleeps until its next timer, this one sets its time to it."""

    def __init__(self) -> None:
        super().__init__(_JumpingSelector(self))
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s


class LoopClock:
    """The time of an event loop. Implements `core.clock.Clock`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_s(self) -> float:
        return self._loop.time()

    def wall_s(self) -> float:
        return self._loop.time()


class _JumpingSelector(selectors.DefaultSelector):
    """Looks at the sockets, and does not wait for them if the loop has a timer."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not timeout:
            return super().select(timeout)
        found = super().select(0)
        if not found:
            self._loop.now_s += timeout
        return found
