"""A whole system whose device is simulated in real time: the text side of a model without its weights. For benchmarks.

What a token says is always the same, so it is good for what the host takes, and for nothing that a model says.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing

from loopwright.compose.config import Config
from loopwright.compose.exchange import make_exchange
from loopwright.compose.model_parts import ModelParts, load_tokenizer, model_text
from loopwright.compose.one_error import one_error
from loopwright.compose.system import System, close_sandboxes, make_launcher, make_sandboxes, open_control
from loopwright.core.executor import EngineShape
from loopwright.core.model_info import ModelInfo
from loopwright.core.step_costs import StepCosts
from loopwright.core.traits import supported
from loopwright.engine.paced import PacedExecutor
from loopwright.runtime.sandboxes.runner_build import prepare_runner
from loopwright.weights import store

_TEXT = " word"  # what a token says, or begins to


@asynccontextmanager
async def open_device_system(config: Config, costs: StepCosts) -> AsyncIterator[System]:
    """Serves the configured model's text side in this process. Raises what a model cannot be resolved for."""
    files = await asyncio.to_thread(store.resolve, config.model)
    runner = (
        await asyncio.to_thread(prepare_runner, store.cache_folder(), store.no_progress)
        if config.runtime.needs_wasm
        else None
    )
    with one_error():
        async with AsyncExitStack() as stack:
            sandboxes = make_sandboxes(config.runtime, runner)
            stack.push_async_callback(close_sandboxes, sandboxes)
            tokenizer = await asyncio.to_thread(load_tokenizer, files)
            shape = EngineShape(
                vocab_size=len(tokenizer.token_bytes), max_context=8192, block_size=16,
                num_blocks=config.engine.num_blocks, num_slots=config.engine.num_slots, steps_ahead="usual",
            )  # fmt: skip
            executor = stack.enter_context(closing(PacedExecutor(shape, costs, tokenizer.encode(_TEXT)[0])))
            info = ModelInfo(
                name=files.name, architecture="simulated", traits=supported((*executor.traits, "tokenize")),
                vocab_size=shape.vocab_size, max_context=shape.max_context, page_size=shape.block_size,
                num_pages=shape.num_blocks, eos_ids=tokenizer.eos_ids,
                bos_id=tokenizer.bos_id if tokenizer.add_bos else None,
                has_chat_template=bool(tokenizer.chat_template), quantization="none", weights_sha256="",
            )  # fmt: skip
            model = ModelParts(
                model_text(info, tokenizer), executor, files.path, num_threads=1, step_weight_bytes=1,
                kv_token_bytes=1, dtype="bfloat16",
            )  # fmt: skip
            control = await stack.enter_async_context(open_control(model, config.control))
            exchange = stack.enter_context(closing(make_exchange(config.runtime)))
            launcher = make_launcher(control, model.text, sandboxes, config.runtime, exchange)
            yield System(await stack.enter_async_context(launcher), control, model)
