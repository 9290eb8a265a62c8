"""The seam between the server and the runtime: runs as a client sees them. Never runs one.

Implemented by the launcher (inline) and by the router (over worker processes).
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Literal, Protocol

import msgspec

from loopwright.core.control import ControlStats
from loopwright.core.errors import BadRequest, Code, NotFound
from loopwright.core.events import Event
from loopwright.core.ids import ONE_TENANT, RunId, TenantId
from loopwright.core.metrics import Measured
from loopwright.core.model_info import ModelInfo
from loopwright.core.nearest import MAX_CHARS, did_you_mean
from loopwright.core.origin import Origin

SandboxName = Literal["wasm", "native"]


class Parameter(msgspec.Struct, frozen=True, omit_defaults=True):
    """One input of a program, from a typed parameter of `main`."""

    name: str
    type: str  # str, int, float, bool, list[…], dict, or any
    is_required: bool
    default: Any = None


class Version(msgspec.Struct, frozen=True):
    """A version of a deployed program: which source, and from a file of what name."""

    source_sha256: str
    filename: str


class ProgramInfo(msgspec.Struct, frozen=True):
    """A program that is deployed. `source_sha256` identifies its version."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    source_sha256: str
    filename: str = ""
    permissions: dict[str, tuple[str, ...]] = {}  # those that its metadata lists
    replaced: Version | None = None  # what was there under its name before, unless the server has started since
    tenant: TenantId = ONE_TENANT  # whose it is


class RunSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to run: a deployed or built-in program by name, or a source text; exactly one of the two."""

    program: str = ""
    source: str | None = None
    filename: str = "program.py"
    arguments: dict[str, Any] = {}
    sandbox: SandboxName = "wasm"
    model: str = ""  # of contexts that name none; "" is the server's first
    seed: int | None = None
    origin: Origin = Origin()  # the request that it comes from
    has_input: bool = True  # false: the program hears at once that its client sends nothing
    tenant: TenantId = ONE_TENANT  # whose run it is: the server says so, and no client


class ClientInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client sends to its run: JSON values for `receive`, and whether they were the last."""

    messages: tuple[Any, ...] = ()
    is_end: bool = False

    def __post_init__(self) -> None:
        if any(message is None for message in self.messages):
            raise BadRequest("message: null is what a program receives after the last message", field="message")


RunState = Literal["running", "done"]


class RunInfo(msgspec.Struct, frozen=True):
    """One line of `loopwright ps`."""

    run: RunId
    program: str
    state: RunState
    code: Code | None
    started_s: float  # seconds since the epoch
    seconds_s: float  # how long it has run, or ran
    num_events: int
    parent: RunId | None = None  # the run that spawned it
    tenant: TenantId = ONE_TENANT  # whose it is; to others it is not there


class Runs(Protocol):
    """The runtime as the server sees it."""

    def models(self) -> tuple[ModelInfo, ...]: ...

    async def deploy(self, name: str, source: str, filename: str, tenant: TenantId = ONE_TENANT) -> ProgramInfo:
        """Checks and keeps a program; replaces one of that name. Raises ProgramRejected, BadRequest; PermissionDenied
        when that one is another tenant's."""
        ...

    async def undeploy(self, name: str, tenant: TenantId = ONE_TENANT) -> None:
        """Keeps the program no longer; runs of it go on. Raises NotFound; PermissionDenied when it is another
        tenant's."""
        ...

    async def programs(self) -> tuple[ProgramInfo, ...]: ...

    async def start(self, spec: RunSpec) -> RunId:
        """Admits a run. Raises ProgramRejected, BadRequest (arguments), NotFound (program), Overloaded."""
        ...

    def events(self, run_id: RunId, after: int = -1) -> AsyncIterator[Event]:
        """The run's events with seq > after, as they happen, up to and including its final one. That one comes even to
        a reader who says he had it. Raises NotFound."""
        ...

    async def cancel(self, run_id: RunId) -> None:
        """Asks a run to end; it ends with code cancelled. A finished run stays as it is. Raises NotFound."""
        ...

    async def send(self, run_id: RunId, sent: ClientInput) -> None:
        """Messages for the program's `receive`, and their end. All or none. Raises NotFound; BadRequest when the run or
        its input is over; Overloaded when the program does not read them."""
        ...

    async def runs(self) -> tuple[RunInfo, ...]: ...

    async def stats(self) -> ControlStats: ...

    async def metrics(self) -> Measured: ...


def no_program(name: str, deployed: Iterable[str]) -> NotFound:
    """The error for a program that is asked for and is not among the deployed."""
    hint = did_you_mean(name, deployed) or "loopwright deploy FILE.py; GET /v1/programs lists those that are"
    return NotFound(f"no program {name[:MAX_CHARS]!r} is deployed", hint=hint, field="program")


@asynccontextmanager
async def open_events(runs: Runs, run_id: RunId, after: int = -1) -> AsyncIterator[AsyncIterator[Event]]:
    """A run's events for one reader: what delivers them ends when the reader leaves, not when it is collected."""
    events = runs.events(run_id, after)
    try:
        yield events
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()
