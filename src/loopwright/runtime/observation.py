"""What is seen of one run: when its program waited, and for what; the tokens of its calls. Never decides anything.

Made by the launcher for each run, told by its host, and made a record of when the run is over.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from loopwright.core import metrics
from loopwright.core.call_base import HostCall
from loopwright.core.call_table import op_of
from loopwright.core.calls import QueueCall
from loopwright.core.clock import Clock
from loopwright.core.code_calls import RunCode
from loopwright.core.errors import Code
from loopwright.core.events import RanTokens
from loopwright.core.host_calls import Detokenize, RenderChat, Segment, Tokenize, Vocabulary
from loopwright.core.instrument import Instrument
from loopwright.core.outside_calls import CallTool, HttpExchange, HttpRead, ListTools
from loopwright.core.results import CallTiming, Completion, Progress
from loopwright.runtime.timeline import Phase, Stretch, Timeline

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TOOL_SPANS = 128

_TOOLS = (CallTool, ListTools, HttpExchange, HttpRead)
_COMPUTED = (RunCode, Tokenize, Detokenize, RenderChat, Vocabulary)  # for the program, by this process


@dataclass(slots=True)
class Watched:
    """A call that is open."""

    op: str
    phase: Phase | None  # None: it is control's
    began_s: float
    first_s: float | None = None  # when it had told a token
    is_told: bool = False  # control has said how it went


@dataclass(frozen=True, slots=True)
class ToolSpan:
    """One call of a tool of the server."""

    name: str
    start_s: float
    end_s: float
    code: Code


@dataclass(frozen=True, slots=True)
class Account:
    """Under what a run is counted."""

    tenant: str
    program: str
    sandbox: str


@dataclass(frozen=True, slots=True)
class Ended:
    """How the run's time went, on the monotonic clock."""

    start_s: float
    end_s: float
    first_token_s: float | None
    cpu_s: float
    stretches: tuple[Stretch, ...]
    usage: RanTokens  # of its own calls that ended
    tools: tuple[ToolSpan, ...] = ()

    def totals(self) -> dict[Phase, float]:
        """Seconds by phase."""
        totals: dict[Phase, float] = {}
        for one in self.stretches:
            totals[one.phase] = totals.get(one.phase, 0.0) + one.seconds
        return totals


class Observation:
    """`start_s` is when the request for the run came. `sees_waits`: the sandbox says when its program waits."""

    def __init__(
        self, clock: Clock, instrument: Instrument, account: Account, start_s: float, *, sees_waits: bool
    ) -> None:
        self.has_begun = False  # the program lives
        self.trace_headers: Mapping[str, str] = {}  # for whom the run calls
        self._clock = clock
        self._instrument = instrument
        self._account = account
        self._admitted_s = clock.now_s()
        self._sees_waits = sees_waits
        self._timeline = Timeline(start_s, "wait" if sees_waits else "program")
        self.is_launched = False
        self._runs_from_s: float | None = None  # while the program computes
        self._watched: dict[int, Watched] = {}
        self._first_s: float | None = None
        self._usage = RanTokens()
        self._below = RanTokens()
        self._tools: list[ToolSpan] = []

    @property
    def program(self) -> str:
        """Under which the run is counted."""
        return self._account.program

    def launches(self) -> None:
        """Its turn to be launched has come."""
        now_s = self._clock.now_s()
        self.is_launched = True
        self._timeline.add("queue", self._timeline.start_s, now_s)
        self._runs_from_s = now_s
        self._instrument.add(metrics.LAUNCHES, 1, (self._account.sandbox,))

    def begins(self) -> None:
        """The program calls, logs or waits for the first time."""
        self.has_begun = True
        self._instrument.histogram(metrics.LAUNCH_S, (self._account.sandbox,)).observe(
            self._clock.now_s() - self._admitted_s
        )

    def waits(self) -> None:
        """The program computes nothing from now on."""
        if self._sees_waits and self._runs_from_s is not None:
            now_s = self._clock.now_s()
            self._timeline.add("program", self._runs_from_s, now_s)
            self._runs_from_s = None
            self._settle(now_s)

    def goes_on(self) -> None:
        """There is something for the program, or it does not wait any more."""
        if self._sees_waits and self._runs_from_s is None:
            self._runs_from_s = self._clock.now_s()

    def opened(self, handle: int, call: HostCall | QueueCall) -> None:
        """The call is not answered at once."""
        self._watched[handle] = Watched(op_of(type(call)), _phase(call), self._clock.now_s())

    def told(self, handle: int, completion: Completion) -> None:
        """Control says something of a call."""
        if (watched := self._watched.get(handle)) is None:
            return
        if isinstance(completion.result, Progress):
            if watched.first_s is None:
                watched.first_s = self._clock.now_s()
                self._first_s = self._first_s or watched.first_s
            return
        watched.is_told = True
        if completion.timing is not None:
            self._add(completion.timing)
        else:  # it needed no engine: only its turn
            self._timeline.add("queue", watched.began_s, self._clock.now_s())

    def closed(self, handle: int) -> None:
        """Nobody waits for the call any more."""
        if (watched := self._watched.pop(handle, None)) is None:
            return
        now_s = self._clock.now_s()
        self._add_open(watched, now_s)
        self._instrument.histogram(metrics.HOST_CALL_S, (watched.op,)).observe(now_s - watched.began_s)
        if not self._sees_waits or self._runs_from_s is not None:
            self._settle(now_s)

    def used_tool(self, name: str, duration_s: float, code: Code) -> None:
        """A tool of the server has answered."""
        self._instrument.add(metrics.TOOL_CALLS, 1, (name, code))
        if len(self._tools) < MAX_TOOL_SPANS:
            now_s = self._clock.now_s()
            self._tools.append(ToolSpan(name, now_s - duration_s, now_s, code))

    def ran_below(self, ran: RanTokens) -> None:
        """A run that this one started is over, with all below it."""
        self._below = self._below.plus(ran)

    @property
    def ran(self) -> RanTokens:
        """Tokens of calls that ended, of the run and of all that is over below it."""
        return self._usage.plus(self._below)

    def end(self, code: Code, cpu_s: float) -> Ended:
        """The run is over."""
        self.waits()
        end_s = self._clock.now_s()
        if not self.is_launched:
            self._timeline.add("queue", self._timeline.start_s, end_s)
        for watched in self._watched.values():
            self._add_open(watched, end_s)
        self._watched.clear()
        self._timeline.settle(end_s)
        account = (self._account.tenant, self._account.program)
        instrument = self._instrument
        instrument.add(metrics.RUNS_ENDED, 1, (*account, code))
        instrument.histogram(metrics.E2E_S, account).observe(end_s - self._timeline.start_s)
        if self._first_s is not None:
            instrument.histogram(metrics.FIRST_TOKEN_S, account).observe(self._first_s - self._timeline.start_s)
        for phase, seconds in self._timeline.totals().items():
            instrument.add(metrics.PHASE_S, seconds, (*account, phase))
        instrument.add(metrics.PROGRAM_CPU_S, cpu_s, account)
        stretches = tuple(self._timeline.stretches())
        return Ended(self._timeline.start_s, end_s, self._first_s, cpu_s, stretches, self._usage, tuple(self._tools))

    def _settle(self, now_s: float) -> None:
        """Not while the program waits for what is about to be told."""
        if self._timeline.is_full:
            if self._runs_from_s is not None:
                self._timeline.add("program", self._runs_from_s, now_s)
                self._runs_from_s = now_s
            self._timeline.settle(min((one.began_s for one in self._watched.values()), default=now_s))

    def _add(self, timing: CallTiming) -> None:
        """What control says of a call that is over."""
        add, ended_s = self._timeline.add, timing.ended_s
        started_s = ended_s if timing.started_s is None else timing.started_s
        first_s = ended_s if timing.first_s is None else timing.first_s
        add("queue", timing.issued_s, started_s)
        add("prefill", started_s, first_s)
        add("decode", first_s, ended_s)
        add("program", ended_s, self._clock.now_s())  # the answer was on its way
        self._usage = self._usage.plus(RanTokens(timing.prompt_tokens, timing.cached_tokens, timing.generated_tokens))
        if timing.first_s is not None:
            self._first_s = timing.first_s if self._first_s is None else min(self._first_s, timing.first_s)

    def _add_open(self, watched: Watched, now_s: float) -> None:
        if watched.is_told:
            return
        if watched.phase is not None:
            self._timeline.add(watched.phase, watched.began_s, now_s)
        elif watched.first_s is not None:
            self._timeline.add("unfinished", watched.began_s, watched.first_s)
            self._timeline.add("decode", watched.first_s, now_s)
        else:
            self._timeline.add("unfinished", watched.began_s, now_s)


def _phase(call: HostCall | QueueCall) -> Phase | None:
    if isinstance(call, Segment) or not isinstance(call, HostCall):
        return None
    if isinstance(call, _TOOLS):
        return "tool"
    return "program" if isinstance(call, _COMPUTED) else "wait"
