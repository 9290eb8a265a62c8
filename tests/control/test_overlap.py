"""What control does while a step runs, so that the engine waits for as little as possible."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager

import pytest

from loopwright.core.batch import Batch, StepResult
from loopwright.core.calls import Generate, Sampling
from loopwright.core.results import Progress

from .fake_executor import FakeExecutor
from .reference import NaiveContext
from .rig import Rig, generate

SAMPLING = Sampling(temperature=1.0, seed=3)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def serving(rig: Rig) -> AsyncIterator[FakeExecutor]:
    """The rig's control, whose steps wait until they are released."""
    rig.executor.held = []
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(rig.controller.serve())
        try:
            yield rig.executor
        finally:
            task.cancel()


async def next_step(executor: FakeExecutor) -> int:
    """Waits until a step is with the engine; its rows."""
    async with asyncio.timeout(30):
        await executor.is_holding.wait()
    assert executor.held is not None
    [(batch, _)] = executor.held
    return batch.num_rows


def segment(max_tokens: int = 3) -> Generate:
    return generate((5,), sampling=SAMPLING, max_tokens=max_tokens, progress=True)


async def test_calls_that_come_while_a_step_runs_are_ready_when_it_ends() -> None:
    rig = Rig()
    runs = [rig.open(name) for name in "abc"]
    async with serving(rig) as executor:
        runs[0].submit(segment())
        assert await next_step(executor) == 1
        for run in runs[1:]:
            run.submit(segment())
        executor.release()
        assert await next_step(executor) == 3
        executor.release()


async def test_the_next_step_is_with_the_engine_before_a_program_hears_of_the_last_one() -> None:
    rig = Rig()
    run = rig.open("a")
    async with serving(rig) as executor:
        run.submit(segment())
        await next_step(executor)
        executor.release()
        [completion] = await run.session.receive()
        assert isinstance(completion.result, Progress)
        assert executor.held, "the program was woken while the engine had nothing to do"


async def test_streamed_tokens_are_told_once_the_engine_has_its_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    runs = [rig.open(name) for name in "ab"]
    told: list[int] = []
    submit = rig.executor.submit

    def watched_submit(batch: Batch) -> Future[StepResult]:
        told.append(sum(len(run.session.inbox.take()) for run in runs))
        return submit(batch)

    monkeypatch.setattr(rig.executor, "submit", watched_submit)
    async with serving(rig) as executor:
        runs[0].submit(segment(max_tokens=6))
        runs[1].submit(segment(max_tokens=4))
        for _ in range(6):
            await next_step(executor)
            executor.release()
        for _ in range(100):  # turns of the loop, for control to take what came
            await asyncio.sleep(0)
    # The prompts' own tokens are told at once, and so is the last of a segment, which its end follows.
    assert told == [0, 2, 0, 2, 4, 1]


async def test_the_answers_are_those_of_the_naive_loop_whatever_came_in_between() -> None:
    rig = Rig()
    runs = [rig.open(f"run {number}") for number in range(4)]
    async with serving(rig) as executor:
        calls = []
        for run in runs:
            calls.append(run.submit(segment(max_tokens=6)))
            await next_step(executor)
            executor.release()
        for _ in range(5):
            await next_step(executor)
            executor.release()
        for _ in range(100):  # turns of the loop, for control to take what came
            await asyncio.sleep(0)
    for run, call in zip(runs, calls, strict=True):
        assert list(run.segment(call).tokens) == NaiveContext().generate((5,), (0,), SAMPLING, 6)
