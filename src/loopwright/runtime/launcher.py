"""Starts runs and keeps track of them. Never executes a program or answers its calls: sandboxes and hosts do.

The runtime's door: implements core.runs.Runs. Made by compose, used by the server, the router or the command line.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import msgspec

from loopwright.core import metrics
from loopwright.core.child_calls import Spawn
from loopwright.core.clock import Clock
from loopwright.core.control import ControlStats
from loopwright.core.errors import (
    BadRequest,
    Cancelled,
    LoopwrightError,
    NotFound,
    Overloaded,
    PermissionDenied,
)
from loopwright.core.events import Event
from loopwright.core.exchange import Exchange
from loopwright.core.ids import ONE_TENANT, RunId, TenantId
from loopwright.core.instrument import Meter
from loopwright.core.metrics import Measured
from loopwright.core.model_info import ModelInfo
from loopwright.core.origin import begin_span, passed_on, within
from loopwright.core.runs import ClientInput, ProgramInfo, RunInfo, RunSpec
from loopwright.runtime.budget import Budget
from loopwright.runtime.builtin import BUILTIN_PROGRAMS
from loopwright.runtime.children import Children
from loopwright.runtime.event_log import EventLog
from loopwright.runtime.execution import Execution
from loopwright.runtime.launch_queue import LaunchQueue
from loopwright.runtime.limits import Limits
from loopwright.runtime.mailbox import Mailbox
from loopwright.runtime.narrowing import narrowed
from loopwright.runtime.observation import Account, Observation
from loopwright.runtime.program import Program, read_builtin
from loopwright.runtime.program_reader import ProgramReader
from loopwright.runtime.program_store import ProgramStore
from loopwright.runtime.run import Run
from loopwright.runtime.run_span import RunSpan, SpanSink
from loopwright.runtime.sandbox import Sandbox
from loopwright.runtime.sandboxes.memory_use import instance_bytes
from loopwright.runtime.served_models import ServedModels
from loopwright.runtime.services import Services
from loopwright.runtime.toolbox import NO_TOOLS, Toolbox
from loopwright.runtime.tracing import TraceSink

log = logging.getLogger(__name__)

UPLOADED = "(uploaded)"  # under what runs of a source are counted: its file's name is anybody's
MAX_FINISHED_RUNS = 1000  # how many ended runs can still be asked about
MAX_FINISHED_BYTES = 256 << 20  # of their events: they are what programs wrote


class Launcher:
    """All runs of one process. An asynchronous context manager: on exit every run is cancelled and waited for."""

    def __init__(
        self,
        *,
        models: ServedModels,
        sandboxes: Mapping[str, Sandbox],
        programs: ProgramStore,
        clock: Clock,
        caps: Limits,
        max_live_runs: int,
        exchange: Exchange,
        allows_native: bool = False,
        holds_deadline: bool = True,
        trace: TraceSink | None = None,
        tools: Toolbox = NO_TOOLS,
        meter: Meter | None = None,
        spans: SpanSink | None = None,
    ) -> None:
        self._models = models
        self._sandboxes = sandboxes
        self._programs = programs
        self._clock = clock
        self._caps = caps
        self._max_live_runs = max_live_runs
        self._allows_native = allows_native  # programs without isolation: for debugging on one's own machine
        self._services = Services(models, exchange, sandboxes.get("wasm"), tools)
        launches = LaunchQueue(clock, self._expect)
        self._execution = Execution(models, self._services, clock, launches, trace, holds_deadline=holds_deadline)
        self._reader = ProgramReader()
        self._meter = meter or Meter()
        self._spans = spans
        self._source = f"runtime-{secrets.token_hex(8)}"
        self._tasks = asyncio.TaskGroup()
        self._runs: dict[RunId, Run] = {}
        self._num_live = 0
        self._num_finished_bytes = 0

    async def __aenter__(self) -> "Launcher":
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for run in self._runs.values():
            run.fail(Cancelled("the server is stopping"))
        await self._tasks.__aexit__(kind, error, trace)
        await self._services.close()

    # Runs

    def models(self) -> tuple[ModelInfo, ...]:
        return self._models.infos()

    async def deploy(self, name: str, source: str, filename: str, tenant: TenantId = ONE_TENANT) -> ProgramInfo:
        self._programs.check_owner(name, tenant)  # before anybody reads what is in vain
        self._programs.put(name, await self._reader.read(source, filename), tenant)
        return self._programs.info(name)

    async def undeploy(self, name: str, tenant: TenantId = ONE_TENANT) -> None:
        self._programs.remove(name, tenant)

    async def programs(self) -> tuple[ProgramInfo, ...]:
        return self._programs.infos()

    async def start(self, spec: RunSpec) -> RunId:
        name, program = await self._find_program(spec)
        program.check_arguments(spec.arguments)
        sandbox = self._sandboxes.get(spec.sandbox)
        if sandbox is None:
            raise BadRequest(f"this server has no {spec.sandbox!r} sandbox", field="sandbox")
        self._check_room()
        run = self._make_run(spec, name, program, sandbox)
        self._admit(run)
        return run.run_id

    async def _spawn(self, parent: Run, call: Spawn) -> Run:
        """Starts a child of a run, in the same sandbox."""
        parent.children.check(call)
        name, program = await self._find_child(parent, call)
        parent.children.check(call)  # again: others may have begun while it was read
        program.check_arguments(call.arguments)
        self._check_room()
        left_s = parent.started_now_s + parent.limits.seconds - self._clock.now_s()
        seed = parent.children.take_seed(parent.seed)
        spec = RunSpec(
            program=name,
            arguments=call.arguments,
            model=parent.model,
            seed=seed,
            has_input=False,
            tenant=parent.tenant,
            origin=within(parent.origin, parent.observation.trace_headers),
        )
        child = self._make_run(spec, name, program, parent.sandbox, parent.children, left_s)
        child.context, child.above = call.context, parent.observation
        self._admit(child)
        parent.children.add(child)
        for run_id in parent.children.take_forgotten():
            if run_id in self._runs:
                self._forget(run_id)
        return child

    async def events(self, run_id: RunId, after: int = -1) -> AsyncIterator[Event]:
        async for event in self._find(run_id).events.follow(after):
            yield event

    async def cancel(self, run_id: RunId) -> None:
        self._find(run_id).fail(Cancelled("cancelled on request"))

    async def send(self, run_id: RunId, sent: ClientInput) -> None:
        run = self._find(run_id)
        if run.events.final is not None:
            raise BadRequest(f"the run {run_id} is over; it takes no messages", field="run")
        run.mailbox.put(sent)

    async def runs(self) -> tuple[RunInfo, ...]:
        return tuple(self._info(run) for run in self._runs.values())

    async def stats(self) -> ControlStats:
        """Of the first model; those of the others, if there are, by name."""
        first, *others = self._models.all()
        stats = await first.control.stats()
        if not others:
            return stats
        more = {one.text.info.name: await one.control.stats() for one in others}
        return msgspec.structs.replace(stats, others=more)

    async def metrics(self) -> Measured:
        """Of the runs here, and of the control layers that answer."""
        is_launched = [run.observation.is_launched for run in self._runs.values() if run.events.final is None]
        num_waiting = is_launched.count(False)
        gauges = [
            (metrics.RUNS_RUNNING, len(is_launched) - num_waiting, ()),
            (metrics.RUNS_WAITING, num_waiting, ()),
            *((metrics.SANDBOXES, one.num_live, (name,)) for name, one in self._sandboxes.items()),
        ]
        if "wasm" in self._sandboxes and (num_bytes := await asyncio.to_thread(instance_bytes)) is not None:
            gauges.append((metrics.SANDBOX_BYTES, num_bytes, ()))
        measured = Measured({self._source: self._meter.series(gauges)})
        for one in self._models.all():
            with suppress(LoopwrightError):  # one that died says nothing more
                measured |= await one.control.metrics()
        return measured

    def _expect(self, num_launches: int) -> None:
        for one in self._models.all():
            one.control.expect(num_launches)

    def check_integrity(self) -> None:
        """Nothing that services keep for runs outlives them, and no budget still holds what is over."""
        self._services.shared.check_integrity()
        assert self._num_live or not self._services.shared.num_own_stores
        assert self._num_live or not any(run.budget.memory_held_mb for run in self._runs.values())
        ended = [run.events.num_bytes for run in self._runs.values() if run.ended_now_s is not None]
        assert self._num_finished_bytes == sum(ended)

    # One run

    async def _find_program(self, spec: RunSpec) -> tuple[str, Program]:
        is_builtin = spec.source is None and spec.program in BUILTIN_PROGRAMS
        if spec.sandbox == "native" and not is_builtin and not self._allows_native:
            raise PermissionDenied("this server runs programs in its sandbox only", field="sandbox")
        if spec.source is not None:
            if spec.program:
                raise BadRequest("a run has a program or a source, not both", field="program")
            return Path(spec.filename).stem, await self._reader.read(spec.source, spec.filename)
        if is_builtin and spec.sandbox == "native":
            return spec.program, read_builtin(BUILTIN_PROGRAMS[spec.program])
        return spec.program, self._programs.get(spec.program)

    async def _find_child(self, parent: Run, call: Spawn) -> tuple[str, Program]:
        if call.program:
            return call.program, self._programs.get(call.program)
        source = parent.program.source if call.source is None else call.source
        name = parent.name if call.source is None else f"{parent.name}-child"
        filename = parent.program.filename if call.source is None else f"{name}.py"
        return name, await self._reader.read(source, filename, call.entry)

    def _check_room(self) -> None:
        if self._num_live >= self._max_live_runs:
            raise Overloaded(f"{self._num_live} runs are live; the limit is {self._max_live_runs}")

    def _make_run(
        self,
        spec: RunSpec,
        name: str,
        program: Program,
        sandbox: Sandbox,
        parent: Children | None = None,
        left_s: float = 0.0,
    ) -> Run:
        started_now_s = self._clock.now_s()
        drawn = secrets.token_bytes(15)  # asked for once: it costs a tenth of a millisecond on some machines
        run_id = RunId(drawn[:8].hex())
        limits, permissions = program.metadata.limits.capped(self._caps), program.metadata.permissions
        if parent is not None:
            limits = limits.capped(parent.limits_left(left_s))
            permissions = narrowed(permissions, parent.permissions)
        limits = msgspec.structs.replace(limits, memory_mb=min(limits.memory_mb, limits.tree_memory_mb))
        budget = Budget(limits, None if parent is None else parent.budget)
        events = EventLog(run_id, self._clock, limits.max_output_bytes, limits.max_log_lines_per_s)
        span = None if self._spans is None else begin_span(spec.origin, self._spans.sample_ratio)
        run = Run(
            run_id=run_id,
            name=name,
            program=program,
            arguments=spec.arguments,
            sandbox=sandbox,
            tenant=spec.tenant,
            budget=budget,
            model=self._models.find(spec.model).text.info.name,
            seed=spec.seed if spec.seed is not None else int.from_bytes(drawn[8:]) >> 3,  # 53 bits
            events=events,
            mailbox=Mailbox(events.receive, is_closed=not spec.has_input),
            started_s=self._clock.wall_s(),
            started_now_s=started_now_s,
            children=Children(run_id, budget, permissions, parent),
            observation=Observation(
                self._clock,
                self._meter,
                Account(spec.tenant, name if spec.source is None else UPLOADED, sandbox.name),
                started_now_s if (received_s := spec.origin.received_s) is None else min(received_s, started_now_s),
                sees_waits=sandbox.is_paced,
            ),
            origin=spec.origin,
            span=span,
            parent=parent,
        )
        run.observation.trace_headers = passed_on(spec.origin) if span is None else span.headers()
        budget.fail = run.fail
        return run

    def _admit(self, run: Run) -> None:
        run.budget.take_memory(run.limits.memory_mb)
        self._forget_oldest()
        self._runs[run.run_id] = run
        self._num_live += 1
        run.events.start(program=run.name, sandbox=run.sandbox.name, model=run.model, seed=run.seed)
        children = run.children.answers(lambda call: self._spawn(run, call), self._find)
        run.task = self._tasks.create_task(self._execution.execute(run, children))
        run.task.add_done_callback(lambda _: self._end(run))

    def _end(self, run: Run) -> None:
        """The task is over, however it ended; one that was cancelled before its first step wrote no final event."""
        self._num_live -= 1
        run.budget.give_memory(run.limits.memory_mb)
        run.ended_now_s = self._clock.now_s()
        error = run.failure or Cancelled("the run was cancelled")
        run.finish(error.code, error=error.info())  # counts only if there is none yet
        self._tell_end(run)
        self._num_finished_bytes += run.events.num_bytes

    def _tell_end(self, run: Run) -> None:
        ended, final = run.ended, run.events.final
        assert ended is not None
        assert final is not None
        told = {"run": run.run_id, "request": run.origin.request_id, "program": run.name, "code": final.code}
        seconds = round(ended.end_s - ended.start_s, 6)
        log.info("the run is over", extra={"told": {**told, "tenant": run.tenant, "seconds": seconds}})
        if self._spans is not None and run.span is not None:
            offset_s = run.started_s - run.started_now_s
            name, is_builtin = run.observation.program, run.name in BUILTIN_PROGRAMS
            ids = (run.run_id, run.origin.request_id, run.tenant, name, run.model, is_builtin, final.code)
            self._spans.ended(RunSpan(run.span, *ids, offset_s, ended))

    # Books

    def _find(self, run_id: RunId) -> Run:
        run = self._runs.get(run_id)
        if run is None:
            raise NotFound(f"no run {run_id!r}", hint="loopwright ps lists the runs", field="run")
        return run

    def _info(self, run: Run) -> RunInfo:
        final = run.events.final
        end_s = run.ended_now_s if run.ended_now_s is not None else self._clock.now_s()
        return RunInfo(
            run=run.run_id,
            program=run.name,
            state="running" if final is None else "done",
            code=None if final is None else final.code,
            started_s=run.started_s,
            seconds_s=end_s - run.started_now_s,
            num_events=len(run.events),
            parent=None if run.parent is None else run.parent.run_id,
            tenant=run.tenant,
        )

    def _forget_oldest(self) -> None:
        while len(self._runs) - self._num_live >= MAX_FINISHED_RUNS or self._num_finished_bytes > MAX_FINISHED_BYTES:
            self._forget(next(run.run_id for run in self._runs.values() if run.ended_now_s is not None))

    def _forget(self, run_id: RunId) -> None:
        """Nobody can ask about an ended run any more."""
        self._num_finished_bytes -= self._runs.pop(run_id).events.num_bytes
