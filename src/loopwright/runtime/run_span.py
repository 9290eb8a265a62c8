"""The span of a run, as whoever exports spans gets it. Never holds anything of a prompt, an answer or an argument.

Made by the launcher when a run is over; the exporter, if there is one, is compose's.
"""

from dataclasses import dataclass
from typing import Protocol

from loopwright.core.errors import Code
from loopwright.core.origin import TraceContext
from loopwright.runtime.observation import Ended


@dataclass(frozen=True, slots=True)
class RunSpan:
    """`wall_offset_s` is what has to be added to its times to make them seconds since the epoch."""

    context: TraceContext
    run_id: str
    request_id: str
    tenant: str
    program: str
    model: str
    is_builtin: bool
    code: Code
    wall_offset_s: float
    ended: Ended


class SpanSink(Protocol):
    """Takes the spans of runs that are over, and returns at once."""

    @property
    def sample_ratio(self) -> float:
        """Of runs whose request has no trace, how many are recorded."""
        ...

    def ended(self, span: RunSpan) -> None: ...
