"""Reads calls of tools out of a model's text while it is written: one reader for each way that models write them.

Never knows which tools there are. Used by tool_calls, and by the server for chats. Text may come in any portions; what
comes out, joined, is the same, and every character of the text is in it but for those that frame a call.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from loopwright.sdk.call_object import SPACE, CallObject, Fault, Found
from loopwright.sdk.errors import BadRequest
from loopwright.sdk.pythonic_calls import PythonicReader

BEGIN, END = "<tool_call>", "</tool_call>"


class CallReader(Protocol):
    """Reads one turn."""

    def push(self, text: str) -> list[Found]:
        """What is certain by now, in order. A call comes with the brace that ends its JSON."""
        ...

    def finish(self) -> list[Found]:
        """The text is over: what was held back, and a call that is cut."""
        ...


class HermesReader:
    """`<tool_call>`, an object with `name` and `arguments` or a list of such, `</tool_call>`; any text before, between
    and after."""

    def __init__(self) -> None:
        self._text = ""  # not read yet
        self._object: CallObject | None = None
        self._is_list = False  # the tags are around a list
        self._frame = ""  # what was read before the object, and is lost unless the object is a call
        self._fault: Fault | None = None  # of the call that is malformed, up to its end tag
        self._is_behind_object = False  # its end tag comes, or text

    def push(self, text: str) -> list[Found]:
        self._text += text
        found: list[Found] = []
        while self._step(found):
            pass
        return found

    def finish(self) -> list[Found]:
        left, self._text = self._text, ""
        if self._object is not None:
            return [_framed(self._object.cut(left), self._frame)]
        if self._fault is not None:
            return [replace(self._fault, text=self._fault.text + left)]
        return [left] if left and not self._is_behind_object else []

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


class TurnReader:
    """A turn that is calls is objects with `name` and, under `key`, arguments, with commas or semicolons between; with
    `is_list` in brackets. It is calls if it begins with a brace, or a bracket and a brace; `mark` may come first. Any
    other turn is text, and so is what follows the calls."""

    def __init__(self, key: str, *, is_list: bool = False, mark: str = "") -> None:
        self._key, self._mark = key, mark
        self._opening = "[{" if is_list else "{"
        self._between = SPACE + ("," if is_list else ";")
        self._text = ""
        self._object: CallObject | None = None
        self._state = "start"  # "start", "text", "call", "between"

    def push(self, text: str) -> list[Found]:
        self._text += text
        found: list[Found] = []
        while self._step(found):
            pass
        return found

    def finish(self) -> list[Found]:
        left, self._text = self._text, ""
        if self._object is not None:
            return [self._object.cut(left)]
        return [left] if left and self._state == "start" else []

    def _step(self, found: list[Found]) -> bool:
        if self._object is not None:
            told, self._text = self._object.push(self._text)
            found += told
            if not self._object.is_complete:
                return False
            self._object, self._state = None, "between"
            return True
        if self._state == "start":
            return self._start()
        rest = self._text.lstrip(self._between)
        if self._state == "between" and not rest:
            return False
        if self._state == "between" and rest[0] == "{":
            self._begin(rest)
            return True
        if self._state == "between" and rest[0] == "]" and self._opening != "{":
            self._text = rest[1:]
        self._state = "text"
        _add_text(found, self._text)
        self._text = ""
        return False

    def _start(self) -> bool:
        rest = self._text.lstrip(SPACE)
        if self._mark.startswith(rest):
            return False  # nothing yet, or a beginning of the mark
        rest = rest.removeprefix(self._mark).lstrip(SPACE)
        opened = "".join(rest.split())[: len(self._opening)]
        if opened == self._opening:
            self._begin(rest[rest.index("{") :])
        elif self._opening.startswith(opened):
            return False
        else:
            self._state = "text"
        return True

    def _begin(self, rest: str) -> None:
        self._object, self._text, self._state = CallObject(self._key), rest, "call"


READERS: dict[str, Callable[[], CallReader]] = {
    "hermes": HermesReader,
    "smollm2": HermesReader,
    "llama3_json": lambda: TurnReader("parameters"),
    "mistral": lambda: TurnReader("arguments", is_list=True, mark="[TOOL_CALLS]"),
    "pythonic": PythonicReader,
}


def reader_of(format: str) -> CallReader:
    """Raises BadRequest for a format that this sdk does not know."""
    if format not in READERS:
        raise BadRequest(f"the model writes calls in the format {format!r}; {', '.join(READERS)} are known")
    return READERS[format]()


def beginning_at_end(text: str, tag: str) -> int:
    """How many of the last characters could be the beginning of the tag."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)


def _framed(found: Found, frame: str) -> Fault:
    """A fault whose text begins with the frame."""
    assert isinstance(found, Fault)
    return replace(found, text=frame + found.text)


def _add_text(found: list[Found], text: str) -> None:
    if text:
        found.append(text)
