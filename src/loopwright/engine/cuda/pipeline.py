"""Launches batches on one thread and waits for the device on another, so that a step is under way while the one before
is read. Never looks into a batch. No torch here.

Used by the executor on a device.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Protocol

from loopwright.core.batch import Batch, StepResult
from loopwright.engine.step_thread import BatchQueue, settle


class UnderWay(Protocol):
    """A batch that was launched."""

    def result(self) -> StepResult:
        """Waits for it."""
        ...


class Pipeline:
    """`launch` is called on a thread of its own, inside `scope()`, one batch at a time and in their order; so are the
    results read, on another. What one raises fails that batch's future and nothing else.

    Where no batch waits for that thread, `launch_at_once` is tried first, on the thread that submits: for batches that
    somebody waits for, and that take less to launch than another thread to wake. It gives None for all others."""

    def __init__(
        self, name: str, launch: Callable[[Batch], UnderWay], scope: Callable[[], AbstractContextManager[object]],
        launch_at_once: Callable[[Batch], UnderWay | None] | None = None,
    ) -> None:  # fmt: skip
        self._queue = BatchQueue()
        self._launch_at_once, self._scope = launch_at_once, scope
        self._turn = threading.Lock()  # of those who submit, and of who closes
        self._launched: SimpleQueue[tuple[Future[StepResult], Callable[[], StepResult]] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._launch_all, args=(launch, scope), name=f"{name}-launch", daemon=True),
            threading.Thread(target=self._read_all, name=f"{name}-read", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, batch: Batch) -> Future[StepResult]:
        with self._turn:
            if self._launch_at_once is not None and self._queue.is_idle:
                with self._scope():
                    read = _launched(self._launch_at_once, batch)
                if read is not None:
                    future: Future[StepResult] = Future()
                    future.set_running_or_notify_cancel()
                    self._launched.put((future, read))
                    return future
            return self._queue.submit(batch)

    def close(self) -> None:
        """Runs what was submitted, then ends the threads. May be called twice."""
        with self._turn:
            self._queue.close()
            self._launch_at_once = None  # what it launches on ends with the threads
        for thread in self._threads:
            thread.join()

    def _launch_all(
        self, launch: Callable[[Batch], UnderWay], scope: Callable[[], AbstractContextManager[object]]
    ) -> None:
        with scope():
            for batch, future in self._queue.taken():
                read = _launched(launch, batch)
                assert read is not None
                self._launched.put((future, read))
                del batch, future, read  # an idle thread keeps no results alive
        self._launched.put(None)

    def _read_all(self) -> None:
        while (launched := self._launched.get()) is not None:
            settle(*launched)
            del launched


def _launched(launch: Callable[[Batch], UnderWay | None], batch: Batch) -> Callable[[], StepResult] | None:
    """What reads the results; None if `launch` leaves the batch to others."""
    try:
        under_way = launch(batch)
    except Exception as error:  # noqa: BLE001 (told on the reading thread, in its turn)
        return _raiser(error)
    return None if under_way is None else under_way.result


def _raiser(error: Exception) -> Callable[[], StepResult]:
    def read() -> StepResult:
        raise error

    return read
