"""Runs batches one at a time on a thread of its own, in the order they came. Never looks into a batch. No torch here.

Used by the executors, real and scripted; what it is made of also by the pipeline of a device.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from queue import SimpleQueue

from loopwright.core.batch import Batch, StepResult
from loopwright.core.errors import InternalError, LoopwrightError, Unavailable


class BatchQueue:
    """Batches on their way to one thread, each with its future, until the end."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[tuple[Batch, Future[StepResult]] | None] = SimpleQueue()
        self._lock = threading.Lock()  # keeps a submit from slipping in behind the end mark
        self._is_closed = False
        self._num_waiting = 0

    def submit(self, batch: Batch) -> Future[StepResult]:
        """Raises Unavailable once it is closed."""
        future: Future[StepResult] = Future()
        with self._lock:
            if self._is_closed:
                raise Unavailable("the engine is closed; it takes no more batches")
            self._num_waiting += 1
            self._waiting.put((batch, future))
        return future

    @property
    def is_idle(self) -> bool:
        """Whether it takes batches, and the thread is done with all that it took."""
        return not (self._num_waiting or self._is_closed)

    def close(self) -> None:
        """What was submitted is still taken. May be called twice."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._waiting.put(None)

    def taken(self) -> Iterator[tuple[Batch, Future[StepResult]]]:
        """Those that nobody cancelled, in order, up to the end. Waits for them."""
        while (waiting := self._waiting.get()) is not None:
            if waiting[1].set_running_or_notify_cancel():
                yield waiting
            del waiting  # an idle thread keeps no results alive
            with self._lock:
                self._num_waiting -= 1


def settle(future: Future[StepResult], compute: Callable[[], StepResult]) -> None:
    """What `compute` returns or raises becomes the future's."""
    try:
        result = compute()
    except LoopwrightError as error:
        future.set_exception(error)
    except Exception as error:  # noqa: BLE001 — the edge of the thread: any fault is this step's, and the thread lives on
        fault = InternalError(f"the step failed: {type(error).__name__}: {error}")
        fault.__cause__ = error
        future.set_exception(fault)
    else:
        future.set_result(result)


class StepThread:
    """`run` is called on the thread, inside `scope()`; what it raises fails that step's future and nothing else."""

    def __init__(
        self, name: str, run: Callable[[Batch], StepResult], scope: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self._queue = BatchQueue()
        self._thread = threading.Thread(target=self._work, args=(run, scope), name=name, daemon=True)
        self._thread.start()

    def submit(self, batch: Batch) -> Future[StepResult]:
        return self._queue.submit(batch)

    def close(self) -> None:
        """Runs what was submitted, then ends the thread. May be called twice."""
        self._queue.close()
        self._thread.join()

    def _work(self, run: Callable[[Batch], StepResult], scope: Callable[[], AbstractContextManager[object]]) -> None:
        with scope():
            for batch, future in self._queue.taken():
                settle(future, partial(run, batch))
                del batch, future  # an idle thread keeps no results alive
