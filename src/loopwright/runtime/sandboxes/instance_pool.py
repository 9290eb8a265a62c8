"""Makes instances before a run needs one, and closes used ones, on a thread of its own.

Never starts a program of a user. Used by the Wasm sandbox, so that no launch waits for an instantiation or a clean-up.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread

from loopwright.runtime.sandboxes.fibers import ParkedInstance

_log = logging.getLogger(__name__)


QUIET_S = 60.0
"""Far longer than the pauses of a server that works."""


class InstancePool:
    """Instances that wait for their run: at most `max_parked` warm ones, and twice as many plain ones. `take` and
    `discard` on one thread.

    `make` instantiates; `warm` has an instance write the pages that most programs write, which is most of what their
    first calls cost. Two warm ones wait at first, and then twice as many as have ever been taken without a pause: one
    is 15 MB of mapped snapshot, which counts as resident though all of them share it. A plain one is 0.4 MB.

    What was taken is made again when `is_idle`: as long as runs are live they may need the processors. Of a kind of
    which less than half is left more are made at once. When nobody has come for `quiet_s`, half of those that a burst
    had made are closed, and so on down to what waits at first."""

    def __init__(
        self,
        make: Callable[[], ParkedInstance],
        warm: Callable[[ParkedInstance], ParkedInstance],
        max_parked: int,
        is_idle: Callable[[], bool] = lambda: True,
        quiet_s: float = QUIET_S,
    ) -> None:
        self._make = make
        self._warm = warm
        self._is_idle = is_idle
        self._quiet_s = quiet_s
        self._warmed = _Stock(min(2, max_parked), max_parked)
        self._plain = _Stock(0, 2 * max_parked)
        self._has_failed = False  # then it waits for somebody to come before it tries again
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._serve, name="loopwright-instances", daemon=True)
        self._thread.start()

    def take(self, *, warm: bool = True) -> ParkedInstance:
        """A parked instance, of the other kind if there is none of this, or one made now. Raises WasmtimeError when the
        machine has no room for one."""
        first, second = (self._warmed, self._plain) if warm else (self._plain, self._warmed)
        found = first.take()
        if found is None:
            found = second.take()
        self._has_failed = False
        if self._missing() is not None:
            self._work.put(_look)
        return self._make() if found is None else found

    def discard(self, instance: ParkedInstance) -> None:
        """Closes an instance that has served, before it makes the next one."""
        self._has_failed = False
        self._work.put(instance.close)

    @property
    def num_plain(self) -> int:
        """Instances that wait for a run and have done nothing."""
        return len(self._plain.waiting)

    @property
    def num_warmed(self) -> int:
        """Those that wait and are warm."""
        return len(self._warmed.waiting)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be made now."""
        return self._missing() is None

    def check_integrity(self) -> None:
        """No more instances wait than may."""
        for stock in (self._warmed, self._plain):
            assert len(stock.waiting) <= stock.num_kept <= stock.max_kept

    def close(self) -> None:
        """Ends the thread when its work is done, and closes what is parked."""
        self._work.put(None)
        self._thread.join()
        for instance in (*self._plain.waiting, *self._warmed.waiting):
            instance.close()

    def _missing(self) -> "_Stock | None":
        """Of what one more is to be made now. Plain ones first: in a burst a warm one is too long in the making."""
        if self._has_failed:
            return None
        is_idle = self._is_idle()
        for stock in (self._plain, self._warmed):
            if stock.is_low or (is_idle and stock.num_missing):
                return stock
        return None

    def _serve(self) -> None:
        while True:
            is_settled = self.is_settled
            is_quiet = is_settled and self._is_idle()
            if is_quiet:
                self._warmed.num_taken = self._plain.num_taken = 0
            has_more = is_quiet and (self._warmed.has_more or self._plain.has_more)
            try:
                work = self._work.get(block=is_settled, timeout=self._quiet_s if has_more else None)
            except Empty:
                if is_settled:
                    self._give_back()
                else:
                    self._park_one()
                continue
            if work is None:
                return
            try:
                work()
            except Exception:  # noqa: BLE001 (this thread serves all runs: what fails for one must not end it)
                _log.exception("an instance could not be closed")

    def _give_back(self) -> None:
        if self._is_idle():
            for instance in (*self._warmed.halve(), *self._plain.halve()):
                instance.close()

    def _park_one(self) -> None:
        stock = self._missing()
        if stock is None:  # somebody has come meanwhile
            return
        try:
            instance = self._make()
        except Exception as error:  # noqa: BLE001 (this thread serves all runs; the next one makes its own, or fails)
            _log.warning("cannot park an instance: %s", error)
            self._has_failed = True
            return
        if stock is self._warmed:
            try:
                instance = self._warm(instance)
            except Exception:  # noqa: BLE001 (as in `_serve`; nobody runs in an instance of which that is known)
                _log.exception("an instance could not be warmed")
                instance.close()
                self._has_failed = True
                return
        stock.waiting.append(instance)


class _Stock:
    """Instances of one kind that wait for their run, and how many are to."""

    def __init__(self, num_kept: int, max_kept: int) -> None:
        self.waiting: deque[ParkedInstance] = deque()
        self.num_kept = self._least_kept = num_kept
        self.max_kept = max_kept
        self.num_taken = 0  # since the last pause

    def take(self) -> ParkedInstance | None:
        """One of them, if there is one."""
        self.num_taken += 1
        self.num_kept = min(max(self.num_kept, 2 * self.num_taken), self.max_kept)
        return self.waiting.popleft() if self.waiting else None

    @property
    def has_more(self) -> bool:
        """Whether more wait than at first, because of a burst."""
        return self.num_kept > self._least_kept

    def halve(self) -> list[ParkedInstance]:
        """Keeps half as many from now on; those that are too many. `take` may be under way on its thread."""
        num_kept, surplus = max(self._least_kept, self.num_kept // 2), list[ParkedInstance]()
        while len(self.waiting) > num_kept:
            with suppress(IndexError):
                surplus.append(self.waiting.pop())
        self.num_kept = num_kept
        return surplus

    @property
    def num_missing(self) -> int:
        return self.num_kept - len(self.waiting)

    @property
    def is_low(self) -> bool:
        return 2 * len(self.waiting) < self.num_kept


def _look() -> None:
    """Work that is to have the thread see what is missing."""
