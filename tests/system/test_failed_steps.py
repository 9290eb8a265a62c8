"""An engine that fails, in the one process: what it ran ends, each run with its one final event, and what comes next is
answered as if nothing had been."""

import asyncio
from concurrent.futures import Future

import pytest

from loopwright.core.batch import Batch, StepResult
from loopwright.core.executor import EngineShape, Executor
from loopwright.engine.byte_model import byte_model
from loopwright.engine.executor import TorchExecutor
from system_rig import byte_text, in_loop, system_over

GENERATES = """
from loopwright import Context
async def main(text: str, catches: bool = False):
    ctx = Context()
    ctx.append(text)
    try:
        return (await ctx.generate(max_tokens=20, ignore_eos=True)).text
    except Exception as error:
        if not catches:
            raise
        caught = type(error).__name__
    ctx = Context()
    ctx.append(text)
    return [caught, (await ctx.generate(max_tokens=20, ignore_eos=True)).text]
"""


class Failing:
    """An executor that fails the steps with these numbers: at once, or in what was promised."""

    def __init__(self, inner: Executor, at_once: bool) -> None:
        self.failing: set[int] = set()
        self.num_steps = 0
        self._inner = inner
        self._at_once = at_once

    @property
    def shape(self) -> EngineShape:
        return self._inner.shape

    def submit(self, batch: Batch) -> Future[StepResult]:
        self.num_steps += 1
        if self.num_steps not in self.failing:
            return self._inner.submit(batch)
        error = RuntimeError("the device is lost")
        if self._at_once:
            raise error
        future: Future[StepResult] = Future()
        future.set_exception(error)
        return future

    def close(self) -> None:
        self._inner.close()


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("step", [1, 2, 9])
def test_a_failed_step_ends_the_runs_in_it_and_no_later_one(at_once: bool, step: int) -> None:
    async def scenario() -> None:
        inner = TorchExecutor(byte_model(0), num_blocks=64, num_slots=16, num_threads=1)
        executor = Failing(inner, at_once)
        try:
            async with system_over(executor, byte_text(executor)) as system:
                alone = (await system.run(GENERATES, text="on and on")).result
                executor.failing = {executor.num_steps + step}
                texts = ["on and on", "and another", "and a third"]
                runs = [await system.start(GENERATES, text=text) for text in texts]
                outcomes = await asyncio.gather(*(run.outcome() for run in runs))  # which asks for one final event each
                codes = [one.final.code for one in outcomes]
                assert "internal" in codes
                assert set(codes) <= {"internal", "ok"}
                for one in outcomes:
                    if one.final.code == "internal":
                        assert one.final.error is not None
                        assert "the device is lost" in one.final.error.message
                executor.failing = {executor.num_steps + step}
                caught = (await system.run(GENERATES, text="on and on", catches=True)).result
                assert caught == ["InternalError", alone]
                assert (await system.run(GENERATES, text="on and on")).result == alone
                assert (await system.controller.stats()).num_failed_steps == 2
        finally:
            executor.close()

    in_loop(scenario)
