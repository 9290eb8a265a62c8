"""Loads a model: its files, its text side, its engine. Never serves it. Used by `system` and the model worker.

The engine is imported when a model is loaded, and not at the top: torch takes a second and 200 MB, so only processes
that compute import it, and beside other work.
"""

import asyncio
import gc
import hashlib
import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, cast

import msgspec

from loopwright.compose.config import EngineConfig, num_cores
from loopwright.compose.given_back import give_back_memory
from loopwright.compose.loading import on_daemon_thread
from loopwright.control.config import ControlConfig
from loopwright.core.clock import SystemClock
from loopwright.core.errors import LoopwrightError
from loopwright.core.executor import Executor
from loopwright.core.model_info import ModelInfo, WeightDtype
from loopwright.core.traits import supported
from loopwright.runtime.facts import ModelText
from loopwright.text.byte_tokenizer import made_up_tokenizer
from loopwright.text.chat_template import ChatTemplate
from loopwright.text.load_tokenizer import tokenizer_from_folder, tokenizer_from_gguf
from loopwright.text.reasoning import reasoning_tags
from loopwright.text.tokenizer import Tokenizer
from loopwright.weights.gguf import read_gguf
from loopwright.weights.store import ModelFiles

if TYPE_CHECKING:
    from concurrent.futures import Future

    from loopwright.engine.decoded_ahead import DecodedAhead
    from loopwright.engine.executor import TorchExecutor

Report = Callable[[str, float | None], None]

DUMMY_VOCABULARIES = {
    "llama-1b": 128256, "llama-3b": 128256, "llama-8b": 128256, "mistral-7b": 32000, "gemma-3-4b": 262208,
    "qwen3-30b-a3b": 151936, "tiny": 512, "tiny-experts": 512,
}  # fmt: skip
"""Ids of the shapes that engine.cuda.dummy has; who makes a tokenizer need not import torch."""

_import_lock = Lock()


@dataclass(frozen=True, slots=True)
class ModelParts:
    """A model that is ready to be served by this process."""

    text: ModelText
    executor: Executor
    path: Path
    num_threads: int
    step_weight_bytes: int
    kv_token_bytes: int
    dtype: WeightDtype
    lost: "Future[LoopwrightError] | None" = None  # gets why the engine can run nothing any more; None: it always can

    @property
    def info(self) -> ModelInfo:
        return self.text.info


@asynccontextmanager
async def open_model(
    files: ModelFiles,
    config: EngineConfig,
    ahead: "DecodedAhead | None" = None,
    limits: ControlConfig = ControlConfig(),  # noqa: B008 (frozen)
    report: Report | None = None,
) -> AsyncIterator[ModelParts]:
    """Loads weights and tokenizer side by side; closes the engine at the end. `limits` say how large a step may be;
    `report` is told of long work, on another thread."""
    num_threads = config.num_threads or max(1, num_cores() // config.tensor_parallel)
    executor, tokenizer = await asyncio.gather(
        on_daemon_thread(lambda: _load_executor(files, config, num_threads, ahead, limits, report)),
        on_daemon_thread(lambda: tokenizer_from_gguf(ahead.file.metadata) if ahead else load_tokenizer(files)),
    )
    give_back_memory()
    try:
        yield ModelParts(
            text=model_text(_info(files, executor, tokenizer), tokenizer),
            executor=executor,
            path=files.path,
            num_threads=num_threads,
            step_weight_bytes=executor.step_weight_bytes,
            kv_token_bytes=executor.kv_token_bytes,
            dtype=executor.dtype,
            lost=executor.lost,
        )
    finally:
        executor.close()


def import_engine() -> ModuleType:
    """The engine's executor module, imported on first use. Safe on any thread."""
    with _import_lock:
        gc.disable()  # torch makes 100,000 objects and keeps them: looking for garbage would be a tenth of the time
        try:
            return importlib.import_module("loopwright.engine.executor")
        finally:
            gc.enable()


def decode_ahead(path: Path) -> "DecodedAhead | None":
    """Begins to decode a model in a process of its own, where that helps; None where it does not. What is wrong with
    the file is left to who loads it."""
    from loopwright.engine.decoded_ahead import DecodedAhead, can_decode_ahead  # noqa: PLC0415 (needs numpy)

    if path.is_dir():
        return None
    with suppress(OSError, LoopwrightError):
        file = read_gguf(path)
        return DecodedAhead(file) if can_decode_ahead(file, num_cores()) else None
    return None


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer that comes with a model's files; one without files gets one that is made up."""
    return made_up_tokenizer(DUMMY_VOCABULARIES.get(files.shape, 0)) if files.shape else tokenizer_at(files.path)


def tokenizer_at(path: Path) -> Tokenizer:
    """The tokenizer that comes with a GGUF file or a folder."""
    return tokenizer_from_folder(path) if path.is_dir() else tokenizer_from_gguf(read_gguf(path).metadata)


def model_text(info: ModelInfo, tokenizer: Tokenizer) -> ModelText:
    """The text side of a model, with its chat template if it has one, and what can be known of it."""
    if not (source := tokenizer.chat_template):
        return ModelText(info, tokenizer, None)
    template = ChatTemplate(source, tokenizer, SystemClock())
    info = msgspec.structs.replace(info, tool_format=template.tool_format, template_options=template.options)
    return ModelText(info, tokenizer, template)


def _load_executor(
    files: ModelFiles, config: EngineConfig, num_threads: int, ahead: "DecodedAhead | None", limits: ControlConfig,
    report: Report | None,
) -> "TorchExecutor":  # fmt: skip
    executor = import_engine().create_executor(
        files.path,
        shape=files.shape,
        device=config.device,
        attention=config.attention,
        is_deterministic=config.deterministic,
        max_rows=limits.max_batch_rows,
        max_tokens=limits.max_batch_tokens,
        num_blocks=config.num_blocks,
        num_slots=config.num_slots,
        num_threads=num_threads,
        dtype=files.dtype or config.dtype,
        instructions=None if config.instructions == "auto" else config.instructions,
        scratch_bytes=config.scratch_mb << 20,
        ahead=ahead,
        layers=files.layers,
        report=report,
        num_ranks=config.tensor_parallel,
    )
    return cast("TorchExecutor", executor)


def _info(files: ModelFiles, executor: "TorchExecutor", tokenizer: Tokenizer) -> ModelInfo:
    some = f"-of-{len(files.layers)}-layers" if files.layers else ""
    return ModelInfo(
        name=files.name,
        architecture=executor.config.architecture,
        traits=supported((*executor.traits, "tokenize")),
        vocab_size=executor.shape.vocab_size,
        max_context=executor.shape.max_context,
        page_size=executor.shape.block_size,
        num_pages=executor.shape.num_blocks,
        eos_ids=tokenizer.eos_ids,
        max_token_bytes=max(map(len, tokenizer.token_bytes)),
        bos_id=tokenizer.bos_id if tokenizer.add_bos else None,
        has_chat_template=bool(tokenizer.chat_template),
        quantization=executor.quantization,
        weights_sha256=files.sha256,
        exactness=executor.exactness,
        template_sha256=hashlib.sha256(tokenizer.chat_template.encode()).hexdigest() if tokenizer.chat_template else "",
        reasoning=reasoning_tags(tokenizer.chat_template, tokenizer.controls),
        engine=f"loopwright {version('loopwright')}, {executor.computed_by}",
        license=files.license,
        description=files.description,
        version=f"{executor.quantization}-{executor.dtype}-{files.sha256[:12]}{some}",
    )
