"""The executor over a model on a device. Never decides what runs.

Made by compose through engine.executor, driven by control.
"""

import gc
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
from loopwright.engine.cuda.following import FollowingDeviceRunner
from loopwright.engine.cuda.launched import Launched
from loopwright.engine.cuda.matrices import kinds
from loopwright.engine.cuda.memory import MemoryPlan, step_tokens
from loopwright.engine.cuda.parts import DeviceParts
from loopwright.engine.cuda.pipeline import Pipeline
from loopwright.engine.cuda.runner import DeviceRunner
from loopwright.engine.cuda.steps import Report
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.model_runner import Share
from loopwright.engine.ranks.group import RankGroup
from loopwright.engine.ranks.messages import Room


class DeviceExecutor:
    """Implements core.executor.Executor; what it is made of is `choice`."""

    dtype: WeightDtype
    exactness: Exactness

    def __init__(
        self, model: LoadedModel, choice: DeviceChoice, *, num_blocks: int, num_slots: int, max_rows: int,
        max_tokens: int, report: Report, group: RankGroup | None = None,
    ) -> None:  # fmt: skip
        """`num_blocks` 0 is as many as fit; `max_rows` of one token and `max_tokens` are the most in a step, 0 what the
        memory is good for. With `group`, which it then owns, the model is rank 0's part. Raises Unavailable, with the
        numbers, for what does not fit."""
        room = room_for(model, choice, num_blocks, max_rows, max_tokens)
        if group is not None:
            room = group.meet(room, choice.device)
            model = replace(model, ranks=group.collectives)
        runner = device_runner(model, choice, room.num_blocks, num_slots, max_rows, group.share if group else None)
        report = _beside_room(report, room, runner.shape)
        with torch.inference_mode():
            if group is None:
                runner.capture(report)
            else:
                group.read(partial(runner.capture, report))
                group.await_serving()
        self.config = model.config
        self.quantization = model.quantization
        self.dtype = choice.weights
        self.exactness = "deterministic" if choice.is_deterministic else "fast"
        self.computed_by = choice.reason + (f"; {group.num_ranks} GPUs share it" if group else "")
        self.lost = group.lost if group else None
        self.step_weight_bytes = runner.step_weight_bytes
        self.kv_token_bytes = runner.kv_token_bytes
        self.traits = runner.traits
        self._shape = replace(runner.shape, max_step_tokens=room.step_tokens)
        self._device = choice.device

        @contextmanager
        def scope() -> Iterator[None]:
            with torch.inference_mode():
                yield

        self._group = group
        self._forget_graphs = runner.forget_graphs if group else None
        launch = partial(_launch_shared, group, runner) if group else runner.launch
        self._pipeline = Pipeline("loopwright-engine", launch, scope, None if group else runner.list_on)

    @property
    def shape(self) -> EngineShape:
        return self._shape

    def submit(self, batch: Batch) -> Future[StepResult]:
        return self._pipeline.submit(batch)

    def close(self) -> None:
        """Weights, KV and graphs are given back; they are the runner's, which only the threads knew."""
        self._pipeline.close()
        if self._group is not None:
            if self._forget_graphs is not None:
                self._forget_graphs()  # a communicator does not end before the graphs that have its kernels
                self._forget_graphs = None
            self._group.close()
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class _SharedStep:
    """A batch under way on all ranks."""

    group: RankGroup
    launched: Launched

    def result(self) -> StepResult:
        return self.group.read(self.launched.result)


def _beside_room(report: Report, room: Room, shape: EngineShape) -> Report:
    """Says of each stage what the device's memory is for."""
    kv_gb = room.num_blocks * shape.block_bytes / 1e9
    told = f"{kv_gb:.1f} GB of KV in {room.num_blocks} blocks, steps of up to {room.step_tokens} tokens"
    return lambda stage, fraction: report(f"{stage} ({told})", fraction)


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
            has_kernels=choice.has_kernels, kind_of=kinds(choice.weights), is_deterministic=choice.is_deterministic,
        )  # fmt: skip
        kind = DeviceRunner if model.ranks.rank == 0 else FollowingDeviceRunner
        return kind(model, parts, num_slots=num_slots, max_rows=max_rows, share=share)


def room_for(model: LoadedModel, choice: DeviceChoice, wanted: int, max_rows: int, max_tokens: int) -> Room:
    """Blocks of KV and tokens of a step, beside a model or a rank's part of one. On the CPU nothing is counted: what
    was asked for, or 2048 blocks."""
    max_tokens = max_tokens or step_tokens_for(model, choice, max_rows)
    if choice.device.type != "cuda":
        return Room(wanted or 2048, max_tokens)
    plan = MemoryPlan.of(
        model.config, choice.dtype, kinds(choice.weights), max_rows=max_rows, max_tokens=max_tokens,
        free_bytes=_free_bytes(model, choice), num_ranks=choice.num_ranks,
    )  # fmt: skip
    return Room(plan.num_blocks(wanted), max_tokens)


def step_tokens_for(model: LoadedModel, choice: DeviceChoice, max_rows: int) -> int:
    """Tokens of a step, by the device's memory. On the CPU 512, as for the CPU's own executor."""
    if choice.device.type != "cuda":
        return max(512, 2 * max_rows)
    free = _free_bytes(model, choice)
    return step_tokens(
        model.config,
        choice.dtype,
        kinds(choice.weights),
        max_rows=max_rows,
        free_bytes=free,
        num_ranks=choice.num_ranks,
    )


def _free_bytes(model: LoadedModel, choice: DeviceChoice) -> int:
    """Of the device's memory, before the weights."""
    free, _ = torch.cuda.mem_get_info(choice.device)
    if choice.weights in ("float32", "bfloat16"):  # what lies there already is taken as it is
        free += sum(one.nbytes for one in model.weights.values() if one.device.type == "cuda")
    return free
