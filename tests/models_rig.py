"""Several models on one launcher, for tests: each with a control layer and an engine of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from loopwright.compose.config import RuntimeConfig
from loopwright.compose.exchange import make_exchange
from loopwright.compose.model_parts import model_text
from loopwright.compose.system import make_launcher
from loopwright.control.config import ControlConfig
from loopwright.control.controller import Controller
from loopwright.core.clock import SystemClock
from loopwright.core.executor import Executor
from loopwright.core.runs import RunSpec
from loopwright.engine.byte_model import byte_model
from loopwright.engine.executor import TorchExecutor
from loopwright.grammar.pool import GrammarPool
from loopwright.runtime.launcher import Launcher
from loopwright.runtime.sandboxes.native import NativeSandbox
from loopwright.runtime.served_models import ServedModel
from loopwright.text.load_tokenizer import byte_tokenizer
from system_rig import CHATML, Outcome, RunningRun, everything_came_back, make_info


class Served:
    """A launcher over several models, and its control layers."""

    def __init__(self, launcher: Launcher, controls: dict[str, Controller]) -> None:
        self.launcher, self.controls = launcher, controls

    async def run(self, source: str, *, model: str = "", **arguments: Any) -> Outcome:
        """Runs a program natively; all other arguments are those of its `main`, a seed too."""
        spec = RunSpec(source=source, sandbox="native", model=model, seed=0, arguments=arguments)
        return await RunningRun(self.launcher, await self.launcher.start(spec)).outcome()

    async def num_steps(self) -> dict[str, int]:
        return {name: (await one.stats()).num_steps for name, one in self.controls.items()}


@asynccontextmanager
async def serving(executors: dict[str, Executor]) -> AsyncIterator[Served]:
    runtime = RuntimeConfig(allows_native=True, needs_wasm=False)
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        models: list[ServedModel] = []
        controls: dict[str, Controller] = {}
        for name, executor in executors.items():
            tokenizer = byte_tokenizer(CHATML)
            text = model_text(make_info(executor, tokenizer, name, has_template=True), tokenizer)
            grammars = GrammarPool(tokenizer, text.info.vocab_size)
            stack.callback(grammars.close)
            control = Controller(executor, tokenizer.token_bytes, text.info, SystemClock(), ControlConfig(), grammars)
            stack.callback(tasks.create_task(control.serve()).cancel)
            models.append(ServedModel(text, control))
            controls[name] = control
        exchange = make_exchange(runtime)
        stack.callback(exchange.close)
        first, *more = models
        sandboxes = {"native": NativeSandbox()}
        async with make_launcher(first.control, first.text, sandboxes, runtime, exchange, more=more) as launcher:  # type: ignore[arg-type]
            yield Served(launcher, controls)
        for control in controls.values():
            await everything_came_back(control)


@asynccontextmanager
async def two_byte_models() -> AsyncIterator[Served]:
    """Of different weights: alpha is the default."""
    executors = {
        name: TorchExecutor(byte_model(seed), num_blocks=64, num_slots=64, num_threads=1)
        for seed, name in enumerate(("alpha", "beta"))
    }
    try:
        async with serving(executors) as served:
            yield served
    finally:
        for executor in executors.values():
            executor.close()
