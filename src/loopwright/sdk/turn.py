"""What a segment gives back: the turn at its end, and chunks on the way; and what became of drafts. Never generates.

Returned by Context.
"""

import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from loopwright.sdk.distribution import Distribution
from loopwright.sdk.tools import Tool
from loopwright.sdk.tracing import state_of

TopLogprobs: TypeAlias = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the model wrote, complete and fit for the tool's schema: `await call()` executes it.

    `index` counts the calls of a turn from 0."""

    index: int
    name: str
    arguments: dict[str, Any]
    tool: Tool

    async def __call__(self) -> Any:  # noqa: ANN401 (JSON)
        """What the tool returns. Raises what it raises."""
        return await self.tool(**self.arguments)


@dataclass(frozen=True, slots=True)
class BrokenCall:
    """What began as a call of a tool and is none. `reason` is "cut" (the segment ended in it), "malformed",
    "unknown_tool" or "invalid" (its arguments do not fit the schema); `message` says what is wrong."""

    text: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One finished segment.

    `text` leaves the stop string and control tokens out. `tokens` are all ids that were sampled, with their `logprobs`,
    of the kind that `logprob_kind` names; the context keeps the first `num_kept` of them. `reason` is "stop" (a stop
    string), "stop_token" (end of turn), "length", "interrupted", "grammar_end" (the text is whole and nothing may
    follow) or "entropy" (what follows is less sure than `stop_entropy`); `stop` is the string or token that ended it.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    num_kept: int
    reason: str
    stop: str | int | None
    num_prompt_tokens: int  # how long the context was when the segment began
    logprob_kind: str = "raw"  # under the model's own distribution; "processed": under the one that was drawn from
    top_logprobs: tuple[TopLogprobs, ...] = ()  # of each token's place the most probable, if asked
    sampler_state: dict[str, Any] = field(default_factory=dict)  # what its sampler carried; may begin the next segment
    cached_tokens: int = 0  # of the prompt, those whose KV somebody had computed before
    prose: str = ""  # the text that is no tool call's: all of it without tools
    tool_calls: tuple[ToolCall, ...] = ()
    broken_calls: tuple[BrokenCall, ...] = ()

    @classmethod
    def nothing(cls, num_prompt_tokens: int) -> "Turn":
        """Of a segment that was interrupted before it started."""
        return cls("", (), (), 0, "interrupted", None, num_prompt_tokens)

    @classmethod
    def from_payload(cls, payload: dict[str, Any], num_prompt_tokens: int) -> "Turn":
        return cls(
            text=payload["text"],
            prose=payload["text"],
            tokens=tuple(payload["tokens"]),
            logprobs=tuple(payload["logprobs"]),
            num_kept=payload["num_kept"],
            reason=payload["reason"],
            stop=payload["stop"],
            num_prompt_tokens=num_prompt_tokens,
            logprob_kind=payload["logprob_kind"],
            top_logprobs=top_logprobs(payload),
            sampler_state=state_of(payload.get("sampler_state", {})),
            cached_tokens=payload.get("cached_tokens", 0),
        )


@dataclass(frozen=True, slots=True)
class Verified:
    """Drafts that the model has judged: `tokens` are those it accepted and one more, which are in the context now.

    Log-probabilities are as in a Turn. `proposals`, if asked for, are what is most probable after each draft. `cost` is
    what drafts took in every row of the step, in steps without any: None where steps are too short to be measured."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    logprob_kind: str
    top_logprobs: tuple[TopLogprobs, ...] = ()
    proposals: tuple[int, ...] = ()
    cost: float | None = field(default=None, compare=False)

    @property
    def num_accepted(self) -> int:
        return len(self.tokens) - 1

    @classmethod
    def from_payload(cls, payload: dict[str, Any]) -> "Verified":
        return cls(
            tokens=tuple(payload["tokens"]),
            logprobs=tuple(payload["logprobs"]),
            logprob_kind=payload["logprob_kind"],
            top_logprobs=top_logprobs(payload),
            proposals=tuple(Distribution(one).ids[0] for one in payload.get("distributions", ())),
            cost=payload.get("draft_cost"),
        )


@dataclass(frozen=True, slots=True)
class Score:
    """What the model thinks of a candidate: its `tokens` and the log-probability of each after those before it."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def logprob(self) -> float:
        """Of the whole candidate."""
        return math.fsum(self.logprobs)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a running segment: text that is certain by now, and the ids sampled since the last piece."""

    text: str
    tokens: tuple[int, ...]


def top_logprobs(payload: dict[str, Any]) -> tuple[TopLogprobs, ...]:
    """The pairs of token id and log-probability of each token, most probable first."""
    return tuple(tuple((token, logprob) for token, logprob in one) for one in payload.get("top_logprobs", ()))
