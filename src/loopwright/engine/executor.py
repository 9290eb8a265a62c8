"""The executor over torch: one thread, one batch at a time. Never decides what runs.

Made by compose, driven by control.
"""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from loopwright.core.batch import Batch, StepResult
from loopwright.core.errors import Unavailable
from loopwright.core.executor import EngineShape
from loopwright.core.model_info import Exactness, WeightDtype
from loopwright.engine.cuda.choice import AttentionName, DeviceName
from loopwright.engine.cuda.executor import DeviceExecutor
from loopwright.engine.cuda.steps import Report
from loopwright.engine.decoded_ahead import DecodedAhead
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.model_runner import SCRATCH_BYTES, ModelRunner, NativeSettings
from loopwright.engine.native.choice import Choice, choose, weight_types
from loopwright.engine.native.compiler import InstructionSet
from loopwright.engine.parts import check_part, choose_part, load_part
from loopwright.engine.ranks.group import TIMEOUT_S, RankGroup
from loopwright.engine.ranks.messages import RankSettings, Room
from loopwright.engine.step_thread import StepThread

logger = logging.getLogger(__name__)

DEFAULT_BLOCKS = 2048
"""Of KV, on a CPU."""


class TorchExecutor:
    """Implements core.executor.Executor."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        num_blocks: int,
        num_slots: int,
        num_threads: int | None = None,
        attention: str = "sdpa",
        dtype: WeightDtype = "float32",
        instructions: InstructionSet | None = None,
        scratch_bytes: int = SCRATCH_BYTES,
        group: RankGroup | None = None,
    ) -> None:
        """`num_threads` is how many cores one operation uses; None leaves torch's choice. `scratch_bytes` bounds what
        the native kernels take for a step. With `group`, which it then owns, the model is rank 0's part. Raises
        Unavailable for a dtype that cannot be had, and what a rank fails with."""
        choice = choose(dtype, model.config, instructions)
        if group is not None:
            num_blocks = group.meet(Room(num_blocks, 0)).num_blocks
            model = replace(model, ranks=group.collectives)
        runner = ModelRunner(
            model, num_blocks=num_blocks, num_slots=num_slots, attention=attention,
            native=_native(choice, model, num_threads, scratch_bytes), share=group.share if group else None,
        )  # fmt: skip
        self.config = model.config
        self.quantization = model.quantization
        self.dtype = choice.dtype
        self.exactness: Exactness = choice.exactness if group is None else "fast"
        self.computed_by = choice.reason if group is None else f"torch, float32, in {group.num_ranks} processes"
        self.lost = group.lost if group else None
        self.step_weight_bytes = runner.step_weight_bytes
        self.kv_token_bytes = runner.kv_token_bytes
        self.traits = runner.traits
        self._shape = runner.shape

        run = runner.run
        if group is not None:
            group.await_serving()
            run = partial(_run_shared, group, runner)
        self._group = group
        self._thread = StepThread("loopwright-engine", run, partial(_scope, num_threads))

    @property
    def shape(self) -> EngineShape:
        return self._shape

    def submit(self, batch: Batch) -> Future[StepResult]:
        return self._thread.submit(batch)

    def close(self) -> None:
        self._thread.close()
        if self._group is not None:
            self._group.close()


def _native(choice: Choice, model: LoadedModel, num_threads: int | None, scratch_bytes: int) -> NativeSettings | None:
    if choice.kernels is None:
        return None
    threads = num_threads or torch.get_num_threads()
    return NativeSettings(choice.kernels, weight_types(choice.dtype, model), threads, scratch_bytes)


@contextmanager
def _scope(num_threads: int | None) -> Iterator[None]:
    if num_threads is not None:
        torch.set_num_threads(num_threads)  # counts for the thread that calls it
    with torch.inference_mode():
        yield


def _run_shared(group: RankGroup, runner: ModelRunner, batch: Batch) -> StepResult:
    return group.run(partial(runner.run, batch))


def create_executor(
    path: Path,
    *,
    num_blocks: int,
    num_slots: int,
    num_threads: int | None = None,
    attention: AttentionName = "auto",
    dtype: WeightDtype = "float32",
    instructions: InstructionSet | None = None,
    scratch_bytes: int = SCRATCH_BYTES,
    ahead: DecodedAhead | None = None,
    layers: Sequence[int] = (),
    shape: str = "",
    device: DeviceName = "cpu",
    is_deterministic: bool = False,
    max_rows: int = 256,
    max_tokens: int = 0,
    report: Report | None = None,
    num_ranks: int = 1,
) -> TorchExecutor | DeviceExecutor:
    """Loads the model at `path` (a GGUF file or a Hugging Face folder), or some of its layers, and starts its executor.
    `ahead` is the same file, if somebody has begun to decode it; with `shape` there is none, and weights are random.
    `num_blocks` 0 is 2048, or on a GPU as many as fit beside steps of `max_rows` and `max_tokens`, of which 0 is what
    a GPU's memory is good for. Of several ranks this process is the first, and the others are started.

    Raises BadRequest and Unavailable as `load_model`, `choose_device` and `check_split` do, and what a rank fails
    with."""
    settings = RankSettings(
        rank=0, num_ranks=num_ranks, path=str(path), layers=tuple(layers), shape=shape, meeting="", timeout_s=TIMEOUT_S,
        device=device, dtype=dtype, attention=attention, num_threads=num_threads or 0, num_blocks=num_blocks,
        num_slots=num_slots, max_rows=max_rows, max_tokens=max_tokens,
    )  # fmt: skip
    if num_ranks > 1 or shape:  # what is refused is refused before a weight is read or drawn
        check_part(settings, is_deterministic=is_deterministic)
    with _group_of(settings) as group:
        model = load_part(settings, ahead)
        choice = choose_part(settings, model.config, is_deterministic=is_deterministic)
        if choice is not None:
            return DeviceExecutor(
                model, choice, num_blocks=num_blocks, num_slots=num_slots, max_rows=max_rows, max_tokens=max_tokens,
                report=report or _log_progress, group=group,
            )  # fmt: skip
        executor = TorchExecutor(
            model, num_blocks=num_blocks or DEFAULT_BLOCKS, num_slots=num_slots, num_threads=num_threads,
            dtype=dtype if group is None else "float32", instructions=instructions, scratch_bytes=scratch_bytes,
            group=group,
        )  # fmt: skip
    if is_deterministic:
        _check_deterministic(executor)
    return executor


@contextmanager
def _group_of(settings: RankSettings) -> Iterator[RankGroup | None]:
    """The other ranks, if there are any; they are closed if what is made with them fails."""
    group = RankGroup(settings) if settings.num_ranks > 1 else None
    try:
        yield group
    except BaseException:
        if group is not None:
            group.close()
        raise


def _check_deterministic(executor: TorchExecutor) -> None:
    """Closes one that is not, and raises Unavailable."""
    if executor.exactness != "deterministic":
        executor.close()
        raise Unavailable(
            f"engine.deterministic: {executor.computed_by} is not",
            hint="the native kernels are: engine.dtype = 'bfloat16'",
            field="engine.deterministic",
        )


def _log_progress(stage: str, fraction: float | None) -> None:
    logger.info("%s%s", stage, "" if fraction is None else f": {fraction:.0%}")
