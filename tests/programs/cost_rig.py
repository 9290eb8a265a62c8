"""What a program costs: run alone beside the byte model, in virtual time, so that the counts are the same every time.

Every step takes one second of the loop's clock and the program's own work none, so which calls share a step depends on
the program alone. Used by the gallery.
"""

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from script_rig import UNEXPORT

from loopwright.compose.config import RuntimeConfig
from loopwright.control import step_times
from loopwright.core.batch import Batch, StepResult
from loopwright.core.clock import Clock
from loopwright.core.control import ControlStats
from loopwright.core.executor import EngineShape
from loopwright.core.runs import RunSpec
from loopwright.core.virtual_time import run_in_virtual_time
from loopwright.engine.byte_model import byte_model
from loopwright.engine.model_runner import ModelRunner
from loopwright.runtime.program import Program
from system_rig import RunningRun, byte_text, system_over

if TYPE_CHECKING:
    from loopwright.control.controller import Controller

EXAMPLES: dict[str, Any] = {"str": "Tell me about the sea.", "int": 0, "float": 1.0, "list[float]": [1.0, 2.0]}
"""Arguments for parameters that have to be given, by their type."""

MAX_REAL_S = 60  # a hundred times what a program takes


@dataclass(frozen=True)
class Cost:
    """What one run did. `num_asked` counts the places where it asked what comes next: a token or a distribution."""

    code: str  # of its final event
    num_forwards: int
    num_rows: int
    num_prompt_tokens: int  # run in rows of several
    num_asked: int
    num_pages: int  # at most at once


def cost_of(program: Program) -> Cost:
    """What a run with the parameters' defaults costs, and EXAMPLES where there is none."""
    torch.set_num_threads(1)
    arguments = {one.name: EXAMPLES[one.type] for one in program.parameters if one.is_required}

    async def main(clock: Clock) -> Cost:
        engine = SteppedModel()
        runtime = RuntimeConfig(allows_native=True, needs_wasm=False, holds_deadline=False)  # a jump would be its end
        async with system_over(engine, byte_text(engine), runtime=runtime) as system:
            engine.controller = system.controller
            spec = RunSpec(source=program.source, arguments=arguments, sandbox="native", seed=0, has_input=False)
            run = RunningRun(system.launcher, await system.launcher.start(spec))
            with cancelled_if_stuck(system.launcher.cancel, run.run_id):
                outcome = await run.outcome()
            stats, num_asked = await system.controller.stats(), engine.num_asked
            await system.run(UNEXPORT)
        return Cost(
            code=outcome.final.code,
            num_forwards=stats.num_steps,
            num_rows=stats.num_rows,
            num_prompt_tokens=stats.num_prefill_tokens,
            num_asked=num_asked,
            num_pages=engine.num_pages,
        )

    with patch.object(step_times, "MIN_STEP_S", math.inf):  # of no length in real time, they say nothing of drafts
        return run_in_virtual_time(main)


@contextmanager
def cancelled_if_stuck(cancel: Callable[[Any], Awaitable[None]], run_id: Any) -> Iterator[None]:
    """Ends a run that waits for what never comes. In real time: in virtual time, waiting takes none."""
    loop = asyncio.get_running_loop()
    timer = threading.Timer(MAX_REAL_S, lambda: asyncio.run_coroutine_threadsafe(cancel(run_id), loop))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class SteppedModel:
    """An executor without a thread: a batch runs when it is submitted, and its result is there one second later."""

    def __init__(self) -> None:
        self._runner = ModelRunner(byte_model(), num_blocks=1024, num_slots=256)
        self.controller: Controller | None = None
        self.num_asked = 0
        self.num_pages = 0

    @property
    def shape(self) -> EngineShape:
        return self._runner.shape

    def submit(self, batch: Batch) -> Future[StepResult]:
        with torch.inference_mode():
            result = self._runner.run(batch)
        self.num_asked += len(batch.decodes)
        self.num_asked += sum(len(one.sampled) or len(one.distributions) for one in (*result.rows, *result.heads))
        stats = self._stats()
        self.num_pages = max(self.num_pages, stats.num_blocks - stats.num_free_blocks)
        future: Future[StepResult] = Future()
        asyncio.get_running_loop().call_later(1.0, future.set_result, result)
        return future

    def close(self) -> None:
        """Nothing is held."""

    def _stats(self) -> ControlStats:
        """Control answers at once, and a step may not wait."""
        assert self.controller is not None
        try:
            self.controller.stats().send(None)
        except StopIteration as answer:
            return answer.value
        raise AssertionError("control waited")
