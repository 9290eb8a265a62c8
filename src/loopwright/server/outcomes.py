"""What the built-in programs tell of an answer beside its text: types, and how events are gathered. Never formats any.

Read by `answers` and `forms`. The other side is `choices` among the built-in programs.
"""

from collections.abc import Sequence

import msgspec

from loopwright.core.events import Text, TokenLogprob, Tokens


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


class PromptShown(msgspec.Struct, frozen=True):
    """What a built-in program emits of a prompt, if asked."""

    prompt: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None


class Part:
    """Consecutive text of one choice, with what stands behind it."""

    def __init__(self, texts: Sequence[str] = ()) -> None:
        self.texts = list(texts)
        self.thoughts: list[str] = []
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []

    def add(self, event: Text | Tokens) -> None:
        is_thought = isinstance(event, Tokens) and event.channel == "reasoning"
        (self.thoughts if is_thought else self.texts).append(event.text)
        if isinstance(event, Tokens):
            self.tokens += event.tokens
            self.logprobs += event.logprobs

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing behind the text."""
        return not (self.tokens or self.logprobs or self.thoughts)
