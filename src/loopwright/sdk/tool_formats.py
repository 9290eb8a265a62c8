"""Reads calls of tools out of a model's text while it is written: one reader for each way that models write them.

Never knows which tools there are. Used by tool_calls. Text may come in any portions; what comes out is the same.
"""

import json
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeAlias

from loopwright.sdk.errors import BadRequest

BEGIN, END = "<tool_call>", "</tool_call>"
_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A call that is complete. `text` is its JSON."""

    name: str
    arguments: dict[str, Any]
    text: str


@dataclass(frozen=True, slots=True)
class Fault:
    """What began as a call and is none. `reason` is "cut" (the text ended in it) or "malformed"."""

    text: str
    reason: str
    message: str


Found: TypeAlias = str | FoundCall | Fault
"""A piece of the text that is no call's, a call, or what failed to be one."""


class CallReader(Protocol):
    """Reads one turn."""

    def push(self, text: str) -> list[Found]:
        """What is certain by now, in order. A call comes with the brace that ends its JSON."""
        ...

    def finish(self) -> list[Found]:
        """The text is over: what was held back, and a call that is cut."""
        ...


class HermesReader:
    """`<tool_call>`, an object with `name` and `arguments`, `</tool_call>`; any text before, between and after."""

    def __init__(self) -> None:
        self._text = ""  # not read yet
        self._object: _Object | None = None
        self._skip = ""  # "" in text; "tag" behind an object, up to its end tag; "junk" in a call that is malformed

    def push(self, text: str) -> list[Found]:
        self._text += text
        found: list[Found] = []
        while self._step(found):
            pass
        return found

    def finish(self) -> list[Found]:
        left, self._text = self._text, ""
        if self._object is not None:
            return [Fault(self._object.text + left, "cut", "the text ends within a call")]
        if self._skip == "junk":
            return [Fault(left, "malformed", "a call is no JSON object")]
        return [left] if left and not self._skip else []

    def _step(self, found: list[Found]) -> bool:
        """Reads on by one state; whether it changed and there may be more to read."""
        if self._object is not None:
            return self._read_object(self._object, found)
        if self._skip == "tag":
            return self._leave_call()
        if self._skip == "junk":
            return self._leave_junk(found)
        start = self._text.find(BEGIN)
        if start < 0:
            held = _beginning_at_end(self._text, BEGIN)
            _add_text(found, self._text[: len(self._text) - held])
            self._text = self._text[len(self._text) - held :]
            return False
        _add_text(found, self._text[:start])
        self._text = self._text[start + len(BEGIN) :]
        self._object = _Object()
        return True

    def _read_object(self, one: "_Object", found: list[Found]) -> bool:
        self._text = one.push(self._text)
        if one.is_wrong:
            self._text, self._object, self._skip = one.text + self._text, None, "junk"
            return True
        if not one.is_complete:
            return False
        found.append(_call_of(one.text, "arguments"))
        self._object, self._skip = None, "tag"
        return True

    def _leave_call(self) -> bool:
        """Takes the end tag behind a call. If something else stands there, that is text again."""
        rest = self._text.lstrip(_SPACE)
        if not rest.startswith(END) and END.startswith(rest):
            return False  # may still become one
        if rest.startswith(END):
            self._text = rest.removeprefix(END)
        self._skip = ""
        return True

    def _leave_junk(self, found: list[Found]) -> bool:
        end = self._text.find(END)
        if end < 0:
            return False
        found.append(Fault(self._text[:end], "malformed", "a call is no JSON object"))
        self._text, self._skip = self._text[end + len(END) :], ""
        return True


class Llama3JsonReader:
    """A turn that begins with a brace is objects with `name` and `parameters`, with ";" between; any other is text."""

    def __init__(self) -> None:
        self._text = ""
        self._object: _Object | None = None
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
            return [Fault(self._object.text + left, "cut", "the text ends within a call")]
        return [left] if left and self._state == "start" else []

    def _step(self, found: list[Found]) -> bool:
        if self._object is not None:
            self._text = self._object.push(self._text)
            if not self._object.is_complete:
                return False
            found.append(_call_of(self._object.text, "parameters"))
            self._object, self._state = None, "between"
            return True
        rest = self._text.lstrip(_SPACE + (";" if self._state == "between" else ""))
        if self._state != "text" and not rest:
            return False
        if self._state != "text" and rest[0] == "{":
            self._object, self._text = _Object(), rest
            return True
        self._state = "text"
        _add_text(found, self._text)
        self._text = ""
        return False


READERS: dict[str, type[HermesReader] | type[Llama3JsonReader]] = {
    "hermes": HermesReader,
    "llama3_json": Llama3JsonReader,
}


def reader_of(format: str) -> CallReader:
    """Raises BadRequest for a format that this sdk does not know."""
    if format not in READERS:
        raise BadRequest(f"the model writes calls in the format {format!r}; {', '.join(READERS)} are known")
    return READERS[format]()


class _Object:
    """Finds where a JSON object ends, one character after the other: braces inside strings do not count."""

    def __init__(self) -> None:
        self.is_wrong = False  # it does not begin with a brace
        self.is_complete = False
        self._parts: list[str] = []
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def push(self, text: str) -> str:
        """Takes text up to the end of the object; what comes after it, or all that is left of a wrong one."""
        start = 0
        if not self._depth:
            start = len(text) - len(text.lstrip(_SPACE))
            if start < len(text) and text[start] != "{":
                self.is_wrong = True
                return text[start:]
        for place in range(start, len(text)):
            self._take(text[place])
            if self._depth == 0:
                self.is_complete = True
                self._parts.append(text[start : place + 1])
                return text[place + 1 :]
        self._parts.append(text[start:])
        return ""

    def _take(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif self._is_in_string:
            self._is_escaped = character == "\\"
            self._is_in_string = character != '"'
        elif character == '"':
            self._is_in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1


def _call_of(text: str, key: str) -> FoundCall | Fault:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return Fault(text, "malformed", f"a call is not JSON: {error}")
    name, arguments = value.get("name"), value.get(key)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return Fault(text, "malformed", f'a call needs "name", a string, and "{key}", an object')
    return FoundCall(name, arguments, text)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _beginning_at_end(text: str, tag: str) -> int:
    """How many of the last characters could be the beginning of the tag."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)


def _add_text(found: list[Found], text: str) -> None:
    if text:
        found.append(text)
