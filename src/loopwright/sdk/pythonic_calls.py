"""Reads calls of tools that a model writes as Python: `[weather(city="Paris", days=2), noon()]`. Never executes any.

One of the readers of `tool_formats`. Arguments come as JSON, one at a time: a value is known where it ends.
"""

import ast
import json
import re
from typing import Any, NoReturn

from loopwright.sdk.call_object import SPACE, ArgumentsText, CallBegun, Fault, Found, FoundCall, StepReader

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./:-]*")
_BEGINNING = re.compile(r"\s*(?:[A-Za-z_][A-Za-z0-9_./:-]*\s*)?")
_CALL = re.compile(rf"\s*({_NAME.pattern})\s*\(")
_KEYWORD = re.compile(r"\s*([^\W\d]\w*)\s*=(?!=)")
_BETWEEN = SPACE + ","
_JSON_NAMES = {"true": True, "false": False, "null": None}


class PythonicReader(StepReader):
    """A turn that begins with a bracket, a name and a parenthesis is calls, in a list; any other is text, and so is
    what follows the list. Values are Python's literals, or JSON's. The list may have other brackets."""

    def __init__(self, opening: str = "[", closing: str = "]") -> None:
        super().__init__()
        self._opening, self._closing = opening, closing
        self._state = "start"  # "start", "list", "call", "text"
        self._name = ""
        self._arguments: dict[str, Any] = {}
        self._written: list[str] = []  # of the call, as it was read
        self._argument = ArgumentEnd()

    @property
    def num_unread(self) -> int:
        return len(self._text)

    def finish(self) -> list[Found]:
        left, self._text = self._text, ""
        if self._state == "call":
            return [Fault("".join([*self._written, left]), "cut", "the text ends within a call", is_begun=True)]
        if self._state == "list":
            left = left.strip(_BETWEEN)
            return [Fault(left, "cut", "the text ends within a call")] if left else []
        return [left] if left else []

    def _step(self, found: list[Found]) -> bool:
        match self._state:
            case "start":
                return self._start()
            case "list":
                return self._read_list(found)
            case "call":
                return self._read_call(found)
        if self._text:
            found.append(self._text)
            self._text = ""
        return False

    def _start(self) -> bool:
        rest = self._text.lstrip(SPACE)
        inner = rest.removeprefix(self._opening)
        if self._opening.startswith(rest) or (inner != rest and _BEGINNING.fullmatch(inner)):
            return False
        if inner != rest and _CALL.match(inner):
            self._text, self._state = inner, "list"
        else:
            self._state = "text"
        return True

    def _read_list(self, found: list[Found]) -> bool:
        """Between two calls: the next one's name, or the end of the list."""
        rest = self._text.lstrip(_BETWEEN)
        if rest.startswith(self._closing):
            self._text, self._state = rest[len(self._closing) :], "text"
            return True
        if self._closing.startswith(rest):
            return False
        if (begun := _CALL.match(rest)) is not None:
            self._name, self._arguments, self._written = begun[1], {}, [begun[0]]
            found.append(CallBegun(self._name))
            self._text, self._state, self._argument = rest[begun.end() :], "call", ArgumentEnd()
            return True
        if rest and not re.fullmatch(rf"{_NAME.pattern}\s*", rest):
            self._text, self._state = rest, "text"  # something else stands in the list
            return True
        return False

    def _read_call(self, found: list[Found]) -> bool:
        """The next argument, or the end of the call, once it is there."""
        end = self._argument.find(self._text)
        if end is None:
            return False
        self._argument = ArgumentEnd()
        argument, closing = self._text[:end], self._text[end]
        message = self._take(argument, found) if argument.strip() or closing == "," else None
        if message is not None:
            found.append(Fault("".join([*self._written, self._text[: end + 1]]), "malformed", message, is_begun=True))
            self._text, self._state = self._text[end + 1 :], "text"
            return True
        self._written.append(self._text[: end + 1])
        self._text = self._text[end + 1 :]
        if closing == ")":
            found.append(ArgumentsText("}" if self._arguments else "{}"))
            found.append(FoundCall(self._name, self._arguments, "".join(self._written)))
            self._state = "list"
        return True

    def _take(self, argument: str, found: list[Found]) -> str | None:
        """Tells of an argument that is complete; or what is wrong with it."""
        keyword = _KEYWORD.match(argument)
        if keyword is None:
            return "an argument of a call has no name"
        if keyword[1] in self._arguments:
            return f"a call has the argument {keyword[1]!r} twice"
        try:
            value, written = _value(argument[keyword.end() :].strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return f"the argument {keyword[1]!r} of a call is no literal"
        start = ", " if self._arguments else "{"
        self._arguments[keyword[1]] = value
        found.append(ArgumentsText(f"{start}{json.dumps(keyword[1], ensure_ascii=False)}: {written}"))
        return None


class ArgumentEnd:
    """Finds where the comma or parenthesis stands that ends an argument, in a text that grows."""

    def __init__(self) -> None:
        self._place = self._depth = 0
        self._quote = ""  # of the string that it is in

    def find(self, text: str) -> int | None:
        """`text` begins with what was given before, of which nothing is looked at again."""
        while self._place < len(text):
            character = text[self._place]
            if self._quote:
                if character == "\\":
                    self._place += 1  # whatever comes next is of the string
                elif character == self._quote:
                    self._quote = ""
            elif character in "\"'":
                self._quote = character
            elif self._depth == 0 and character in ",)":
                return self._place
            elif character in "([{":
                self._depth += 1
            elif character in ")]}":
                self._depth -= 1
            self._place += 1
        return None


def _value(text: str) -> tuple[Any, str]:
    """A value, and how JSON writes it: as it stands, if it is JSON. Raises ValueError and others for what is none."""
    try:
        return json.loads(text, parse_constant=_refuse), text
    except ValueError:
        value = _literal(ast.parse(text, mode="eval").body)
        return value, json.dumps(value, ensure_ascii=False, allow_nan=False)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no literal")


def _literal(node: ast.expr) -> Any:  # noqa: ANN401 (JSON)
    """A JSON value. Raises ValueError for what is none."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Name(id=name) if name in _JSON_NAMES:
            return _JSON_NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(one) for one in items]
        case ast.Dict(keys=keys, values=values):
            pairs = [
                (None if key is None else _literal(key), _literal(value))
                for key, value in zip(keys, values, strict=True)
            ]
            if all(isinstance(key, str) for key, _ in pairs):
                return dict(pairs)
    raise ValueError("no literal")
