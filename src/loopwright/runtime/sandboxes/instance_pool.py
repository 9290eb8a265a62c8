"""Makes instances before a run needs one, and closes used ones, on a thread of its own.

Never starts a program. Used by the Wasm sandbox, so that no launch waits for an instantiation or a clean-up.
"""

import logging
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from wasmtime import WasmtimeError

from loopwright.runtime.sandboxes.fibers import ParkedInstance

_log = logging.getLogger(__name__)


class InstancePool:
    """At most `max_parked` instances wait here for their run. `take` and `discard` on one thread."""

    def __init__(self, make: Callable[[], ParkedInstance], max_parked: int) -> None:
        self._make = make
        self._parked: deque[ParkedInstance] = deque()
        self._num_wanted = 0  # asked of the thread and not made yet
        self._max_parked = max_parked
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._serve, name="loopwright-instances", daemon=True)
        self._thread.start()
        self._refill()

    def take(self) -> ParkedInstance:
        """A parked instance, or one made now. Raises WasmtimeError when the machine has no room for one."""
        if self._parked:
            return self._parked.popleft()
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
        return len(self._parked)

    def check_integrity(self) -> None:
        """No more instances wait or are being made than may be."""
        assert self._num_wanted >= 0
        assert len(self._parked) + self._num_wanted <= self._max_parked + 1  # + 1: parked, and not yet counted as made

    def close(self) -> None:
        """Ends the thread when its work is done, and closes what is parked."""
        self._work.put(None)
        self._thread.join()
        while self._parked:
            self._parked.popleft().close()

    def _refill(self) -> None:
        while len(self._parked) + self._num_wanted < self._max_parked:
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
        while (work := self._work.get()) is not None:
            work()
