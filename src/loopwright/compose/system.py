"""The composition root: a config becomes objects and processes, wired together. Decides nothing, knows every layer.

Used by the command line, the worker processes and tests.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from loopwright.compose.children import open_workers
from loopwright.compose.config import Config, RuntimeConfig
from loopwright.compose.model_parts import ModelParts, Report, open_model
from loopwright.control.controller import Controller
from loopwright.control.scheduler import ControlConfig
from loopwright.core.clock import SystemClock
from loopwright.core.control import Control
from loopwright.core.runs import Runs
from loopwright.runtime.host import ModelText
from loopwright.runtime.launcher import Launcher
from loopwright.runtime.program_store import ProgramStore
from loopwright.runtime.sandbox import Sandbox
from loopwright.runtime.sandboxes.native import NativeSandbox
from loopwright.runtime.sandboxes.runner_build import prepare_runner
from loopwright.runtime.sandboxes.wasm import open_wasm_sandbox
from loopwright.weights import store


@dataclass(frozen=True, slots=True)
class System:
    """A running system of one process. `runs` is what a server needs; the rest is for measuring."""

    runs: Launcher
    control: Controller
    model: ModelParts

    @property
    def model_path(self) -> Path:
        return self.model.path

    @property
    def num_threads(self) -> int:
        return self.model.num_threads

    @property
    def step_weight_bytes(self) -> int:
        return self.model.step_weight_bytes


@dataclass(frozen=True, slots=True)
class DistributedSystem:
    """A running system of several processes, as its server sees it."""

    runs: Runs


@asynccontextmanager
async def open_system(config: Config, report: Report) -> AsyncIterator[System | DistributedSystem]:
    """Starts everything the config asks for, and stops it at the end. `report` is told of long work."""
    if config.num_runtime_workers:
        await asyncio.to_thread(store.resolve, config.model, report)  # downloads happen here, where they are shown
        await asyncio.to_thread(prepare_runner, store.cache_folder(), report)
        async with open_workers(config) as runs:
            yield DistributedSystem(runs)
    else:
        async with open_here(config, report) as system:
            yield system


@asynccontextmanager
async def open_here(config: Config, report: Report) -> AsyncIterator[System]:
    """All layers in this process."""
    files = await asyncio.to_thread(store.resolve, config.model, report)
    async with AsyncExitStack() as stack:
        sandboxes_ready = asyncio.create_task(open_sandboxes(config.runtime, report))
        try:
            model = await stack.enter_async_context(open_model(files, config.engine))
        except BaseException:
            sandboxes_ready.cancel()
            raise
        sandboxes = await sandboxes_ready
        stack.push_async_callback(close_sandboxes, sandboxes)
        control = await stack.enter_async_context(open_control(model, config.control))
        launcher = make_launcher(control, model.text, sandboxes, config.runtime)
        yield System(await stack.enter_async_context(launcher), control, model)


@asynccontextmanager
async def open_control(model: ModelParts, config: ControlConfig) -> AsyncIterator[Controller]:
    """The control layer over an engine, serving until the end."""
    controller = Controller(
        model.executor,
        token_bytes=model.text.tokenizer.token_bytes,
        model_info=model.info,
        clock=SystemClock(),
        config=config,
    )
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(controller.serve())
        try:
            yield controller
        finally:
            serving.cancel()


async def open_sandboxes(config: RuntimeConfig, report: Report) -> dict[str, Sandbox]:
    """The sandboxes by name. Builds the Wasm runner first if this machine has not."""
    sandboxes: dict[str, Sandbox] = {"native": NativeSandbox()}
    if config.needs_wasm:
        runner = await asyncio.to_thread(prepare_runner, store.cache_folder(), report)
        sandboxes["wasm"] = open_wasm_sandbox(runner, config.sandbox_backend)
    return sandboxes


async def close_sandboxes(sandboxes: dict[str, Sandbox]) -> None:
    for sandbox in sandboxes.values():
        await sandbox.close()


def make_launcher(control: Control, text: ModelText, sandboxes: dict[str, Sandbox], config: RuntimeConfig) -> Launcher:
    """The runtime over a control layer, wherever that runs."""
    return Launcher(
        control=control,
        model=text,
        sandboxes=sandboxes,
        programs=ProgramStore(Path(config.programs_dir) if config.programs_dir else None),
        clock=SystemClock(),
        caps=config.caps,
        max_live_runs=config.max_live_runs,
        allows_native=config.allows_native,
    )


@asynccontextmanager
async def open_bench_system(model: str) -> AsyncIterator[System]:
    """The system that `loopwright bench` measures: one process, the defaults."""
    async with open_here(Config(model=model), _no_report) as system:
        yield system


def _no_report(stage: str, fraction: float | None) -> None:
    """For measurements, which print their own table."""
