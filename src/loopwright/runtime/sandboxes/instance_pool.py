"""Makes instances before a run needs one, and closes used ones, on a thread of its own.

Never starts a program of a user. Used by the Wasm sandbox, so that no launch waits for an instantiation or a clean-up.
"""

import logging
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread

from wasmtime import WasmtimeError

from loopwright.runtime.sandboxes.fibers import ParkedInstance

_log = logging.getLogger(__name__)


class InstancePool:
    """At most `max_parked` instances wait here for their run. `take` and `discard` on one thread.

    It begins with `min_parked` and has twice as many each time that a run finds none: an instance is 15 MB of mapped
    snapshot, which counts as resident though all of them share it.

    `make` instantiates; `warm` has an instance write the pages that most programs write, which is most of what their
    first calls cost. Warming costs as much CPU as it saves, but not on the caller's thread: it is done whenever this
    one has nothing else to do, so that in a burst the two share the work."""

    def __init__(
        self,
        make: Callable[[], ParkedInstance],
        warm: Callable[[ParkedInstance], ParkedInstance],
        max_parked: int,
        min_parked: int = 2,
    ) -> None:
        self._make = make
        self._warm = warm
        self._parked: deque[ParkedInstance] = deque()
        self._warmed: deque[ParkedInstance] = deque()
        self._num_wanted = 0  # asked of the thread and not made yet
        self._num_warming = 0  # in the thread's hands
        self._max_parked = max_parked
        self._num_kept = min(min_parked, max_parked)
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._serve, name="loopwright-instances", daemon=True)
        self._thread.start()
        self._refill()

    def take(self) -> ParkedInstance:
        """A parked instance, or one made now. Raises WasmtimeError when the machine has no room for one."""
        for waiting in (self._warmed, self._parked):
            try:
                return waiting.popleft()
            except IndexError:  # none, or the thread took the last one to warm it
                continue
        self._num_kept = min(2 * self._num_kept, self._max_parked)
        self._refill()
        return self._make()

    def discard(self, instance: ParkedInstance) -> None:
        """Closes an instance that has served, and makes the next one: not before, so that no launch shares the
        machine with the making of its successor."""
        self._work.put(instance.close)
        self._refill()

    @property
    def num_parked(self) -> int:
        """Instances that wait for a run."""
        return len(self._parked) + len(self._warmed) + self._num_warming

    @property
    def num_warmed(self) -> int:
        """Of these, those that are warm."""
        return len(self._warmed)

    def check_integrity(self) -> None:
        """No more instances wait or are being made than may be."""
        assert self._num_wanted >= 0
        assert self._num_kept <= self._max_parked
        assert self.num_parked + self._num_wanted <= self._max_parked + 1  # + 1: handed over, and counted twice

    def close(self) -> None:
        """Ends the thread when its work is done, and closes what is parked."""
        self._work.put(None)
        self._thread.join()
        for instance in (*self._parked, *self._warmed):
            instance.close()

    def _refill(self) -> None:
        while self.num_parked + self._num_wanted < self._num_kept:
            self._num_wanted += 1
            self._work.put(self._park)

    def _park(self) -> None:
        try:
            self._parked.append(self._make())
        except WasmtimeError as error:
            _log.warning("cannot park an instance: %s", error)  # the next run makes its own, and fails if it cannot
        finally:
            self._num_wanted -= 1

    def _serve(self) -> None:
        while True:
            try:
                work = self._work.get(block=not self._parked)
            except Empty:
                self._warm_one()
                continue
            if work is None:
                return
            try:
                work()
            except Exception:  # noqa: BLE001 (this thread serves all runs: what fails for one must not end it)
                _log.exception("an instance could not be made or closed")

    def _warm_one(self) -> None:
        try:
            instance = self._parked.popleft()
        except IndexError:  # a launch took the last one
            return
        self._num_warming = 1
        try:
            self._warmed.append(self._warm(instance))
        except Exception:  # noqa: BLE001 (as in `_serve`; nobody runs in an instance of which that is known)
            _log.exception("an instance could not be warmed")
            instance.close()
        finally:
            self._num_warming = 0
