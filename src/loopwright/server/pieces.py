"""Reads an answer's text into pieces, in order: words, thoughts, and calls of tools as they begin, grow and end.

Never writes an answer: `forms` and whatever else has a form of its own does. One AnswerReader follows one run's
choices; events may come in any portions, and the pieces, joined, are the same.
"""

from dataclasses import dataclass
from typing import TypeAlias

from loopwright.core.events import Text, Tokens
from loopwright.sdk.call_object import ArgumentsText, CallBegun, Fault, Found, FoundCall
from loopwright.sdk.tool_formats import CallReader, reader_of


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
    """The choices of one run. `tool_format` is how the model writes calls, "" if it may make none; `run_id` makes the
    ids of calls. `is_answer_held`: what is no call is held to a form of its own."""

    def __init__(self, run_id: str, tool_format: str = "", *, is_answer_held: bool = False) -> None:
        self._run_id = run_id
        self._format, self._is_answer_held = tool_format, is_answer_held
        self._choices: dict[int, _ChoiceReader] = {}

    @property
    def is_plain(self) -> bool:
        """Whether text is words as it comes."""
        return not self._format

    def read(self, index: int, event: Text | Tokens) -> list[Piece]:
        """What is certain by now, of the choice of that index."""
        if not event.text:
            return []
        if isinstance(event, Tokens) and event.channel == "reasoning":
            return [Thoughts(event.text)]
        return [Words(event.text)] if self.is_plain else self._choice(index).push(event.text)

    def call(self, name: str, arguments: str, call_id: str = "") -> list[Piece]:
        """A call that a program made itself, of its one choice. `arguments` is JSON."""
        return self._choice(0).call(name, arguments, call_id)

    def finish(self, index: int) -> list[Piece]:
        """The choice is over: what was held back of it."""
        return self._choice(index).finish() if index in self._choices else []

    def end_reason(self, index: int, reason: str) -> str:
        """Why the finished choice ended: for its calls, if it has any, none of them is cut, and nor is the turn."""
        has_calls = index in self._choices and self._choices[index].ends_with_calls
        return "tool_calls" if has_calls and reason == "stop" else reason

    def _choice(self, index: int) -> "_ChoiceReader":
        if index not in self._choices:
            reader = None
            if self._format:
                reader = reader_of(self._format, is_answer_held=self._is_answer_held)
            self._choices[index] = _ChoiceReader(reader, f"call_{self._run_id}_{index}_")
        return self._choices[index]


class _ChoiceReader:
    """Follows the text of one choice."""

    def __init__(self, reader: CallReader | None, id_prefix: str) -> None:
        self._reader = reader  # until the text is over
        self._id_prefix = id_prefix
        self._num_begun = 0
        self._num_whole = 0
        self._held_space = ""  # no words, should a call or the end be what follows it
        self._holds_space = True  # where a call could begin: at the start, and behind a call

    @property
    def ends_with_calls(self) -> bool:
        return 0 < self._num_whole == self._num_begun

    def push(self, text: str) -> list[Piece]:
        assert self._reader is not None, "no text comes after the end"
        return self._pieces(self._reader.push(text))

    def finish(self) -> list[Piece]:
        reader, self._reader = self._reader, None
        pieces = self._pieces(reader.finish()) if reader is not None else []
        if self._held_space and not self._num_begun:
            pieces.append(Words(self._held_space))
        self._held_space = ""
        return pieces

    def call(self, name: str, arguments: str, call_id: str) -> list[Piece]:
        number = self._num_begun
        self._num_begun += 1
        self._num_whole += 1
        start = CallStart(number, call_id or f"{self._id_prefix}{number}", name)
        return [start, CallArguments(number, arguments), CallEnd(number, is_whole=True)]

    def _pieces(self, found: list[Found]) -> list[Piece]:
        return [piece for one in found for piece in self._pieces_of(one)]

    def _pieces_of(self, one: Found) -> list[Piece]:
        number = self._num_begun - 1  # of the call that was begun last
        match one:
            case str():
                return self._words(one)
            case CallBegun(name):
                self._num_begun += 1
                self._held_space, self._holds_space = "", True
                return [CallStart(number + 1, f"{self._id_prefix}{number + 1}", name)]
            case ArgumentsText(text):
                return [CallArguments(number, text)]
            case FoundCall():
                self._num_whole += 1
                return [CallEnd(number, is_whole=True)]
            case Fault(text, reason, _, is_begun):
                ended: list[Piece] = [CallEnd(number, is_whole=False)] if is_begun else []
                return ended if is_begun and reason == "cut" else [*ended, *self._words(text)]

    def _words(self, text: str) -> list[Piece]:
        if self._holds_space:
            text = self._held_space + text
            if not text.strip():
                self._held_space = text
                return []
            self._held_space, self._holds_space = "", False
        return [Words(text)] if text else []
