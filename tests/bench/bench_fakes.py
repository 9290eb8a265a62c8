"""A runtime and a control layer for the bench's tests: they answer by script and move a clock by what a call costs."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from loopwright.core.calls import CreateQueue, Generate, QueueCall
from loopwright.core.clock import FakeClock
from loopwright.core.control import ControlLimits, ControlStats
from loopwright.core.errors import ErrorInfo
from loopwright.core.events import Emit, Event, Finished, Started
from loopwright.core.ids import ONE_TENANT, CallId, RunId, TenantId
from loopwright.core.metrics import NOTHING_MEASURED, Measured
from loopwright.core.model_info import ModelInfo, WeightDtype
from loopwright.core.results import Completion, Done, Progress, Segment
from loopwright.core.runs import ProgramInfo, RunInfo, RunSpec

MODEL = ModelInfo(
    name="byte",
    architecture="llama",
    traits=(),
    vocab_size=260,
    max_context=1024,
    page_size=16,
    num_pages=1024,
    eos_ids=(257,),
    bos_id=256,
    has_chat_template=False,
    quantization="F32",
    weights_sha256="",
)


class FakeRuns:
    """Runs that last `seconds_s` each on the clock, one after another; `error` ends every one from run `fail_at` on."""

    def __init__(self, clock: FakeClock, seconds_s: float, fail_at: int | None = None) -> None:
        self._clock = clock
        self._seconds_s = seconds_s
        self._fail_at = fail_at
        self.specs: list[RunSpec] = []
        self._cancelled: set[RunId] = set()

    def models(self) -> tuple[ModelInfo, ...]:
        return (MODEL,)

    async def deploy(self, name: str, source: str, filename: str, tenant: TenantId = ONE_TENANT) -> ProgramInfo:
        raise NotImplementedError

    async def undeploy(self, name: str, tenant: TenantId = ONE_TENANT) -> None:
        raise NotImplementedError

    async def programs(self) -> tuple[ProgramInfo, ...]:
        return ()

    async def start(self, spec: RunSpec) -> RunId:
        self.specs.append(spec)
        return RunId(str(len(self.specs) - 1))

    async def events(self, run_id: RunId, after: int = -1) -> AsyncIterator[Event]:
        yield Started(run=run_id, seq=0, time_s=0, program="noop", sandbox="wasm", model="byte", seed=0)
        await asyncio.sleep(0)
        if self.specs[int(run_id)].filename == "neighbour.py":  # a round of 2 s after another, until it is cancelled
            seq = max(after, 0)
            while run_id not in self._cancelled:
                seq += 1
                yield Emit(run=run_id, seq=seq, time_s=0, value=[2.0])
                await asyncio.sleep(0)
            yield Finished(run=run_id, seq=seq + 1, time_s=0, code="cancelled")
            return
        self._clock.advance(self._seconds_s)
        if self._fail_at is not None and int(run_id) >= self._fail_at:
            error = ErrorInfo(type="ProgramError", code="program_error", message="it broke")
            yield Finished(run=run_id, seq=1, time_s=0, code="program_error", error=error)
        else:
            yield Finished(run=run_id, seq=1, time_s=0, code="ok", result="done")

    async def cancel(self, run_id: RunId) -> None:
        self._cancelled.add(run_id)

    async def runs(self) -> tuple[RunInfo, ...]:
        return tuple(
            RunInfo(
                run=RunId(str(index)), program="", state="running", code=None, started_s=0, seconds_s=0, num_events=2
            )
            for index in range(len(self.specs))
        )

    async def stats(self) -> ControlStats:
        return ControlStats()

    async def metrics(self) -> Measured:
        return NOTHING_MEASURED


class FakeControl:
    """Control whose step costs `step_s`, whatever the batch: the clock moves when a session is first to ask for it."""

    def __init__(self, clock: FakeClock, step_s: float, num_tokens: int | None = None) -> None:
        self._clock = clock
        self._step_s = step_s
        self._num_tokens = num_tokens
        self._num_steps = 0
        self.sessions: list[FakeSession] = []

    def models(self) -> tuple[ModelInfo, ...]:
        return (MODEL,)

    def open(self, run_id: RunId, limits: ControlLimits, program: str = "") -> "FakeSession":
        session = FakeSession(self)
        self.sessions.append(session)
        return session

    def expect(self, num_launches: int) -> None:
        """Nothing: with runtime workers of their own, programs start side by side."""

    async def stats(self) -> ControlStats:
        return ControlStats()

    async def metrics(self) -> Measured:
        return NOTHING_MEASURED

    @property
    def num_open(self) -> int:
        return sum(not session.is_closed for session in self.sessions)

    def num_tokens(self, call: Generate) -> int:
        return call.max_tokens if self._num_tokens is None else self._num_tokens

    def reach(self, first_step: int, num_steps: int) -> None:
        """Runs steps until `num_steps` after `first_step` have run."""
        while self._num_steps < first_step + num_steps:
            self._num_steps += 1
            self._clock.advance(self._step_s)

    @property
    def num_steps(self) -> int:
        return self._num_steps


class FakeSession:
    """One token a step, from the step after its segment was submitted."""

    def __init__(self, control: FakeControl) -> None:
        self._control = control
        self._ready: list[Completion] = []
        self._segment: tuple[CallId, Generate] | None = None
        self._first_step = 0
        self._num_sent = 0
        self.is_closed = False
        self.calls: list[QueueCall] = []

    def submit(self, call_id: CallId, call: QueueCall) -> None:
        self.calls.append(call)
        if isinstance(call, CreateQueue):
            self._ready.append(Completion(call_id=call_id, result=Done()))
        elif isinstance(call, Generate):
            self._segment, self._first_step = (call_id, call), self._control.num_steps

    def interrupt(self, call_id: CallId) -> None:
        raise NotImplementedError

    async def receive(self) -> list[Completion]:
        await asyncio.sleep(0)
        if not self._ready and self._segment:
            self._ready.append(self._next(*self._segment))
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        self.is_closed = True

    def _next(self, call_id: CallId, call: Generate) -> Completion:
        num_tokens = self._control.num_tokens(call)
        if self._num_sent < num_tokens:
            self._num_sent += 1
            self._control.reach(self._first_step, self._num_sent)
            return Completion(call_id=call_id, result=Progress(tokens=(7,), logprobs=(0.0,)))
        segment = Segment(
            tokens=(7,) * num_tokens,
            logprobs=(0.0,) * num_tokens,
            num_kept=num_tokens,
            remainder="",
            reason="length",
            stop=None,
            kv_len=0,
            num_pages=0,
        )
        return Completion(call_id=call_id, result=segment)


class FakeSystem:
    """A system that serves the byte model."""

    def __init__(self, runs: FakeRuns, control: FakeControl, step_weight_bytes: int = 1000) -> None:
        self.runs = runs
        self.control = control
        self.model_path = Path("model.gguf")
        self.num_threads = 1
        self.step_weight_bytes = step_weight_bytes
        self.kv_token_bytes = 100
        self.dtype: WeightDtype = "bfloat16"


def opener(system: FakeSystem, opened: list[str]):
    """An `OpenSystem` that hands out `system` and notes each model that was asked for."""

    @asynccontextmanager
    async def open_system(model: str) -> AsyncIterator[FakeSystem]:
        opened.append(model)
        yield system

    return open_system


def cases(rows: Sequence) -> list[tuple[str, str]]:
    return [(row.case, row.metric) for row in rows]
