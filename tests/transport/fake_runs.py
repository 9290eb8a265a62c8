"""A core.runs.Runs whose events a test writes, now or while they are being read. Used by transport, router, server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from loopwright.core.control import ControlStats
from loopwright.core.errors import BadRequest, Cancelled, LoopwrightError, NotFound
from loopwright.core.events import Emit, Event, Finished, Log, RanTokens, Started, Text, Tokens
from loopwright.core.ids import ONE_TENANT, RunId, TenantId
from loopwright.core.metrics import Measured, Series
from loopwright.core.model_info import ModelInfo
from loopwright.core.origin import Origin
from loopwright.core.runs import ClientInput, Parameter, ProgramInfo, RunInfo, RunSpec, no_program

MODEL = ModelInfo(
    name="tiny",
    architecture="llama",
    traits=("forward",),
    vocab_size=256,
    max_context=128,
    page_size=16,
    num_pages=64,
    eos_ids=(0,),
    bos_id=None,
    has_chat_template=True,
    quantization="none",
    weights_sha256="0" * 64,
    max_token_bytes=64,
)


class FakeRun:
    """A run: the test adds events, readers get them."""

    def __init__(self, run_id: RunId, spec: RunSpec) -> None:
        self.run_id = run_id
        self.spec, self.origin = msgspec.structs.replace(spec, origin=Origin()), spec.origin  # told apart: it differs
        self.events: list[Event] = []
        self.num_readers = 0
        self.news = asyncio.Event()
        self._add(Started, program=spec.program or spec.filename, sandbox=spec.sandbox, model=MODEL.name, seed=7)

    @property
    def is_done(self) -> bool:
        return isinstance(self.events[-1], Finished)

    def text(self, *texts: str) -> None:
        for text in texts:
            self._add(Text, text=text)

    def tokens(self, **fields: Any) -> None:
        self._add(Tokens, **fields)

    def log(self, line: str) -> None:
        self._add(Log, line=line)

    def emit(self, value: Any) -> None:
        self._add(Emit, value=value)

    def finish(self, result: Any = None, ran: RanTokens = RanTokens()) -> None:  # noqa: B008 (frozen)
        self._add(Finished, code="ok", result=result, ran=ran)

    def fail(self, error: LoopwrightError) -> None:
        self._add(Finished, code=error.code, error=error.info())

    def _add(self, kind: Callable[..., Event], **fields: Any) -> None:
        self.events.append(kind(run=self.run_id, seq=len(self.events), time_s=1000.0 + len(self.events), **fields))
        news, self.news = self.news, asyncio.Event()
        news.set()


class FakeRuns:
    """Runs and programs in memory. `on_start` writes the first events of each run; None leaves it running."""

    def __init__(self, on_start: Callable[[FakeRun], None] | None = None, *, prefix: str = "run") -> None:
        self.on_start = on_start
        self.by_id: dict[RunId, FakeRun] = {}
        self.cancelled: list[RunId] = []
        self.sent: list[tuple[RunId, ClientInput]] = []
        self.deployed: dict[str, ProgramInfo] = {}
        self.owners: dict[str, TenantId] = {}
        self.refuse_start: LoopwrightError | None = None
        self.hold_start: asyncio.Event | None = None  # while set to an unset event, admission waits
        self.num_waiting = 0
        self.measured = Measured({prefix: (Series("launches", ("wasm",), 2.0),)})
        self._prefix = prefix

    @property
    def started(self) -> list[FakeRun]:
        return list(self.by_id.values())

    @property
    def num_reading(self) -> int:
        return sum(run.num_readers for run in self.started)

    def add_program(self, name: str, *parameters: Parameter) -> None:
        self.deployed[name] = ProgramInfo(name, "", parameters, "0" * 64)

    def models(self) -> tuple[ModelInfo, ...]:
        return (MODEL,)

    async def deploy(self, name: str, source: str, filename: str, tenant: TenantId = ONE_TENANT) -> ProgramInfo:
        self.owners[name] = tenant
        self.deployed[name] = ProgramInfo(name, source, (Parameter("n", "int", is_required=True),), "0" * 64)
        return self.deployed[name]

    async def undeploy(self, name: str, tenant: TenantId = ONE_TENANT) -> None:
        if name not in self.deployed:
            raise no_program(name, self.deployed)
        del self.deployed[name]
        self.owners.pop(name, None)

    async def programs(self) -> tuple[ProgramInfo, ...]:
        return tuple(self.deployed.values())

    async def start(self, spec: RunSpec) -> RunId:
        if self.hold_start is not None:
            self.num_waiting += 1
            try:
                await self.hold_start.wait()
            finally:
                self.num_waiting -= 1
        if self.refuse_start is not None:
            raise self.refuse_start
        run = FakeRun(RunId(f"{self._prefix}-{len(self.by_id)}"), spec)
        self.by_id[run.run_id] = run
        if self.on_start is not None:
            self.on_start(run)
        return run.run_id

    async def events(self, run_id: RunId, after: int = -1) -> AsyncIterator[Event]:
        run = self._find(run_id)
        run.num_readers += 1
        try:
            seq = after + 1
            while True:
                if run.events and isinstance(run.events[-1], Finished):
                    seq = min(seq, len(run.events) - 1)
                news = run.news
                for event in run.events[seq:]:
                    seq += 1
                    yield event
                    if isinstance(event, Finished):
                        return
                if seq >= len(run.events):
                    await news.wait()
        finally:
            run.num_readers -= 1

    async def cancel(self, run_id: RunId) -> None:
        run = self._find(run_id)
        self.cancelled.append(run_id)
        if not run.is_done:
            run.fail(Cancelled("cancelled by a client"))

    async def send(self, run_id: RunId, sent: ClientInput) -> None:
        if self._find(run_id).is_done:
            raise BadRequest(f"the run {run_id} is over", field="run")
        self.sent.append((run_id, sent))

    async def runs(self) -> tuple[RunInfo, ...]:
        return tuple(
            RunInfo(
                run=run.run_id,
                program=run.spec.program,
                state="done" if run.is_done else "running",
                code=None,
                started_s=1000.0,
                seconds_s=1.0,
                num_events=len(run.events),
                tenant=run.spec.tenant,
            )
            for run in self.started
        )

    async def stats(self) -> ControlStats:
        return ControlStats(num_steps=3)

    async def metrics(self) -> Measured:
        return self.measured

    def _find(self, run_id: RunId) -> FakeRun:
        if run_id not in self.by_id:
            raise NotFound(f"there is no run {run_id}", field="run")
        return self.by_id[run_id]
