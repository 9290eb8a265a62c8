"""Owns what belongs to one run: its queues, its open calls, its inbox. Never decides anything: the controller does.

Held by the runtime, which calls the methods, and by the controller, which keeps the state.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from loopwright.control.inbox import Inbox
from loopwright.core.bell import Bell
from loopwright.core.calls import DistributionRequest, QueueCall
from loopwright.core.control import ControlLimits
from loopwright.core.going_on import Next
from loopwright.core.ids import CallId, PageName, QueueName, RunId, TenantId
from loopwright.core.results import Completion
from loopwright.core.told_tokens import TokenReader

if TYPE_CHECKING:
    from loopwright.control.ordering import CallQueue, OpenCall


class Issuer(Protocol):
    """The controller as its sessions see it."""

    @property
    def bell(self) -> Bell: ...

    def issue(self, session: "InlineSession", call_id: CallId, call: QueueCall) -> None: ...

    def go_on(self, session: "InlineSession", call_id: CallId, one: Next) -> bool: ...

    def interrupt(self, session: "InlineSession", call_id: CallId) -> None: ...

    def close(self, session: "InlineSession") -> None: ...


class Kept:
    """A call that is over and stands in its place for the one that goes on from it: see `control.successors`."""

    __slots__ = ("call", "checked", "names")

    def __init__(self, call: "OpenCall", names: tuple[PageName, ...]) -> None:
        self.call, self.names = call, names  # of its pages
        self.checked: tuple[DistributionRequest, ...] | None = None  # asked for behind one token, and found right


class InlineSession:
    """One run's door, in the process of the controller. Implements `core.control.Session`,
    `core.told_tokens.ReadTogether` and `core.going_on.GoesOn`."""

    def __init__(self, issuer: Issuer, run_id: RunId, limits: ControlLimits, tenant: TenantId, program: str) -> None:
        self.run_id = run_id
        self.limits = limits
        self.tenant = tenant
        self.program = program  # under which its use is counted
        self.inbox = Inbox(issuer.bell)
        self.queues: dict[QueueName, CallQueue] = {}
        self.open_calls: dict[CallId, OpenCall] = {}
        self.last_call: CallId | None = None  # issued
        self.kept: Kept | None = None  # of its calls that are over, or open again
        self.idle_since_s = 0.0  # if it has no open calls
        self.told_s: float | None = None  # when a step answered its only call, until it makes another
        self.num_quick = 0  # how often in a row it made the next one within a step's time
        self._issuer = issuer

    def submit(self, call_id: CallId, call: QueueCall) -> None:
        self._issuer.issue(self, call_id, call)

    def go_on(self, call_id: CallId, one: Next) -> bool:
        """As `core.going_on.GoesOn`."""
        return self._issuer.go_on(self, call_id, one)

    def interrupt(self, call_id: CallId) -> None:
        self._issuer.interrupt(self, call_id)

    async def receive(self) -> list[Completion]:
        return await self.inbox.receive()

    def when_news(self, tell: Callable[[], None]) -> None:
        self.inbox.when_news(tell)

    def when_tokens(self, reader: TokenReader, name: int) -> None:
        """As `core.told_tokens.ReadTogether`."""
        self.inbox.reader = reader, name

    def take(self) -> list[Completion]:
        return self.inbox.take()

    def close(self) -> None:
        self._issuer.close(self)
