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
from loopwright.core.errors import InternalError, LoopwrightError, Unavailable


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
        self._waiting: SimpleQueue[tuple[Batch, Future[StepResult]] | None] = SimpleQueue()
        self._launched: SimpleQueue[tuple[Callable[[], StepResult], Future[StepResult]] | None] = SimpleQueue()
        self._lock = threading.Lock()  # keeps a submit from slipping in behind the end mark
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._launch_all, args=(launch, scope), name=f"{name}-launch", daemon=True),
            threading.Thread(target=self._read_all, name=f"{name}-read", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, batch: Batch) -> Future[StepResult]:
        future: Future[StepResult] = Future()
        with self._lock:
            if self._is_closed:
                raise Unavailable("the engine is closed; it takes no more batches")
            self._waiting.put((batch, future))
        return future

    def close(self) -> None:
        """Runs what was submitted, then ends the threads. May be called twice."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _launch_all(
        self, launch: Callable[[Batch], UnderWay], scope: Callable[[], AbstractContextManager[object]]
    ) -> None:
        with scope():
            while (waiting := self._waiting.get()) is not None:
                batch, future = waiting
                if future.set_running_or_notify_cancel():
                    try:
                        read = launch(batch).result
                    except Exception as error:  # noqa: BLE001 (told on the reading thread, in its turn)
                        read = _raiser(error)
                    self._launched.put((read, future))
                del waiting, batch, future  # an idle thread keeps no results alive
        self._launched.put(None)

    def _read_all(self) -> None:
        while (launched := self._launched.get()) is not None:
            _complete(*launched)
            del launched


def _raiser(error: Exception) -> Callable[[], StepResult]:
    def read() -> StepResult:
        raise error

    return read


def _complete(read: Callable[[], StepResult], future: Future[StepResult]) -> None:
    try:
        result = read()
    except LoopwrightError as error:
        future.set_exception(error)
    except Exception as error:  # noqa: BLE001 — the edge of the thread: any fault is this step's, and the thread lives on
        fault = InternalError(f"the step failed: {type(error).__name__}: {error}")
        fault.__cause__ = error
        future.set_exception(fault)
    else:
        future.set_result(result)
