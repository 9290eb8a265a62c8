"""What a run tells the outside: events in order, exactly one Done, always last. Never delivers them.

Made by the runtime.

On the wire an event is `{"type": …, "run": …, "seq": …, "time_s": …, …}`.
"""

from typing import Any, Literal, TypeAlias

import msgspec

from loopwright.core.errors import Code, ErrorInfo
from loopwright.core.ids import RunId


class EventBase(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    """What every event has in common. `seq` counts from 0 without gaps; `time_s` is seconds since the epoch."""

    run: RunId
    seq: int
    time_s: float


class Started(EventBase, frozen=True, kw_only=True, tag="started"):
    """The run was admitted. `seed` reproduces its randomness."""

    program: str
    sandbox: str
    model: str
    seed: int


class Text(EventBase, frozen=True, kw_only=True, tag="text"):
    """Text for the client, in order; as a model name, the message's content."""

    text: str


Channel: TypeAlias = Literal["answer", "reasoning"]
"""Whether a model answers, or thinks before it does."""


class TokenLogprob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token as a client sees it. `text` is how it is shown by itself: a control token written out, bytes that are no
    UTF-8 as `bytes:\\xf0\\x9f`. `bytes` are what it adds to a text, null if that is nothing. `rank` is told of a
    prompt's tokens: 1 is the most probable of its place."""

    token: int
    text: str
    bytes: tuple[int, ...] | None
    logprob: float | None  # null where nothing stands before it
    top: tuple["TokenLogprob", ...] = ()  # the most probable of its place, if asked
    rank: int | None = None


class Tokens(EventBase, frozen=True, kw_only=True, tag="tokens"):
    """Text with what stands behind it, when the program asked to show that. `index` says which of several answers it
    belongs to, `channel` which part of that. `tokens` are ids sampled since the last event, if asked; `logprobs` are of
    those tokens whose text has come, so that what a stop string takes away is not among them."""

    text: str
    index: int = 0
    channel: Channel = "answer"
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class Log(EventBase, frozen=True, kw_only=True, tag="log"):
    """A line that the program printed or logged. `stream` is log, stdout or stderr."""

    line: str
    stream: str = "log"


class Emit(EventBase, frozen=True, kw_only=True, tag="emit"):
    """A JSON value for the client."""

    value: Any


class Receive(EventBase, frozen=True, kw_only=True, tag="receive"):
    """The program waits for a message of its client, and none is there. Once for each message."""


class ToolCall(EventBase, frozen=True, kw_only=True, tag="tool"):
    """A tool of the server was called: `arguments` as JSON, cut to 200 characters; `outcome` is ok or the code of
    its error."""

    name: str
    arguments: str
    duration_s: float
    outcome: Code


class RanTokens(msgspec.Struct, frozen=True):
    """What ran for a run, as control counts it: inputs of its prompts, those of them that were cached, and tokens that
    were sampled."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0

    def plus(self, other: "RanTokens") -> "RanTokens":
        return RanTokens(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.generated_tokens + other.generated_tokens,
        )


class Finished(EventBase, frozen=True, kw_only=True, tag="done"):
    """The one final event. `ran` is of the run and of all below it."""

    code: Code
    result: Any = None
    error: ErrorInfo | None = None
    ran: RanTokens = RanTokens()


Event: TypeAlias = Started | Text | Tokens | Log | Emit | Receive | ToolCall | Finished
