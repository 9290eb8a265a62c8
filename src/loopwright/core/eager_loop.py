"""An event loop that can look for its input for a while instead of sleeping until there is some. Never decides when.

Made by compose for worker processes where there are cores to spare. A thread that sleeps is awake 50 to 100 us after
its input has come, and finds its caches full of somebody else's: beside steps of a millisecond that is much.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from selectors import DefaultSelector, SelectorKey

NAP_S = 20e-6
"""Between two looks, so that other threads of the process have their turn: the system makes about 70 us of it."""


class EagerSelector(DefaultSelector):
    """Looks until `until_s` of the monotonic clock, with naps in between, and sleeps from then on."""

    def __init__(self) -> None:
        super().__init__()
        self.until_s = 0.0
        self.num_looks = 0  # that found nothing

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if not self.until_s or (timeout is not None and timeout <= 0):
            return super().select(timeout)
        began_s = now_s = time.monotonic()
        end_s = self.until_s if timeout is None else min(self.until_s, began_s + timeout)
        while now_s < end_s:
            if found := super().select(0):
                return found
            self.num_looks += 1
            time.sleep(NAP_S)
            now_s = time.monotonic()
        if now_s >= self.until_s:
            self.until_s = 0.0
        return super().select(None if timeout is None else max(timeout - (now_s - began_s), 0.0))


class EagerLoop(asyncio.SelectorEventLoop):
    """asyncio's, with such a selector."""

    def __init__(self) -> None:
        self.selector = EagerSelector()
        super().__init__(self.selector)

    def look_for(self, seconds: float) -> None:
        """Input is expected within so many seconds."""
        self.selector.until_s = time.monotonic() + seconds

    def look_no_more(self) -> None:
        """What was expected is here."""
        self.selector.until_s = 0.0


@contextmanager
def looking(seconds: float) -> Iterator[None]:
    """Has the running loop look for input, if it can, within the block and for so long."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, EagerLoop):
        yield
        return
    loop.look_for(seconds)
    try:
        yield
    finally:
        loop.look_no_more()


class Expecting:
    """Has the running loop look for answers, if it can, as long as they come within `limit_s`. One that takes longer is
    waited for asleep, and so are the next ones, until one was there in time."""

    def __init__(self, limit_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop if isinstance(loop, EagerLoop) else None
        self._limit_s = limit_s
        self._asked_s = 0.0  # last; 0.0 once that is answered
        self._is_soon = False

    def asked(self) -> None:
        """There is something to wait for."""
        if self._loop is not None:
            self._asked_s = time.monotonic()
            if self._is_soon:
                self._loop.look_for(self._limit_s)

    def answered(self) -> None:
        """Something of it has come."""
        if self._loop is not None and self._asked_s:
            self._is_soon = time.monotonic() - self._asked_s <= self._limit_s
            self._asked_s = 0.0
            self._loop.look_no_more()
