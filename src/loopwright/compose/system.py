"""The composition root: a config becomes objects and processes, wired together. Decides nothing, knows every layer.

Used by the command line, the worker processes and tests.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Literal

from loopwright.compose.config import Config, EngineConfig, RuntimeConfig
from loopwright.compose.exchange import make_exchange
from loopwright.compose.model_parts import ModelParts, Report, decode_ahead, import_engine, open_model
from loopwright.compose.one_error import one_error
from loopwright.compose.otel_spans import open_spans
from loopwright.control.config import ControlConfig
from loopwright.control.controller import Controller
from loopwright.control.policies import PolicyName
from loopwright.core.clock import SystemClock
from loopwright.core.control import Control
from loopwright.core.errors import LoopwrightError
from loopwright.core.exchange import Exchange
from loopwright.core.executor import Executor
from loopwright.core.instrument import Meter
from loopwright.core.model_info import WeightDtype
from loopwright.core.runs import Runs
from loopwright.engine.paced import PacedExecutor
from loopwright.grammar.pool import GrammarPool
from loopwright.runtime.facts import ModelText
from loopwright.runtime.launcher import Launcher
from loopwright.runtime.program_store import ProgramStore
from loopwright.runtime.run_span import SpanSink
from loopwright.runtime.sandbox import Sandbox
from loopwright.runtime.sandboxes.native import NativeSandbox
from loopwright.runtime.sandboxes.runner_build import RunnerFiles, prepare_runner
from loopwright.runtime.sandboxes.wasm import open_wasm_sandbox
from loopwright.runtime.served_models import ServedModel, ServedModels
from loopwright.runtime.toolbox import NO_TOOLS, Toolbox, open_toolbox
from loopwright.runtime.tracing import TraceSink
from loopwright.weights import store
from loopwright.weights.store import ModelFiles

if TYPE_CHECKING:
    from loopwright.engine.decoded_ahead import DecodedAhead


@dataclass(frozen=True, slots=True)
class System:
    """A running system of one process. `runs` is what a server needs; the rest is for measuring."""

    runs: Launcher
    control: Controller
    model: ModelParts

    @asynccontextmanager
    async def control_with(self, policy: PolicyName) -> AsyncIterator[Control]:
        """A control layer of that batching policy over the same engine, which nothing else may use meanwhile."""
        async with open_control(self.model, ControlConfig(policy=policy)) as control:
            yield control

    @property
    def model_path(self) -> Path:
        return self.model.path

    @property
    def num_threads(self) -> int:
        return self.model.num_threads

    @property
    def step_weight_bytes(self) -> int:
        return self.model.step_weight_bytes

    @property
    def kv_token_bytes(self) -> int:
        return self.model.kv_token_bytes

    @property
    def executor(self) -> Executor:
        return self.model.executor

    @property
    def device_s(self) -> float | None:
        return self.model.executor.busy_s if isinstance(self.model.executor, PacedExecutor) else None

    @property
    def dtype(self) -> WeightDtype:
        return self.model.dtype


@dataclass(frozen=True, slots=True)
class DistributedSystem:
    """A running system of several processes, as its server sees it. Their sockets are in `folder`."""

    runs: Runs
    folder: Path


@dataclass(frozen=True, slots=True)
class Prepared:
    """What lies on this machine's disk and is whole."""

    model: ModelFiles
    more: tuple[ModelFiles, ...]  # further models
    runner: RunnerFiles | None  # None: no Wasm sandbox
    ahead: "DecodedAhead | None" = None  # what is being decoded already


def prepare(config: Config, report: Report) -> Prepared:
    """Fetches the model and builds the runner, if the machine lacks them; `report` is told of long work.

    For the main thread, outside of an event loop: there an interrupt ends it at once, whatever it waits for. Then
    another process decodes the weights and another thread imports the engine, unless other processes are to compute."""
    files = store.resolve(config.model_names[0], report)
    more = tuple(store.resolve(name, report) for name in config.more_models)
    ahead = None
    if not config.num_runtime_workers:
        is_part = files.layers or files.shape or config.engine.tensor_parallel > 1
        ahead = None if is_part else decode_ahead(files.path)  # a fork: before there are threads
        Thread(target=_import_early, name="loopwright-import", daemon=True).start()
    runner = prepare_runner(store.cache_folder(), report) if config.runtime.needs_wasm else None
    return Prepared(files, more, runner, ahead)


def _import_early() -> None:
    with suppress(ImportError):  # who loads a model imports it again, and reports it
        import_engine()


@asynccontextmanager
async def open_system(
    config: Config, prepared: Prepared, report: Report | None = None
) -> AsyncIterator[System | DistributedSystem]:
    """Starts everything the config asks for, and stops it at the end. `report` is told of long work meanwhile."""
    if config.num_runtime_workers:
        from loopwright.compose.children import open_workers  # noqa: PLC0415 (sockets, which one process does without)

        with one_error():
            async with open_workers(config, report) as workers:
                yield DistributedSystem(workers.router, workers.folder)
    else:
        async with open_here(config, prepared, report=report) as system:
            yield system


@asynccontextmanager
async def open_here(
    config: Config, prepared: Prepared, trace: TraceSink | None = None, report: Report | None = None
) -> AsyncIterator[System]:
    """All layers in this process. `trace` is told of all that runs ask and get."""
    with one_error():
        async with AsyncExitStack() as stack:
            sandboxes = make_sandboxes(config.runtime, prepared.runner)  # first: they warm up while the model loads
            stack.push_async_callback(close_sandboxes, sandboxes)
            model = await stack.enter_async_context(
                open_model(prepared.model, config.engine, prepared.ahead, config.control, report)
            )
            control = await stack.enter_async_context(open_control(model, config.control))
            exchange = stack.enter_context(closing(make_exchange(config.runtime)))
            more = [await stack.enter_async_context(_open_further(files, config)) for files in prepared.more]
            tools = await stack.enter_async_context(open_toolbox(config.tools))
            spans = stack.enter_context(open_spans(config.telemetry))
            launcher = make_launcher(
                control, model.text, sandboxes, config.runtime, exchange, trace, more, tools, spans
            )
            yield System(await stack.enter_async_context(launcher), control, model)


@asynccontextmanager
async def _open_further(files: ModelFiles, config: Config) -> AsyncIterator[ServedModel]:
    """One of the further models, with an engine and a control layer of its own."""
    async with (
        open_model(files, config.engine, limits=config.control) as model,
        open_control(model, config.control) as control,
    ):
        yield ServedModel(model.text, control)


@asynccontextmanager
async def open_control(model: ModelParts, config: ControlConfig) -> AsyncIterator[Controller]:
    """The control layer over an engine, serving until the end."""
    grammars = GrammarPool(model.text.tokenizer, model.info.vocab_size)
    controller = Controller(
        model.executor,
        token_bytes=model.text.tokenizer.token_bytes,
        model_info=model.info,
        clock=SystemClock(),
        config=config,
        grammars=grammars,
        meter=Meter({"model": model.info.name}),
        bytes_with_marks=model.text.tokenizer.bytes_with_marks,
    )
    async with closing_on_thread(grammars), asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(controller.serve())
        if model.lost is not None:
            model.lost.add_done_callback(partial(_tell_loss, asyncio.get_running_loop(), controller))
        try:
            yield controller
        finally:
            serving.cancel()


def _tell_loss(loop: asyncio.AbstractEventLoop, controller: Controller, lost: Future[LoopwrightError]) -> None:
    """On any thread."""
    if not lost.cancelled() and not loop.is_closed():
        loop.call_soon_threadsafe(controller.lose_engine, lost.result())


@asynccontextmanager
async def closing_on_thread(grammars: GrammarPool) -> AsyncIterator[None]:
    """Closes at the end, without holding up the loop for what is still being compiled."""
    try:
        yield
    finally:
        await asyncio.to_thread(grammars.close)


async def open_sandboxes(config: RuntimeConfig, report: Report) -> dict[str, Sandbox]:
    """As `make_sandboxes`. Builds the Wasm runner first if this machine has not."""
    runner = await asyncio.to_thread(prepare_runner, store.cache_folder(), report) if config.needs_wasm else None
    return make_sandboxes(config, runner)


def make_sandboxes(config: RuntimeConfig, runner: RunnerFiles | None) -> dict[str, Sandbox]:
    """The sandboxes by name; no "wasm" without a runner. Called on the event loop's thread."""
    native: dict[str, Sandbox] = {"native": NativeSandbox()}
    return native if runner is None else {**native, "wasm": open_wasm_sandbox(runner, config.sandbox_backend)}


async def close_sandboxes(sandboxes: dict[str, Sandbox]) -> None:
    for sandbox in sandboxes.values():
        await sandbox.close()


def make_launcher(
    control: Control,
    text: ModelText,
    sandboxes: dict[str, Sandbox],
    config: RuntimeConfig,
    exchange: Exchange,
    trace: TraceSink | None = None,
    more: Sequence[ServedModel] = (),
    tools: Toolbox = NO_TOOLS,
    spans: SpanSink | None = None,
) -> Launcher:
    """The runtime over a control layer, wherever that runs; `more` are further models."""
    return Launcher(
        models=ServedModels([ServedModel(text, control), *more]),
        sandboxes=sandboxes,
        programs=ProgramStore(Path(config.programs_dir) if config.programs_dir else None),
        clock=SystemClock(),
        caps=config.caps,
        max_live_runs=config.max_live_runs,
        allows_native=config.allows_native,
        holds_deadline=config.holds_deadline,
        trace=trace,
        tools=tools,
        exchange=exchange,
        spans=spans,
    )


@asynccontextmanager
async def open_bench_system(
    model: str,
    *,
    prefix_cache: bool = False,
    num_blocks: int | None = None,
    dtype: WeightDtype = "auto",
    steps_ahead: Literal["auto", "on", "off"] = "auto",
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> AsyncIterator[System]:
    """The system that `loopwright bench` measures: one process, the defaults. Only its prefix cache is mostly off:
    rounds repeat their prompts, and the second one would measure nothing."""
    control = ControlConfig(prefix_cache=prefix_cache, steps_ahead=steps_ahead)
    engine = EngineConfig(dtype=dtype, num_blocks=num_blocks or 0, device=device)
    config = Config(model=model, engine=engine, control=control)
    async with open_here(config, await asyncio.to_thread(prepare, config, store.no_progress)) as system:
        yield system
