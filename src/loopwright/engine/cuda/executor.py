"""The executor over a model on a device. Never decides what runs.

Made by compose through engine.executor, driven by control.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace

import torch

from loopwright.core.batch import Batch, StepResult
from loopwright.core.executor import EngineShape
from loopwright.core.model_info import Exactness, WeightDtype
from loopwright.engine.cuda.choice import DeviceChoice
from loopwright.engine.cuda.matrices import kinds
from loopwright.engine.cuda.memory import MemoryPlan, step_tokens
from loopwright.engine.cuda.parts import DeviceParts
from loopwright.engine.cuda.pipeline import Pipeline
from loopwright.engine.cuda.runner import DeviceRunner
from loopwright.engine.cuda.steps import Report
from loopwright.engine.loaded_model import LoadedModel


class DeviceExecutor:
    """Implements core.executor.Executor; what it is made of is `choice`."""

    dtype: WeightDtype
    exactness: Exactness

    def __init__(
        self, model: LoadedModel, choice: DeviceChoice, *, num_blocks: int, num_slots: int, max_rows: int,
        max_tokens: int, report: Report,
    ) -> None:  # fmt: skip
        """`num_blocks` 0 is as many as fit; `max_rows` of one token and `max_tokens` are the most in a step, 0 what the
        memory is good for. Raises Unavailable, with the numbers, for what does not fit."""
        max_tokens = max_tokens or step_tokens_for(model, choice, max_rows)
        num_blocks = room_for(model, choice, num_blocks, max_rows, max_tokens)
        with torch.inference_mode():
            parts = DeviceParts.make(
                model, num_blocks=num_blocks, device=choice.device, dtype=choice.dtype, attention=choice.attention,
                has_kernels=choice.has_kernels, kind_of=kinds(choice.weights),
                is_deterministic=choice.is_deterministic,
            )  # fmt: skip
            runner = DeviceRunner(model, parts, num_slots=num_slots, max_rows=max_rows)
            runner.capture(report)
        self.config = model.config
        self.quantization = model.quantization
        self.dtype = choice.weights
        self.exactness = "deterministic" if choice.is_deterministic else "fast"
        self.computed_by = choice.reason
        self.step_weight_bytes = runner.step_weight_bytes
        self.kv_token_bytes = runner.kv_token_bytes
        self.traits = runner.traits
        self._shape = replace(runner.shape, max_step_tokens=max_tokens)

        @contextmanager
        def scope() -> Iterator[None]:
            with torch.inference_mode():
                yield

        self._pipeline = Pipeline("loopwright-engine", runner.launch, scope)

    @property
    def shape(self) -> EngineShape:
        return self._shape

    def submit(self, batch: Batch) -> Future[StepResult]:
        return self._pipeline.submit(batch)

    def close(self) -> None:
        self._pipeline.close()


def room_for(model: LoadedModel, choice: DeviceChoice, wanted: int, max_rows: int, max_tokens: int) -> int:
    """Blocks of KV. On the CPU nothing is counted: what was asked for, or 2048."""
    if choice.device.type != "cuda":
        return wanted or 2048
    plan = MemoryPlan.of(
        model.config, choice.dtype, kinds(choice.weights), max_rows=max_rows, max_tokens=max_tokens,
        free_bytes=_free_bytes(model, choice),
    )  # fmt: skip
    return plan.num_blocks(wanted)


def step_tokens_for(model: LoadedModel, choice: DeviceChoice, max_rows: int) -> int:
    """Tokens of a step, by the device's memory. On the CPU 512, as for the CPU's own executor."""
    if choice.device.type != "cuda":
        return max(512, 2 * max_rows)
    free = _free_bytes(model, choice)
    return step_tokens(model.config, choice.dtype, kinds(choice.weights), max_rows=max_rows, free_bytes=free)


def _free_bytes(model: LoadedModel, choice: DeviceChoice) -> int:
    """Of the device's memory, before the weights."""
    free, _ = torch.cuda.mem_get_info(choice.device)
    if choice.weights in ("float32", "bfloat16"):  # what lies there already is taken as it is
        free += sum(one.nbytes for one in model.weights.values() if one.device.type == "cuda")
    return free
