"""Reads calls of tools out of a model's text while it is written: one reader for each way that models write them.

Never knows which tools there are. Used by tool_calls, and by the server for chats. Text may come in any portions; what
comes out, joined, is the same, and every character of the text is in it but for those that frame a call.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from loopwright.sdk.call_object import SPACE, CallObject, Fault, Found, StepReader
from loopwright.sdk.errors import BadRequest
from loopwright.sdk.marked_calls import CALLS, MarkedReader, beginning_at_end
from loopwright.sdk.pythonic_calls import PythonicReader
from loopwright.sdk.turn_calls import GemmaReader, TurnReader

BEGIN, END = "<tool_call>", "</tool_call>"


class CallReader(Protocol):
    """Reads one turn."""

    def push(self, text: str) -> list[Found]:
        """What is certain by now, in order. A call comes with the brace that ends its JSON."""
        ...

    def finish(self) -> list[Found]:
        """The text is over: what was held back, and a call that is cut."""
        ...

    @property
    def num_unread(self) -> int:
        """How many of the last characters pushed may still become one thing or another."""
        ...


class HermesReader(StepReader):
    """`<tool_call>`, an object with `name` and `arguments` or a list of such, `</tool_call>`; any text before, between
    and after."""

    def __init__(self) -> None:
        super().__init__()
        self._object: CallObject | None = None
        self._is_list = False  # the tags are around a list
        self._frame = ""  # what was read before the object, and is lost unless the object is a call
        self._fault: Fault | None = None  # of the call that is malformed, up to its end tag
        self._is_behind_object = False  # its end tag comes, or text

    def finish(self) -> list[Found]:
        left, self._text = self._text, ""
        if self._object is not None:
            return [_framed(self._object.cut(left), self._frame)]
        if self._fault is not None:
            return [replace(self._fault, text=self._fault.text + left)]
        return [left] if left and not self._is_behind_object else []

    @property
    def num_unread(self) -> int:
        return len(self._text)

    def _step(self, found: list[Found]) -> bool:
        """Reads on by one state; whether it changed and there may be more to read."""
        if self._object is not None:
            return self._read_object(self._object, found)
        if self._is_behind_object:
            return self._leave_call()
        if self._fault is not None:
            return self._leave_fault(self._fault, found)
        start = self._text.find(BEGIN)
        if start < 0:
            held = beginning_at_end(self._text, BEGIN)
            _add_text(found, self._text[: len(self._text) - held])
            self._text = self._text[len(self._text) - held :]
            return False
        _add_text(found, self._text[:start])
        self._text = self._text[start + len(BEGIN) :]
        self._object, self._is_list, self._frame = CallObject("arguments"), False, BEGIN
        return True

    def _read_object(self, one: CallObject, found: list[Found]) -> bool:
        if not self._is_list and not one.has_begun and (rest := self._text.lstrip(SPACE)).startswith("["):
            self._text, self._is_list, self._frame = rest[1:], True, f"{self._frame}["
        told, self._text = one.push(self._text)
        if one.is_wrong:
            self._fault, self._object = Fault(self._frame + one.text, "malformed", "a call is no JSON object"), None
            return True
        if told and isinstance(told[-1], Fault):
            self._fault = _framed(told.pop(), self._frame)
        found += told
        if not one.is_complete:
            return False
        self._object, self._is_behind_object = None, self._fault is None
        return True

    def _leave_call(self) -> bool:
        """Takes the end tag behind a call. If something else stands there, that is text again."""
        rest = self._text.lstrip(SPACE)
        if self._is_list and rest:
            return self._leave_item(rest)
        if not rest.startswith(END) and END.startswith(rest):
            return False  # may still become one
        if rest.startswith(END):
            self._text = rest.removeprefix(END)
        self._is_behind_object = False
        return True

    def _leave_item(self, rest: str) -> bool:
        """Goes on behind an item of a list: to the next one, or to the end tag. Anything else is text again."""
        if rest[0] == ",":
            self._object, self._frame = CallObject("arguments"), rest[0]
        self._text, self._is_list = (rest[1:] if rest[0] in ",]" else rest), rest[0] == ","
        self._is_behind_object = rest[0] == "]"
        return True

    def _leave_fault(self, fault: Fault, found: list[Found]) -> bool:
        end = self._text.find(END)
        if end < 0:
            return False
        end += len(END)
        found.append(replace(fault, text=fault.text + self._text[:end]))
        self._text, self._fault = self._text[end:], None
        return True


class AnsweredReader:
    """A turn that is calls, or else an answer that is held to a form of its own: its first character says which, and
    an answer is text, whatever stands in it."""

    def __init__(self, format: str) -> None:
        self._opening = OPENINGS[format]
        self._reader = READERS[format]()
        self._is_answer: bool | None = None  # nobody knows before there is any

    def push(self, text: str) -> list[Found]:
        if self._is_answer is None and text:
            self._is_answer = text[0] != self._opening
        return ([text] if text else []) if self._is_answer else self._reader.push(text)

    def finish(self) -> list[Found]:
        return self._reader.finish()

    @property
    def num_unread(self) -> int:
        return self._reader.num_unread


READERS: dict[str, Callable[[], CallReader]] = {
    "hermes": HermesReader,
    "smollm2": HermesReader,
    "llama3_json": lambda: TurnReader("parameters"),
    "gemma": GemmaReader,
    "mistral": lambda: TurnReader("arguments", is_list=True, mark=CALLS),
    "mistral_args": MarkedReader,
    "pythonic": PythonicReader,
}

OPENINGS: dict[str, str] = {
    "hermes": "<",
    "smollm2": "<",
    "llama3_json": "{",
    "gemma": "`",  # of the ways to write calls, those that an answer of JSON is told from
    "mistral": "[",
    "mistral_args": "[",
    "pythonic": "[",
}
"""The character with which a turn of calls begins, and an answer that is held beside them never."""


def reader_of(format: str, *, is_answer_held: bool = False) -> CallReader:
    """`is_answer_held`: what is no call is held to a form of its own. Raises BadRequest for a format that this sdk does
    not know."""
    if format not in READERS:
        raise BadRequest(f"the model writes calls in the format {format!r}; {', '.join(READERS)} are known")
    return AnsweredReader(format) if is_answer_held else READERS[format]()


def _framed(found: Found, frame: str) -> Fault:
    """A fault whose text begins with the frame."""
    assert isinstance(found, Fault)
    return replace(found, text=frame + found.text)


def _add_text(found: list[Found], text: str) -> None:
    if text:
        found.append(text)
