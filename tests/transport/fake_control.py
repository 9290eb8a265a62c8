"""A core.control.Control that answers what a test tells it to. Used by the tests of the control boundary."""

import asyncio
from collections.abc import Callable

from fake_runs import MODEL

from loopwright.core.calls import QueueCall
from loopwright.core.control import ControlLimits, ControlStats
from loopwright.core.errors import Cancelled, LoopwrightError
from loopwright.core.ids import ONE_TENANT, CallId, RunId, TenantId
from loopwright.core.metrics import Measured, Series
from loopwright.core.model_info import ModelInfo
from loopwright.core.results import CallResult, CallTiming, Completion, Done
from loopwright.core.told_tokens import TokenReader

MEASURED = Measured({"control": (Series("step_rows", ("tiny",), 7.0, (1, 0, 2)),)})


class FakeSession:
    """Answers each call with Done at once, unless told to hold."""

    def __init__(self, is_holding: bool) -> None:
        self.calls: list[tuple[CallId, QueueCall]] = []
        self.interrupted: list[CallId] = []
        self.is_closed = False
        self.num_received = 0
        self._is_holding = is_holding
        self._completions: list[Completion] = []
        self._tell: Callable[[], None] | None = None
        self._error: LoopwrightError | None = None

    def submit(self, call_id: CallId, call: QueueCall) -> None:
        self.calls.append((call_id, call))
        if not self._is_holding:
            self.complete(call_id, Done())

    def interrupt(self, call_id: CallId) -> None:
        self.interrupted.append(call_id)

    def complete(self, call_id: CallId, result: CallResult, timing: CallTiming | None = None) -> None:
        self._completions.append(Completion(call_id, result, timing=timing))
        self._have_it_told()

    def fail(self, error: LoopwrightError) -> None:
        self._error = error
        self._have_it_told()

    def when_news(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def when_tokens(self, reader: TokenReader, name: int) -> None:
        self.reader, self.name = reader, name

    def _have_it_told(self) -> None:
        if self._tell is not None:
            asyncio.get_running_loop().call_soon(self._tell)

    def take(self) -> list[Completion]:
        if self._error is not None:
            raise self._error
        taken, self._completions = self._completions, []
        self.num_received += len(taken)
        return taken

    def close(self) -> None:
        self.is_closed = True
        self.fail(Cancelled("the session was closed"))


class FakeControl:
    """Sessions by run."""

    def __init__(self, is_holding: bool = False) -> None:
        self.is_holding = is_holding
        self.refuse: LoopwrightError | None = None
        self.sessions: dict[RunId, FakeSession] = {}
        self.limits: dict[RunId, ControlLimits] = {}
        self.tenants: dict[RunId, TenantId] = {}
        self.programs: list[str] = []

    def models(self) -> tuple[ModelInfo, ...]:
        return (MODEL,)

    def open(
        self, run_id: RunId, limits: ControlLimits, tenant: TenantId = ONE_TENANT, program: str = ""
    ) -> FakeSession:
        if self.refuse is not None:
            raise self.refuse
        self.limits[run_id] = limits
        self.tenants[run_id] = tenant
        self.programs.append(program)
        self.sessions[run_id] = FakeSession(self.is_holding)
        return self.sessions[run_id]

    def expect(self, num_launches: int) -> None:
        """Nothing: with runtime workers of their own, programs start side by side."""

    async def stats(self) -> ControlStats:
        return ControlStats(num_steps=11)

    async def metrics(self) -> Measured:
        return MEASURED
