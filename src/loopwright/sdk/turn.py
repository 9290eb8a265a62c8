"""What a segment gives back: the turn at its end, and chunks on the way. Never generates. Returned by Context."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Turn:
    """One finished segment.

    `text` leaves the stop string and control tokens out. `tokens` are all ids that were sampled, with `logprobs` under
    the model's own distribution; the context keeps the first `num_kept` of them. `reason` is "stop" (a stop string),
    "stop_token" (end of turn), "length" or "interrupted"; `stop` is the string or token that ended it."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    num_kept: int
    reason: str
    stop: str | int | None
    num_prompt_tokens: int  # how long the context was when the segment began

    @classmethod
    def from_payload(cls, payload: dict[str, Any], num_prompt_tokens: int) -> "Turn":
        return cls(
            text=payload["text"],
            tokens=tuple(payload["tokens"]),
            logprobs=tuple(payload["logprobs"]),
            num_kept=payload["num_kept"],
            reason=payload["reason"],
            stop=payload["stop"],
            num_prompt_tokens=num_prompt_tokens,
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a running segment: text that is certain by now, and the ids sampled since the last piece."""

    text: str
    tokens: tuple[int, ...]
