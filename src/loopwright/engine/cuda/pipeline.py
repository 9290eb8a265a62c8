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
    results read, on another. What one raises fails that batch's future and nothing else."""

    def __init__(
        self, name: str, launch: Callable[[Batch], UnderWay], scope: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self._queue = BatchQueue()
        self._launched: SimpleQueue[tuple[Future[StepResult], Callable[[], StepResult]] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._launch_all, args=(launch, scope), name=f"{name}-launch", daemon=True),
            threading.Thread(target=self._read_all, name=f"{name}-read", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, batch: Batch) -> Future[StepResult]:
        return self._queue.submit(batch)

    def close(self) -> None:
        """Runs what was submitted, then ends the threads. May be called twice."""
        self._queue.close()
        for thread in self._threads:
            thread.join()

    def _launch_all(
        self, launch: Callable[[Batch], UnderWay], scope: Callable[[], AbstractContextManager[object]]
    ) -> None:
        with scope():
            for batch, future in self._queue.taken():
                try:
                    read = launch(batch).result
                except Exception as error:  # noqa: BLE001 (told on the reading thread, in its turn)
                    read = _raiser(error)
                self._launched.put((future, read))
                del batch, future, read  # an idle thread keeps no results alive
        self._launched.put(None)

    def _read_all(self) -> None:
        while (launched := self._launched.get()) is not None:
            settle(*launched)
            del launched


def _raiser(error: Exception) -> Callable[[], StepResult]:
    def read() -> StepResult:
        raise error

    return read
