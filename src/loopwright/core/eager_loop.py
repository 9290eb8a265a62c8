"""An event loop that can look for its input for a while instead of sleeping until there is some. Never decides when.

Made by compose for worker processes on machines with cores to spare. A thread that sleeps is awake 50 to 100 us after its
input has come, and finds its caches full of somebody else's; beside steps of a millisecond that is much.
"""

import asyncio
import time
from selectors import DefaultSelector, SelectorKey


class EagerSelector(DefaultSelector):
    """Looks until `until_s` of the monotonic clock, with naps of `nap_s` in between, and sleeps from then on."""

    def __init__(self) -> None:
        super().__init__()
        self.until_s = 0.0
        self.nap_s = 0.0
        self.looked_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if not self.until_s or (timeout is not None and timeout <= 0):
            return super().select(timeout)
        began_s = now_s = time.monotonic()
        until_s = self.until_s if timeout is None else min(self.until_s, now_s + timeout)
        while now_s < until_s:
            if found := super().select(0):
                self.looked_s += time.monotonic() - began_s
                return found
            if self.nap_s:
                time.sleep(self.nap_s)
            now_s = time.monotonic()
        self.looked_s += now_s - began_s
        if now_s >= self.until_s:
            self.until_s = 0.0
        return super().select(None if timeout is None else max(timeout - (now_s - began_s), 0.0))


class EagerLoop(asyncio.SelectorEventLoop):
    """asyncio's, with such a selector."""

    def __init__(self) -> None:
        self._eager = EagerSelector()
        super().__init__(self._eager)

    def look_for(self, seconds: float, nap_s: float = 0.0) -> None:
        """Input is expected within so many seconds."""
        self._eager.until_s = time.monotonic() + seconds
        self._eager.nap_s = nap_s

    def look_no_more(self) -> None:
        """What was expected is here."""
        self._eager.until_s = 0.0
