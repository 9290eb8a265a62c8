"""The calls about child programs. Never starts one. Part of the union in `host_calls`; answered by runtime/children."""

from typing import Any, TypeAlias

import msgspec

from loopwright.core.call_base import HostCall
from loopwright.core.ids import RunId


class Spawn(HostCall, frozen=True, kw_only=True, tag="spawn"):
    """Starts a child run of a deployed `program`, of a `source`, or, with neither, of the run's own source. The call
    lasts as long as the child: a part {run} when it is admitted, a part {code, result, error} when it is over, and then
    Done. Cancelling the call cancels the child, and so does the end of the run that spawned it."""

    program: str = ""
    source: str | None = None
    entry: str = "main"  # which function of the run's own source is its main
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    context: Any = None  # what the child finds with describe(include=["parent"])


class ChildEvents(HostCall, frozen=True, kw_only=True, tag="child_events"):
    """The events of a child of this run with seq > after, each a part {event}, up to and including its final one."""

    run: RunId
    after: int = -1


class CancelChild(HostCall, frozen=True, kw_only=True, tag="cancel_child"):
    """Ends a child of this run, with all that it spawned. Done; nothing happens if it is over."""

    run: RunId


ChildCall: TypeAlias = Spawn | ChildEvents | CancelChild
