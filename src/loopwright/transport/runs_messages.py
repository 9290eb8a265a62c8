"""Every message of the boundary between a server process and a runtime worker. Never sends one.

Made and read by runs_client and runs_server. JSON, not MessagePack: arguments, results and emitted values are JSON,
whose integers have no largest value. An event stream is paid for in advance: its reader grants credit,
and one event costs one.
"""

from typing import TypeAlias

import msgspec

from loopwright.core.control import ControlStats
from loopwright.core.errors import ErrorInfo
from loopwright.core.events import Event
from loopwright.core.ids import RunId, TenantId
from loopwright.core.metrics import Measured
from loopwright.core.model_info import ModelInfo
from loopwright.core.runs import ClientInput, ProgramInfo, RunInfo, RunSpec


class Message(msgspec.Struct, frozen=True, array_like=True):
    """What every message has in common: an array that starts with its tag. `request` and `stream` are the client's."""


class Hello(Message, frozen=True, tag="hello"):
    """The first message of a client. Answered with Welcome."""

    name: str


class DeployProgram(Message, frozen=True, tag="deploy"):
    """Answered with ProgramDeployed or RequestFailed; so are the other requests, each with its own answer."""

    request: int
    name: str
    source: str
    filename: str
    tenant: TenantId


class RemoveProgram(Message, frozen=True, tag="undeploy"):
    request: int
    name: str
    tenant: TenantId


class AskPrograms(Message, frozen=True, tag="ask_programs"):
    request: int


class StartRun(Message, frozen=True, tag="start"):
    request: int
    spec: RunSpec


class CancelRun(Message, frozen=True, tag="cancel"):
    request: int
    run: RunId


class SendInput(Message, frozen=True, tag="send"):
    request: int
    run: RunId
    sent: ClientInput


class AskRuns(Message, frozen=True, tag="ask_runs"):
    request: int


class AskStats(Message, frozen=True, tag="ask_stats"):
    request: int


class AskMetrics(Message, frozen=True, tag="ask_metrics"):
    request: int


class OpenStream(Message, frozen=True, tag="open_stream"):
    """Asks for the run's events with seq > after. Answered with StreamEvent, again and again, or StreamFailed."""

    stream: int
    run: RunId
    after: int
    credit: int


class GrantCredit(Message, frozen=True, tag="credit"):
    stream: int
    num_events: int


class CloseStream(Message, frozen=True, tag="close_stream"):
    stream: int


class Goodbye(Message, frozen=True, tag="goodbye"):
    """The last message of a client: its streams are closed. Its runs go on."""


class Welcome(Message, frozen=True, tag="welcome"):
    models: tuple[ModelInfo, ...]


class ProgramDeployed(Message, frozen=True, tag="deployed"):
    request: int
    program: ProgramInfo


class ProgramRemoved(Message, frozen=True, tag="undeployed"):
    request: int


class ProgramsAnswer(Message, frozen=True, tag="programs"):
    request: int
    programs: tuple[ProgramInfo, ...]


class RunStarted(Message, frozen=True, tag="started"):
    request: int
    run: RunId


class RunCancelled(Message, frozen=True, tag="cancelled"):
    request: int


class InputTaken(Message, frozen=True, tag="taken"):
    request: int


class RunsAnswer(Message, frozen=True, tag="runs"):
    request: int
    runs: tuple[RunInfo, ...]


class StatsAnswer(Message, frozen=True, tag="stats"):
    request: int
    stats: ControlStats


class MetricsAnswer(Message, frozen=True, tag="metrics"):
    request: int
    measured: Measured


class RequestFailed(Message, frozen=True, tag="failed"):
    request: int
    error: ErrorInfo


class StreamEvent(Message, frozen=True, tag="event"):
    stream: int
    event: Event


class StreamFailed(Message, frozen=True, tag="stream_failed"):
    stream: int
    error: ErrorInfo


Request: TypeAlias = (
    DeployProgram | RemoveProgram | AskPrograms
    | StartRun | CancelRun | SendInput | AskRuns | AskStats | AskMetrics
)  # fmt: skip
Answer: TypeAlias = (
    ProgramDeployed | ProgramRemoved | ProgramsAnswer
    | RunStarted | RunCancelled | InputTaken | RunsAnswer | StatsAnswer | MetricsAnswer
)  # fmt: skip
ToRuns: TypeAlias = Hello | Request | OpenStream | GrantCredit | CloseStream | Goodbye
FromRuns: TypeAlias = Welcome | Answer | RequestFailed | StreamEvent | StreamFailed

encode = msgspec.json.Encoder().encode
decode_to_runs = msgspec.json.Decoder(ToRuns).decode
decode_from_runs = msgspec.json.Decoder(FromRuns).decode
