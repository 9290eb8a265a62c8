"""The two threads of a device: what is launched, and who waits for that."""

import threading
from contextlib import nullcontext

from loopwright.core.batch import Batch, StepResult
from loopwright.engine.cuda.pipeline import Pipeline


class _Done:
    def result(self) -> StepResult:
        return StepResult()


def test_whoever_waits_for_a_launch_goes_on_when_all_that_was_submitted_is_under_way() -> None:
    may_launch, num_launched = threading.Semaphore(0), 0

    def launch(batch: Batch) -> _Done:
        nonlocal num_launched
        may_launch.acquire()
        num_launched += 1
        return _Done()

    pipeline = Pipeline("test", launch, nullcontext)
    try:
        futures = [pipeline.submit(Batch()) for _ in range(2)]
        pipeline.await_launch(0.0)
        assert num_launched == 0, "the time was over"
        may_launch.release(2)
        pipeline.await_launch(30.0)
        assert num_launched == 2
        assert [one.result(30.0) for one in futures] == [StepResult(), StepResult()]
    finally:
        may_launch.release(2)
        pipeline.close()


def test_a_launch_that_fails_is_one_too() -> None:
    def launch(batch: Batch) -> _Done:
        raise RuntimeError("on purpose")

    pipeline = Pipeline("test", launch, nullcontext)
    try:
        future = pipeline.submit(Batch())
        pipeline.await_launch(30.0)
        assert future.exception(30.0) is not None
    finally:
        pipeline.close()
