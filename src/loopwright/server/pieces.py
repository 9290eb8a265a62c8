"""Reads an answer's text into pieces, in order: words, thoughts, and calls of tools as they begin, grow and end.

Never writes an answer: `forms` and whatever else has a form of its own does.
"""

from dataclasses import dataclass
from typing import TypeAlias

from loopwright.core.events import Text, Tokens


@dataclass(frozen=True, slots=True)
class Words:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Text that the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of a tool has begun. `number` counts the calls of a choice from 0."""

    number: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of a call's arguments, which are JSON in the end."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """No more comes of the call. One that is not whole was cut: its arguments are a beginning."""

    number: int
    is_whole: bool


Piece: TypeAlias = Words | Thoughts | CallStart | CallArguments | CallEnd


class AnswerReader:
    """The choices of one run."""

    def __init__(self, run_id: str, tool_format: str = "") -> None:
        self._run_id = run_id

    def read(self, index: int, event: Text | Tokens) -> list[Piece]:
        if not event.text:
            return []
        if isinstance(event, Tokens) and event.channel == "reasoning":
            return [Thoughts(event.text)]
        return [Words(event.text)]

    def finish(self, index: int) -> list[Piece]:
        return []
