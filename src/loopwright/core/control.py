"""The seam between the runtime and control. Never implements it.

Implemented inline by control, and by a socket client.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from loopwright.core.calls import QueueCall
from loopwright.core.ids import ONE_TENANT, CallId, RunId, TenantId
from loopwright.core.metrics import Measured
from loopwright.core.model_info import ModelInfo
from loopwright.core.results import Completion


class ControlLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one run may hold at once in the control layer."""

    max_pages: int = 1024
    max_embeds: int = 4096
    max_queues: int = 256
    max_open_calls: int = 1024
    max_queue_depth: int = 1024


class ControlStats(msgspec.Struct, frozen=True):
    """A snapshot. Counts since start, except those named num_free, num_live and num_waiting."""

    num_steps: int = 0
    num_rows: int = 0  # forward rows over all steps; num_rows / num_steps is the mean batch
    num_prefill_tokens: int = 0  # tokens run in rows of more than one token
    num_decode_tokens: int = 0  # tokens run in rows of one token
    num_wasted_rows: int = 0  # of those in steps ahead: the text was over when they ran
    num_failed_steps: int = 0
    busy_s: float = 0.0  # while the engine had a step whose result was not here
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_free_slots: int = 0
    num_live_runs: int = 0
    num_waiting_calls: int = 0
    others: dict[str, "ControlStats"] = {}  # of the server's further models, by name


class Session(Protocol):
    """One run's door to control. Everything the run holds is released by `close`."""

    def submit(self, call_id: CallId, call: QueueCall) -> None:
        """Issues a call: its names are bound now. Never raises for a bad call: that completes with an error."""
        ...

    def interrupt(self, call_id: CallId) -> None:
        """Ends a segment at the next token boundary, with what it has (reason "interrupted"). A call that has not
        started fails as Cancelled. Unknown or finished calls are ignored."""
        ...

    async def receive(self) -> list[Completion]:
        """Waits until there is a completion and takes all there are, in order. For one caller at a time."""
        ...

    def when_news(self, tell: Callable[[], None]) -> None:
        """From now on `tell` is called when there is something to take, instead of ending a `receive`: by the event
        loop, so that control is done with what it does; and not if all was taken by then."""
        ...

    def take(self) -> list[Completion]:
        """All completions that are here now, in order; possibly none. Those of calls that are answered at once are here
        when `submit` returns. Raises why the session ended, if nobody here closed it and nothing is left to take."""
        ...

    def close(self) -> None:
        """Drops the run's waiting calls, and frees its pages, slots and queues as soon as the running step is over.
        A pending `receive` raises Cancelled. Closing twice is allowed."""
        ...


class Control(Protocol):
    """The control layer as the runtime sees it."""

    def models(self) -> tuple[ModelInfo, ...]: ...

    def open(self, run_id: RunId, limits: ControlLimits, tenant: TenantId = ONE_TENANT, program: str = "") -> Session:
        """Begins a run. What it computes and exports is shared with those of its tenant alone, and what it uses is
        counted under the program's name."""
        ...

    def expect(self, num_launches: int) -> None:
        """So many programs are being started at this moment, one after the other, and will call within milliseconds. A
        hint: steps that hold up nobody may wait for them a little. 0 when all have made their first calls."""
        ...

    async def stats(self) -> ControlStats: ...

    async def metrics(self) -> Measured: ...
