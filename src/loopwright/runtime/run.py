"""A run and its books, as the launcher keeps them and its execution writes in them. Never starts or counts one.

Made by the launcher. What ends a run is the first error that it is given, or else what its program comes to.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from loopwright.core.errors import Code, ErrorInfo, LoopwrightError
from loopwright.core.ids import RunId, TenantId
from loopwright.core.origin import Origin, TraceContext
from loopwright.runtime.budget import Budget
from loopwright.runtime.children import Children
from loopwright.runtime.event_log import EventLog
from loopwright.runtime.limits import Limits
from loopwright.runtime.mailbox import Mailbox
from loopwright.runtime.observation import Ended, Observation
from loopwright.runtime.program import Program
from loopwright.runtime.sandbox import Sandbox


@dataclass(slots=True, eq=False)
class Run:
    """A run and its books."""

    run_id: RunId
    name: str
    program: Program
    arguments: dict[str, Any]
    sandbox: Sandbox
    tenant: TenantId
    budget: Budget
    model: str
    seed: int
    events: EventLog
    mailbox: Mailbox
    started_s: float  # wall time
    started_now_s: float  # monotonic time
    children: Children
    observation: Observation
    origin: Origin
    span: TraceContext | None  # None: nobody exports spans
    parent: Children | None = None  # those of the run that spawned it
    above: Observation | None = None  # of that one
    context: Any = None  # what it gave it
    ended_now_s: float | None = None
    task: asyncio.Task[None] | None = None
    failure: LoopwrightError | None = field(default=None)
    ended: Ended | None = None

    @property
    def limits(self) -> Limits:
        return self.budget.limits

    def finish(self, code: Code, result: Any = None, error: ErrorInfo | None = None) -> None:  # noqa: ANN401 (JSON)
        """Writes the final event, if there is none yet; who reads it finds the run counted."""
        if self.events.final is None:
            self.ended = self.observation.end(code, self.budget.cpu_used_s - self.budget.cpu_below_s)
            ran = self.observation.ran
            if self.above is not None:
                self.above.ran_below(ran)
            self.events.finish(code, result, error, ran)

    def fail(self, error: LoopwrightError) -> None:
        """Ends the run with this error, wherever it is; the first one counts."""
        if self.failure is None and self.task is not None and not self.task.done():
            self.failure = error
            self.task.cancel()
            self.children.fail()  # at once: a program may take its time to end
