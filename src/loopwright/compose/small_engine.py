"""Control over the real engine with a small random model, whose vocabulary is as large as one likes. Loads no file.

Used by benchmarks that ask what the engine takes for something that does not depend on the model's size.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from loopwright.control.config import ControlConfig
from loopwright.control.controller import Controller
from loopwright.core.clock import Clock
from loopwright.core.executor import Executor
from loopwright.core.grammars import GrammarCompiler
from loopwright.core.model_info import ModelInfo
from loopwright.engine.byte_model import byte_model
from loopwright.engine.executor import TorchExecutor
from loopwright.engine.model_runner import ModelRunner

_NUM_BLOCKS = 4096


@asynccontextmanager
async def open_small_engine(
    vocab_size: int,
    clock: Clock,
    config: ControlConfig,
    executor: Executor | None = None,
    grammars: GrammarCompiler | None = None,
) -> AsyncIterator[Controller]:
    """Serves until the end, on the running loop; one thread computes. Checks at the end that nothing leaked. It closes
    `executor`, if there is one, which takes the place of torch's."""
    if executor is None:
        model = byte_model(vocab_size=vocab_size)
        executor = TorchExecutor(model, num_blocks=_NUM_BLOCKS, num_slots=1, num_threads=1)
    shape = executor.shape
    info = ModelInfo(
        name="small", architecture="llama", traits=ModelRunner.traits, vocab_size=shape.vocab_size,
        max_context=shape.max_context, page_size=shape.block_size, num_pages=shape.num_blocks, eos_ids=(), bos_id=None,
        has_chat_template=False, quantization="F32", weights_sha256="",
    )  # fmt: skip
    controller = Controller(executor, (), info, clock, config, grammars)
    try:
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(controller.serve())
            try:
                yield controller
            finally:
                serving.cancel()
    finally:
        executor.close()
    controller.check_integrity()
