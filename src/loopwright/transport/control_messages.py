"""Every message of the boundary between a runtime worker and the model worker. Never sends one.

Made and read by control_client and control_server. A call travels undecoded inside its message, so that one that is
malformed still has a session and an id to be answered to.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from loopwright.core.calls import LogprobKind, QueueCall
from loopwright.core.control import ControlLimits, ControlStats
from loopwright.core.errors import ErrorInfo
from loopwright.core.ids import CallId, PageName, RunId, TenantId
from loopwright.core.metrics import Measured
from loopwright.core.model_info import ModelInfo
from loopwright.core.results import Completion
from loopwright.core.told_tokens import ToldLists


class Message(msgspec.Struct, frozen=True, array_like=True):
    """What every message has in common: an array that starts with its tag. `session` and `request` are the client's."""


class Hello(Message, frozen=True, tag="hello"):
    """The first message of a client. Answered with Welcome."""

    name: str


class OpenSession(Message, frozen=True, tag="open"):
    session: int
    run: RunId
    limits: ControlLimits
    tenant: TenantId
    program: str = ""


class SubmitCall(Message, frozen=True, tag="submit"):
    session: int
    call_id: CallId
    call: msgspec.Raw


class GoOn(Message, frozen=True, tag="go_on"):
    """Calls of one token, in order, of which each goes on from the last ForwardText of its session, as columns: what is
    new in them. Pages have `grown` at these places: see `core.going_on`."""

    sessions: Sequence[int]
    calls: Sequence[CallId]
    tokens: Sequence[int]
    positions: Sequence[int]
    grow_from: Sequence[PageName | None]
    grown: Sequence[int] = ()


class InterruptCall(Message, frozen=True, tag="interrupt"):
    session: int
    call_id: CallId


class CloseSession(Message, frozen=True, tag="close"):
    session: int


class AskStats(Message, frozen=True, tag="ask_stats"):
    """Answered with StatsAnswer or RequestFailed."""

    request: int


class AskMetrics(Message, frozen=True, tag="ask_metrics"):
    """Answered with MetricsAnswer or RequestFailed."""

    request: int


class Goodbye(Message, frozen=True, tag="goodbye"):
    """The last message of a client: everything it holds is released."""


class Welcome(Message, frozen=True, tag="welcome"):
    models: tuple[ModelInfo, ...]


class Completed(Message, frozen=True, tag="completed"):
    """What came for sessions of the client, in order."""

    completions: list[tuple[int, Completion]]


class Whose(Message, frozen=True, tag="whose"):
    """Whose the tokens are that come from now on, as columns: sessions, calls, and what log-probabilities are."""

    sessions: list[int]
    calls: list[CallId]
    kinds: list[LogprobKind]


class Tokens(Message, frozen=True, tag="tokens"):
    """A step's: one for each row of the last Whose, but for those at the places `left_out`."""

    token_ids: list[int]
    logprobs: list[float]
    left_out: list[int] = []


class Lists(Message, frozen=True, tag="lists"):
    """What calls completed with."""

    told: ToldLists


class SessionEnded(Message, frozen=True, tag="ended"):
    """The session failed, or was refused; nothing more comes of it."""

    session: int
    error: ErrorInfo


class StatsAnswer(Message, frozen=True, tag="stats"):
    request: int
    stats: ControlStats


class MetricsAnswer(Message, frozen=True, tag="metrics"):
    request: int
    measured: Measured


class RequestFailed(Message, frozen=True, tag="failed"):
    request: int
    error: ErrorInfo


InSession: TypeAlias = SubmitCall | InterruptCall | CloseSession
ToControl: TypeAlias = Hello | OpenSession | InSession | GoOn | AskStats | AskMetrics | Goodbye
Answer: TypeAlias = StatsAnswer | MetricsAnswer
FromControl: TypeAlias = Welcome | Completed | Whose | Tokens | Lists | SessionEnded | Answer | RequestFailed

encode = msgspec.msgpack.Encoder().encode
decode_to_control = msgspec.msgpack.Decoder(ToControl).decode
decode_from_control = msgspec.msgpack.Decoder(FromControl).decode
decode_call = msgspec.msgpack.Decoder(QueueCall).decode
