"""Whole systems for tests: real control, real sandboxes, and an engine of the test's choice.

Every system asks all its pools at its end whether anything leaked.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import torch

from loopwright.compose.config import RuntimeConfig
from loopwright.compose.exchange import make_exchange
from loopwright.compose.model_parts import load_tokenizer, model_text
from loopwright.compose.system import close_sandboxes, make_launcher, open_sandboxes
from loopwright.control.config import ControlConfig
from loopwright.control.controller import Controller
from loopwright.core.batch import Batch, StepResult
from loopwright.core.clock import SystemClock
from loopwright.core.events import Event, Finished, Text
from loopwright.core.executor import EngineShape, Executor
from loopwright.core.instrument import Meter
from loopwright.core.model_info import ModelInfo, WeightDtype
from loopwright.core.runs import RunSpec
from loopwright.core.traits import supported
from loopwright.engine.byte_model import byte_model
from loopwright.engine.executor import TorchExecutor
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.loader import load_model
from loopwright.engine.model_runner import ModelRunner
from loopwright.engine.oracle import Oracle
from loopwright.grammar.pool import GrammarPool
from loopwright.runtime.facts import ModelText
from loopwright.runtime.launcher import Launcher
from loopwright.runtime.run_span import SpanSink
from loopwright.runtime.tool_config import ToolsConfig
from loopwright.runtime.toolbox import open_toolbox
from loopwright.runtime.tracing import TraceSink
from loopwright.text.load_tokenizer import byte_tokenizer
from loopwright.text.reasoning import reasoning_tags
from loopwright.text.tokenizer import Tokenizer
from loopwright.weights.store import ModelFiles, no_progress

PROGRAMS = Path(__file__).parent.parent / "programs"

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Outcome:
    """A finished run."""

    events: tuple[Event, ...]

    @property
    def final(self) -> Finished:
        final = self.events[-1]
        assert isinstance(final, Finished)
        return final

    @property
    def result(self) -> Any:
        """What the program returned; fails when the run did not end well."""
        assert self.final.code == "ok", self.final.error
        return self.final.result

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Text))


class WatchedExecutor:
    """Any executor, with its batches recorded, whose steps wait while it is held."""

    def __init__(self, inner: Executor) -> None:
        self.batches: list[Batch] = []
        self._inner = inner
        self._is_held = False
        self._waiting: tuple[Batch, Future[StepResult]] | None = None

    @property
    def shape(self) -> EngineShape:
        return self._inner.shape

    def submit(self, batch: Batch) -> Future[StepResult]:
        self.batches.append(batch)
        if not self._is_held:
            return self._inner.submit(batch)
        assert self._waiting is None, "one step at a time"
        future: Future[StepResult] = Future()
        self._waiting = (batch, future)
        return future

    def hold(self) -> None:
        """From now on a step waits; one that runs already goes on."""
        self._is_held = True

    @property
    def is_waiting(self) -> bool:
        """Whether a step is there and held."""
        return self._waiting is not None

    def step(self) -> None:
        """Lets the step that waits run, and no other."""
        assert self._waiting is not None, "no step waits"
        (batch, future), self._waiting = self._waiting, None
        self._inner.submit(batch).add_done_callback(lambda done: future.set_result(done.result()))

    def release(self) -> None:
        """Lets the step that waits run, and all that follow."""
        self._is_held = False
        if self._waiting is not None:
            self.step()

    def close(self) -> None:
        self._inner.close()


@dataclass(frozen=True)
class System:
    """A running system."""

    launcher: Launcher
    controller: Controller
    text: ModelText
    executor: Executor

    async def start(self, source: str, sandbox: str = "native", seed: int = 0, **arguments: Any) -> "RunningRun":
        """Starts a program given by its source."""
        spec = RunSpec(source=source, arguments=arguments, sandbox=sandbox, seed=seed)  # type: ignore[arg-type]
        return RunningRun(self.launcher, await self.launcher.start(spec))

    async def run(self, source: str, sandbox: str = "native", seed: int = 0, **arguments: Any) -> Outcome:
        """Runs a program to its end."""
        return await (await self.start(source, sandbox, seed, **arguments)).outcome()

    async def chat(self, content: str, max_tokens: int | None = None, **sampling: Any) -> Outcome:
        """Runs the built-in chat program, as an OpenAI request would; greedy unless told otherwise."""
        options = {"max_tokens": max_tokens, "sampling": {"temperature": 0.0, **sampling}}
        arguments = {"messages": [{"role": "user", "content": content}], "options": options}
        run_id = await self.launcher.start(RunSpec(program="chat", arguments=arguments, sandbox="native"))
        return await RunningRun(self.launcher, run_id).outcome()


@dataclass(frozen=True)
class RunningRun:
    """A run that was started."""

    launcher: Launcher
    run_id: Any

    async def outcome(self) -> Outcome:
        events = tuple([event async for event in self.launcher.events(self.run_id)])
        seqs = [event.seq for event in events]
        assert seqs == list(range(len(events)))
        assert sum(isinstance(event, Finished) for event in events) == 1
        return Outcome(events)


@asynccontextmanager
async def system_over(
    executor: Executor,
    text: ModelText,
    *,
    runtime: RuntimeConfig | None = None,
    control: ControlConfig | None = None,
    tools: ToolsConfig | None = None,
    trace: TraceSink | None = None,
    spans: SpanSink | None = None,
) -> AsyncIterator[System]:
    """All layers above `executor`, which stays the caller's. Checks at the end that everything came back."""
    runtime = runtime or RuntimeConfig(allows_native=True)
    grammars = GrammarPool(text.tokenizer, text.info.vocab_size)
    controller = Controller(
        executor,
        text.tokenizer.token_bytes,
        text.info,
        SystemClock(),
        control or ControlConfig(),
        grammars,
        Meter({"model": text.info.name}),
        text.tokenizer.bytes_with_marks,
    )
    async with AsyncExitStack() as stack:
        stack.callback(grammars.close)
        sandboxes = await open_sandboxes(runtime, no_progress)
        stack.push_async_callback(close_sandboxes, sandboxes)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        serving = tasks.create_task(controller.serve())
        stack.callback(serving.cancel)
        exchange = stack.enter_context(closing(make_exchange(runtime)))
        toolbox = await stack.enter_async_context(open_toolbox(tools or ToolsConfig()))
        async with make_launcher(
            controller, text, sandboxes, runtime, exchange, trace, tools=toolbox, spans=spans
        ) as launcher:
            yield System(launcher, controller, text, executor)
            launcher.check_integrity()
            exchange.check_integrity()
        assert exchange.num_members == 0
        await everything_came_back(controller)
        for sandbox in sandboxes.values():
            sandbox.check_integrity()  # type: ignore[attr-defined]
            assert sandbox.num_live == 0  # type: ignore[attr-defined]


async def everything_came_back(controller: Controller, num_turns: int = 10_000) -> None:
    """Waits for the step that runs, and then asks the pools."""
    for _ in range(num_turns):
        stats = await controller.stats()
        if stats.num_free_blocks == stats.num_blocks and stats.num_live_runs == 0:
            break
        await asyncio.sleep(0.001)
    stats = await controller.stats()
    assert stats.num_free_blocks == stats.num_blocks, stats
    assert (stats.num_live_runs, stats.num_waiting_calls) == (0, 0), stats
    controller.check_integrity()


def make_info(executor: Executor, tokenizer: Tokenizer, name: str, has_template: bool) -> ModelInfo:
    shape = executor.shape
    return ModelInfo(
        name=name,
        architecture="llama",
        traits=supported((*ModelRunner.traits, "tokenize")),
        vocab_size=shape.vocab_size,
        max_context=shape.max_context,
        page_size=shape.block_size,
        num_pages=shape.num_blocks,
        eos_ids=tokenizer.eos_ids,
        max_token_bytes=max(map(len, tokenizer.token_bytes)),
        bos_id=tokenizer.bos_id if tokenizer.add_bos else None,
        has_chat_template=has_template,
        quantization="F32",
        weights_sha256="",
        reasoning=reasoning_tags(tokenizer.chat_template, tokenizer.controls),
        version="F32-test",
    )


def byte_text(executor: Executor) -> ModelText:
    """The text side of the byte model, over any executor with its vocabulary."""
    tokenizer = byte_tokenizer(CHATML)
    return model_text(make_info(executor, tokenizer, "byte", has_template=True), tokenizer)


@asynccontextmanager
async def byte_system(
    *, num_blocks: int = 256, seed: int = 0, dtype: WeightDtype = "float32", max_context: int = 4096, **options: Any
) -> AsyncIterator[System]:
    """A system over the byte model in the real engine, watched."""
    model = byte_model(seed, max_context=max_context)
    engine = TorchExecutor(model, num_blocks=num_blocks, num_slots=256, num_threads=1, dtype=dtype)
    executor = WatchedExecutor(engine)
    try:
        async with system_over(executor, byte_text(executor), **options) as system:
            yield system
    finally:
        executor.close()


def byte_oracle(seed: int = 0) -> Oracle:
    """The one-request loop over the same weights."""
    torch.set_num_threads(1)  # for this thread: a second core would cost more than it does
    return Oracle(byte_model(seed))


@dataclass
class SmolLM2:
    """The real default model: its weights, its engine and its text side."""

    model: LoadedModel
    executor: TorchExecutor
    text: ModelText

    @classmethod
    def load(cls, files: ModelFiles) -> "SmolLM2":
        model = load_model(files.path)
        executor = TorchExecutor(model, num_blocks=1024, num_slots=64, num_threads=1)
        tokenizer = load_tokenizer(files)
        return cls(model, executor, model_text(make_info(executor, tokenizer, files.name, True), tokenizer))

    @cached_property
    def oracle(self) -> Oracle:
        torch.set_num_threads(1)
        return Oracle(self.model)

    def close(self) -> None:
        self.executor.close()


async def until(is_true: Callable[[], bool] | Callable[[], Awaitable[bool]], timeout_s: float = 60.0) -> None:
    """Lets others run until the condition holds; fails the test when it never does."""
    async with asyncio.timeout(timeout_s):
        while not (await held if isinstance(held := is_true(), Awaitable) else held):  # noqa: ASYNC110 (there is no event for what others do)
            await asyncio.sleep(0.001)


async def together(system: System, *work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Does all the work at once, over a watched engine, so that the first steps of all of it are one batch."""
    engine = system.executor
    assert isinstance(engine, WatchedExecutor)

    async def all_wait() -> bool:
        return (await system.controller.stats()).num_waiting_calls == len(work)

    engine.hold()
    try:
        before = asyncio.create_task(system.chat("x", max_tokens=1))
        await until(lambda: engine.is_waiting)
        tasks = [asyncio.create_task(one) for one in work]
        await until(all_wait)
    finally:
        engine.release()
    return (await asyncio.gather(before, *tasks))[1:]


def program_source(name: str) -> str:
    """The text of a file in programs/."""
    return (PROGRAMS / f"{name}.py").read_text()


def in_loop(scenario: Callable[[], Any]) -> None:
    """Runs an asynchronous test in a loop of its own."""
    asyncio.run(scenario())


def event_list(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Events as a client sees them, less what differs from run to run."""
    return [json.loads(msgspec.json.encode(_plain(event))) for event in events]


def _plain(event: Event) -> dict[str, Any]:
    left_out = ("run", "seq", "time_s", "seed", "ran")
    fields = {name: getattr(event, name) for name in event.__struct_fields__ if name not in left_out}
    return {"type": type(event).__struct_config__.tag, **fields}
