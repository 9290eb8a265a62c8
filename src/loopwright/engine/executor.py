"""The executor over torch: one thread, one batch at a time. Never decides what runs.

Made by compose, driven by control.
"""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import torch

from loopwright.core.batch import Batch, StepResult
from loopwright.core.errors import Unavailable
from loopwright.core.executor import EngineShape
from loopwright.core.model_info import WeightDtype
from loopwright.engine.cuda.choice import AttentionName, DeviceName, choose_device
from loopwright.engine.cuda.dummy import dummy_model, shape_config
from loopwright.engine.cuda.executor import DeviceExecutor
from loopwright.engine.decoded_ahead import DecodedAhead
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.loader import load_model
from loopwright.engine.model_runner import SCRATCH_BYTES, ModelRunner, NativeSettings
from loopwright.engine.native.choice import choose, weight_types
from loopwright.engine.native.compiler import InstructionSet
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
    ) -> None:
        """`num_threads` is how many cores one operation uses; None leaves torch's choice. `scratch_bytes` bounds what
        the native kernels take for a step. Raises Unavailable for a dtype that cannot be had."""
        choice = choose(dtype, model.config, instructions)
        native = None
        if choice.kernels is not None:
            threads = num_threads or torch.get_num_threads()
            native = NativeSettings(choice.kernels, weight_types(choice.dtype, model), threads, scratch_bytes)
        runner = ModelRunner(model, num_blocks=num_blocks, num_slots=num_slots, attention=attention, native=native)
        self.config = model.config
        self.quantization = model.quantization
        self.dtype = choice.dtype
        self.exactness = choice.exactness
        self.computed_by = choice.reason
        self.step_weight_bytes = runner.step_weight_bytes
        self.kv_token_bytes = runner.kv_token_bytes
        self.traits = runner.traits
        self._shape = runner.shape

        @contextmanager
        def scope() -> Iterator[None]:
            if num_threads is not None:
                torch.set_num_threads(num_threads)  # counts for the thread that calls it
            with torch.inference_mode():
                yield

        self._thread = StepThread("loopwright-engine", runner.run, scope)

    @property
    def shape(self) -> EngineShape:
        return self._shape

    def submit(self, batch: Batch) -> Future[StepResult]:
        return self._thread.submit(batch)

    def close(self) -> None:
        self._thread.close()


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
) -> TorchExecutor | DeviceExecutor:
    """Loads the model at `path` (a GGUF file or a Hugging Face folder), or some of its layers, and starts its executor.
    `ahead` is the same file, if somebody has begun to decode it; with `shape` there is none, and weights are random.
    `num_blocks` 0 is 2048, or on a GPU as many as fit beside steps of `max_rows` and `max_tokens`, of which 0 is what
    a GPU's memory is good for.

    Raises BadRequest and Unavailable as `load_model` and `choose_device` do."""
    if shape:  # what is refused is refused before gigabytes are drawn
        choose_device(device, shape_config(shape), dtype, attention, is_deterministic=is_deterministic)
    model = dummy_model(shape_config(shape)) if shape else load_model(path, ahead, layers)
    choice = choose_device(device, model.config, dtype, attention, is_deterministic=is_deterministic)
    if choice is not None:
        return DeviceExecutor(
            model, choice, num_blocks=num_blocks, num_slots=num_slots, max_rows=max_rows, max_tokens=max_tokens,
            report=_log_progress,
        )  # fmt: skip
    if attention == "flashinfer":
        raise Unavailable("engine.attention: 'flashinfer' runs on a GPU alone", field="engine.attention")
    executor = TorchExecutor(
        model,
        num_blocks=num_blocks or DEFAULT_BLOCKS,
        num_slots=num_slots,
        num_threads=num_threads,
        dtype=dtype,
        instructions=instructions,
        scratch_bytes=scratch_bytes,
    )
    if is_deterministic and executor.exactness != "deterministic":
        executor.close()
        raise Unavailable(
            f"engine.deterministic: {executor.computed_by} is not",
            hint="the native kernels are: engine.dtype = 'bfloat16'",
            field="engine.deterministic",
        )
    return executor


def _log_progress(stage: str, fraction: float | None) -> None:
    logger.info("%s%s", stage, "" if fraction is None else f": {fraction:.0%}")
