"""What the built-in programs tell of an answer beside its text: types, and how events are gathered. Never formats any.

Read by `answers` and `forms`. The other side is `choices` among the built-in programs.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from loopwright.core.events import Text, TokenLogprob, Tokens
from loopwright.server.pieces import Piece, Thoughts, Words


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """What really ran: of several candidates all, of a prompt that several share one."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptDetails = PromptDetails()
    completion_tokens_details: CompletionDetails = CompletionDetails()


class Choice(msgspec.Struct, frozen=True):
    """Which of the candidates is a choice, and why it ended."""

    candidate: int = 0
    finish_reason: str = "stop"
    stop_reason: str | int | None = None


class Outcome(msgspec.Struct, frozen=True):
    """What a built-in program returns; a deployed one may return anything."""

    choices: tuple[Choice, ...] = (Choice(),)
    usage: Usage = Usage()


class PromptShown(msgspec.Struct, frozen=True, tag_field="type", tag="prompt"):
    """What a built-in program emits of a prompt, if asked."""

    prompt: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None


class Begun(msgspec.Struct, frozen=True, tag_field="type", tag="begun"):
    """What a built-in program emits of its prompt before it runs, if asked."""

    prompt_tokens: int


class CallTold(msgspec.Struct, frozen=True, tag_field="type", tag="tool_call"):
    """A call of one of the client's tools that a deployed program emits."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


class Part:
    """Consecutive pieces of one choice, with what stands behind them."""

    def __init__(self, pieces: Sequence[Piece] = ()) -> None:
        self.pieces = list(pieces)
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []

    def add(self, pieces: Sequence[Piece], event: Text | Tokens) -> None:
        """Takes the pieces that an event came to."""
        self.pieces += pieces
        if isinstance(event, Tokens):
            self.tokens += event.tokens
            self.logprobs += event.logprobs

    @property
    def text(self) -> str:
        return "".join([piece.text for piece in self.pieces if isinstance(piece, Words)])

    @property
    def thoughts(self) -> str:
        return "".join([piece.text for piece in self.pieces if isinstance(piece, Thoughts)])

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing but words."""
        return not (self.tokens or self.logprobs) and all(isinstance(piece, Words) for piece in self.pieces)

    @property
    def is_empty(self) -> bool:
        return not (self.pieces or self.tokens or self.logprobs)
