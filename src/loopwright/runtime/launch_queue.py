"""Whose program is launched next, and how many are before the programs that run get their turn. Never launches one.

A launch holds the event loop up for milliseconds, and a burst of them would hold up everybody who runs: so launches get
no more of the loop's time than all others together, or one launch if that is more. Used by the launcher.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from loopwright.core.clock import Clock


class LaunchQueue:
    """Launches wait here, first come, first served for each tenant, and the tenants take turns."""

    def __init__(self, clock: Clock, expect: Callable[[int], None] = lambda _: None) -> None:
        """`expect` is told how many launches are still to come, if there is more than one, and 0 at their end."""
        self._clock = clock
        self._expect = expect
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the tenant whose turn it is comes first
        self._is_serving = False
        self._began_s = 0.0  # when the last turn's launches began, and ended
        self._ended_s = 0.0

    async def turn(self, tenant: str) -> None:
        """Returns when a launch of this tenant may begin: at once when nobody else is launched in this turn of the
        event loop. The caller launches without waiting for anything first; the launch counts until its first wait."""
        loop = asyncio.get_running_loop()
        if not self._is_serving:
            self._is_serving = True
            loop.call_soon(self._start)
            return
        waiter = loop.create_future()
        self._waiting.setdefault(tenant, deque()).append(waiter)
        self._expect(self.num_waiting)
        await waiter

    @property
    def num_waiting(self) -> int:
        """Launches that wait, with those that were cancelled since the last turn."""
        return sum(len(waiting) for waiting in self._waiting.values())

    def _start(self) -> None:
        """Called in the turn after a launch that did not wait: from here on the others' time counts."""
        self._ended_s = self._clock.now_s()
        self._release(1)

    def _release(self, num_allowed: int) -> None:
        """Lets the next ones go. They launch in the loop's next turn, one after another with nothing between."""
        waiters: list[asyncio.Future[None]] = []
        while len(waiters) < num_allowed and (waiter := self._next()) is not None:
            waiters.append(waiter)
        self._expect(len(waiters) + self.num_waiting)
        if not waiters:
            self._is_serving = False
            return
        loop = asyncio.get_running_loop()
        loop.call_soon(self._begin)
        for waiter in waiters:
            waiter.set_result(None)
        loop.call_soon(self._end, len(waiters))

    def _begin(self) -> None:
        self._began_s = self._clock.now_s()

    def _end(self, num_launches: int) -> None:
        now_s = self._clock.now_s()
        others_s, launch_s = self._began_s - self._ended_s, (now_s - self._began_s) / num_launches
        self._ended_s = now_s
        self._release(max(1, int(others_s / launch_s)) if launch_s > 0 else 1)

    def _next(self) -> asyncio.Future[None] | None:
        """Takes the first one that still waits of the tenant whose turn it is."""
        while self._waiting:
            tenant = next(iter(self._waiting))
            waiting = self._waiting.pop(tenant)
            waiter = waiting.popleft()
            if waiting:
                self._waiting[tenant] = waiting  # at the end: the others come first now
            if not waiter.done():
                return waiter
        return None
