"""Reads one call of a tool, a JSON object, while it is written: its name, then its arguments piece by piece.

Never knows what stands around the object, nor which tools there are. Used by the readers of `tool_formats`. Text may
come in any portions; what comes out, joined, is the same.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

SPACE = " \t\r\n"
_OUTSIDE, _INSIDE = re.compile(r'["{}\[\],:]'), re.compile(r'["\\]')  # what matters outside of a string, and inside


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call's name is known, and its arguments have begun."""

    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsText:
    """The next piece of the JSON of the arguments of the call that was begun."""

    text: str


@dataclass(frozen=True, slots=True)
class FoundCall:
    """The call is complete. `text` is how the model wrote it, without what frames it."""

    name: str
    arguments: dict[str, Any]
    text: str


@dataclass(frozen=True, slots=True)
class Fault:
    """What began as a call and is none: its whole text, frame and all. `reason` is "cut" (the text ended in it) or
    "malformed". With `is_begun`, a CallBegun came before it."""

    text: str
    reason: str
    message: str
    is_begun: bool = False


Found: TypeAlias = str | CallBegun | ArgumentsText | FoundCall | Fault
"""A piece of the text that is no call's, a part of a call or its end, or what failed to be one."""


class StepReader:
    """Reads text that comes in portions, a thing at a time."""

    def __init__(self) -> None:
        self._text = ""  # not read yet

    def push(self, text: str) -> list[Found]:
        """What is certain by now, in order."""
        self._text += text
        found: list[Found] = []
        while self._step(found):
            pass
        return found

    def _step(self, found: list[Found]) -> bool:
        """Adds the next thing of the text. False if more has to come before it is known."""
        raise NotImplementedError


class CallObject:
    """Follows an object with `name` and, under `key`, an object of arguments; other keys mean nothing.

    The arguments' text comes as it is written, as soon as the name is known too. Braces inside strings do not count."""

    def __init__(self, key: str) -> None:
        self.is_wrong = False  # it does not begin with a brace
        self.is_complete = False
        self._arguments_key = key
        self._parts: list[str] = []  # all of it
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self._string: list[str] | None = None  # of a string in the outermost object, as it grows
        self._key: str | None = None  # whose value comes; None where a key does
        self._name: str | None = None
        self._arguments: list[str] | None = None  # not told yet
        self._has_arguments = False
        self._is_in_arguments = False
        self._is_begun = False
        self._keys: set[str] = set()
        self._is_doubled = False  # a key is there twice

    @property
    def text(self) -> str:
        return "".join(self._parts)

    @property
    def has_begun(self) -> bool:
        return bool(self._depth)

    def push(self, text: str) -> tuple[list[Found], str]:
        """Takes text up to the end of the object. What is known by now, and what comes after the object, or all that is
        left of a wrong one."""
        place = 0
        if not self._depth:
            place = len(text) - len(text.lstrip(SPACE))
            if place < len(text) and text[place] != "{":
                self.is_wrong = True
                return [], text
            self._keep(text[:place])
        while place < len(text) and not self.is_complete:
            place = self._step(text, place)
        found = self._told()
        if self.is_complete:
            found.append(self._end())
        return found, text[place:]

    def cut(self, left: str = "") -> Fault:
        """The text ended before the object did, and `left` after what it took."""
        return self._fault("cut", "the text ends within a call", left)

    def _step(self, text: str, place: int) -> int:
        """Takes what stands up to the next character that matters, and that one. Where to go on."""
        if self._is_escaped:
            self._is_escaped = False
            self._keep(text[place])
            return place + 1
        match = (_INSIDE if self._is_in_string else _OUTSIDE).search(text, place)
        end = len(text) if match is None else match.end()
        if match is not None and match[0] == "{" and self._begins_arguments():
            self._keep(text[place : end - 1])
            self._arguments, self._is_in_arguments, self._has_arguments, place = [], True, True, end - 1
        elif match is not None and match[0] == '"' and self._depth == 1 and not self._is_in_string:
            self._keep(text[place : end - 1])
            self._string, place = [], end - 1
        self._keep(text[place:end])
        if match is not None:
            self._take(match[0])
        return end

    def _begins_arguments(self) -> bool:
        return (
            self._depth == 1 and not self._is_in_string and self._key == self._arguments_key and not self._has_arguments
        )

    def _keep(self, text: str) -> None:
        self._parts.append(text)
        if self._string is not None:
            self._string.append(text)
        if self._is_in_arguments and self._arguments is not None:
            self._arguments.append(text)

    def _take(self, character: str) -> None:
        if self._is_in_string:
            self._is_escaped = character == "\\"
            if character == '"':
                self._is_in_string = False
                self._take_string()
        elif character == '"':
            self._is_in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            if self._is_in_arguments and self._depth == 1:
                self._is_in_arguments = False
            self.is_complete = self._depth == 0
        elif character == "," and self._depth == 1:
            self._key = None

    def _take_string(self) -> None:
        """A string of the outermost object is complete: a key, or the name."""
        if self._string is None:
            return
        written, self._string = "".join(self._string), None
        try:
            string = json.loads(written)
        except ValueError:
            return  # the whole will not be JSON either
        if self._key is None:
            self._key, self._is_doubled = string, self._is_doubled or string in self._keys
            self._keys.add(string)
        elif self._key == "name" and self._name is None:
            self._name = string

    def _told(self) -> list[Found]:
        """What can be told now of the arguments."""
        if self._name is None or self._arguments is None:
            return []
        found: list[Found] = [] if self._is_begun else [CallBegun(self._name)]
        self._is_begun = True
        if self._arguments:
            found.append(ArgumentsText("".join(self._arguments)))
            self._arguments = []
        return found

    def _end(self) -> Found:
        call = call_of(self.text, self._arguments_key)
        if isinstance(call, str):
            return self._fault("malformed", call)
        if self._is_doubled:
            return self._fault("malformed", "a call has one of its keys twice")
        return call

    def _fault(self, reason: str, message: str, left: str = "") -> Fault:
        return Fault(self.text + left, reason, message, self._is_begun)


def call_of(text: str, key: str) -> FoundCall | str:
    """The call that a whole text is, or why it is none."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return f"a call is not JSON: {error}"
    name, arguments = value.get("name"), value.get(key)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return f'a call needs "name", a string, and "{key}", an object'
    return FoundCall(name, arguments, text.strip(SPACE))


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
