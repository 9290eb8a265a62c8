"""The simulated device in real time, on a thread of its own: for what the host takes beside a device of such steps.

Made by compose for benchmarks. A step is over when its cost has passed since the one before it was, if it waited for
that one, or since it came: so a device that always has its next step never idles.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from typing import ClassVar

from loopwright.core.batch import Batch, StepResult
from loopwright.core.executor import EngineShape
from loopwright.core.step_costs import StepCosts
from loopwright.core.traits import Trait
from loopwright.engine.simulated import answer
from loopwright.engine.step_thread import StepThread


class PacedExecutor:
    """Implements core.executor.Executor. `token` is what it samples."""

    traits: ClassVar[tuple[Trait, ...]] = ("allocate", "forward", "input_text", "output_text")

    def __init__(
        self,
        shape: EngineShape,
        costs: StepCosts,
        token: int,
        now_s: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.busy_s = 0.0
        self._shape, self._costs, self._token = shape, costs, token
        self._now_s, self._sleep = now_s, sleep
        self._free_s = 0.0  # when the last step was over
        self._came_s: dict[int, float] = {}  # of steps that wait, by identity
        self._thread = StepThread("loopwright-paced", self._run, nullcontext)

    @property
    def shape(self) -> EngineShape:
        return self._shape

    def submit(self, batch: Batch) -> Future[StepResult]:
        self._came_s[id(batch)] = self._now_s()
        return self._thread.submit(batch)

    def close(self) -> None:
        self._thread.close()

    def _run(self, batch: Batch) -> StepResult:
        cost_s = self._costs.step_s(batch)
        began_s = max(self._came_s.pop(id(batch)), self._free_s)
        self.busy_s += cost_s
        self._free_s = began_s + cost_s
        result = answer(batch, self._token)  # while the device computes
        if (left_s := self._free_s - self._now_s()) > 0:
            self._sleep(left_s)
        return result
