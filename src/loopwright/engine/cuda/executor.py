"""The executor over a model on a device. Never decides what runs.

Made by compose through engine.executor, driven by control.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch

from loopwright.core.batch import Batch, StepResult
from loopwright.core.executor import EngineShape
from loopwright.core.model_info import Exactness, WeightDtype
from loopwright.engine.cuda.choice import DeviceChoice
from loopwright.engine.cuda.launched import Launched
from loopwright.engine.cuda.memory import MemoryPlan
from loopwright.engine.cuda.parts import DeviceParts
from loopwright.engine.cuda.pipeline import Pipeline
from loopwright.engine.cuda.runner import DeviceRunner
from loopwright.engine.cuda.steps import Report
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.model_runner import Share
from loopwright.engine.ranks.group import RankGroup


class DeviceExecutor:
    """Implements core.executor.Executor; what it is made of is `choice`."""

    dtype: WeightDtype
    exactness: Exactness = "fast"

    def __init__(
        self, model: LoadedModel, choice: DeviceChoice, *, num_blocks: int, num_slots: int, max_rows: int,
        max_tokens: int, report: Report, group: RankGroup | None = None,
    ) -> None:  # fmt: skip
        """`num_blocks` 0 is as many as fit; `max_rows` of one token and `max_tokens` are the most in a step. With
        `group`, which it then owns, the model is rank 0's part. Raises Unavailable, with the numbers, for what does not
        fit."""
        num_ranks = group.num_ranks if group else 1
        num_blocks = room_for(model, choice, num_blocks, max_rows, max_tokens, num_ranks)
        if group is not None:
            num_blocks = group.meet(num_blocks, choice.device)
            model = replace(model, ranks=group.collectives)
        runner = device_runner(model, choice, num_blocks, num_slots, max_rows, group.share if group else None)
        with torch.inference_mode():
            runner.capture(report)
        if group is not None:
            group.await_serving()
        self.config = model.config
        self.quantization = model.quantization
        self.dtype = "float32" if choice.dtype == torch.float32 else "bfloat16"
        self.computed_by = choice.reason + (f"; {group.num_ranks} processes share it" if group else "")
        self.lost = group.lost if group else None
        self.step_weight_bytes = runner.step_weight_bytes
        self.kv_token_bytes = runner.kv_token_bytes
        self.traits = runner.traits
        self._shape = runner.shape

        @contextmanager
        def scope() -> Iterator[None]:
            with torch.inference_mode():
                yield

        self._group = group
        launch = partial(_launch_shared, group, runner) if group else runner.launch
        self._pipeline = Pipeline("loopwright-engine", launch, scope)

    @property
    def shape(self) -> EngineShape:
        return self._shape

    def submit(self, batch: Batch) -> Future[StepResult]:
        return self._pipeline.submit(batch)

    def close(self) -> None:
        self._pipeline.close()
        if self._group is not None:
            self._group.close()


@dataclass(frozen=True, slots=True)
class _SharedStep:
    """A batch under way on all ranks."""

    group: RankGroup
    launched: Launched

    def result(self) -> StepResult:
        return self.group.read(self.launched.result)


def _launch_shared(group: RankGroup, runner: DeviceRunner, batch: Batch) -> _SharedStep:
    return _SharedStep(group, group.run(partial(runner.launch, batch)))


def device_runner(
    model: LoadedModel, choice: DeviceChoice, num_blocks: int, num_slots: int, max_rows: int,
    share: Share | None = None,
) -> DeviceRunner:  # fmt: skip
    """The runner of a model, or of a rank's part of one, with all that it needs on the device."""
    with torch.inference_mode():
        parts = DeviceParts.make(
            model, num_blocks=num_blocks, device=choice.device, dtype=choice.dtype, attention=choice.attention,
            has_kernels=choice.has_kernels,
        )  # fmt: skip
        return DeviceRunner(model, parts, num_slots=num_slots, max_rows=max_rows, share=share)


def room_for(
    model: LoadedModel, choice: DeviceChoice, wanted: int, max_rows: int, max_tokens: int, num_ranks: int = 1
) -> int:
    """Blocks of KV beside a model, or one's part of it. On the CPU nothing is counted: what was asked for, or 2048."""
    if choice.device.type != "cuda":
        return wanted or 2048
    free, _ = torch.cuda.mem_get_info(choice.device)
    placed = sum(one.nbytes for one in model.weights.values() if one.device.type == "cuda")
    plan = MemoryPlan.of(
        model.config,
        choice.dtype,
        max_rows=max_rows,
        max_tokens=max_tokens,
        free_bytes=free + placed,
        num_ranks=num_ranks,
    )
    return plan.num_blocks(wanted)
