"""Reads calls of tools as newer models of Mistral write them: `[TOOL_CALLS]weather[ARGS]{"city": "Paris"}`.

A reader of `tool_formats`. The marks are control tokens of the model, which stand in the text of a turn with tools as
they are written; any text may come before, between and after calls.
"""

import json
import re
from dataclasses import replace

from loopwright.sdk.call_object import SPACE, ArgumentsText, CallBegun, Fault, Found, StepReader, call_of

CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
MARKS = (CALLS, CALL_ID, ARGS)
MAX_HEAD = 300
"""Characters between the mark of a call and that of its arguments."""

_HEAD = re.compile(r"\s*([A-Za-z0-9_./:-]+)\s*(?:\[CALL_ID\][^\[\]]*)?")
_OUTSIDE, _INSIDE = re.compile(r'["{}\[\]]'), re.compile(r'["\\]')


class MarkedReader(StepReader):
    """`[TOOL_CALLS]`, a name, perhaps `[CALL_ID]` and an id, which means nothing here, `[ARGS]`, an object."""

    def __init__(self) -> None:
        super().__init__()
        self._state = "text"  # "text", "head", "arguments"
        self._name = self._frame = ""  # of the call that is read
        self._object = ObjectText()

    def finish(self) -> list[Found]:
        left, self._text = self._text, ""
        if self._state == "text":
            return [left] if left else []
        frame = CALLS if self._state == "head" else self._frame
        written = f"{frame}{self._object.text}{left}"
        return [Fault(written, "cut", "the text ends within a call", is_begun=self._object.has_begun)]

    @property
    def num_unread(self) -> int:
        return len(self._text)

    def _step(self, found: list[Found]) -> bool:
        """Reads on by one state; whether it changed and there may be more to read."""
        if self._state == "arguments":
            return self._read_arguments(found)
        if self._state == "head":
            return self._read_head(found)
        start = self._text.find(CALLS)
        end = start if start >= 0 else len(self._text) - beginning_at_end(self._text, CALLS)
        if end:
            found.append(self._text[:end])
        self._text = self._text[end:]
        if start >= 0:
            self._text, self._state, self._object = self._text.removeprefix(CALLS), "head", ObjectText()
        return start >= 0

    def _read_head(self, found: list[Found]) -> bool:
        end = self._text.find(ARGS, 0, MAX_HEAD + len(ARGS))
        if end < 0 and len(self._text) < MAX_HEAD + len(ARGS):
            return False
        head = None if end < 0 else _HEAD.fullmatch(self._text, 0, end)
        if head is None:
            found.append(Fault(CALLS, "malformed", f"no name and {ARGS} follow {CALLS}"))
            self._state = "text"
            return True
        self._name, self._frame = head[1], f"{CALLS}{self._text[:end]}{ARGS}"
        self._text, self._state = self._text[end + len(ARGS) :], "arguments"
        return True

    def _read_arguments(self, found: list[Found]) -> bool:
        had_begun = self._object.has_begun
        taken, self._text = self._object.push(self._text)
        if self._object.is_wrong:
            found.append(Fault(self._frame, "malformed", "the arguments of a call are no JSON object"))
            self._state = "text"
            return True
        if taken:
            found += [ArgumentsText(taken)] if had_begun else [CallBegun(self._name), ArgumentsText(taken)]
        if not self._object.is_complete:
            return False
        whole = f"{self._frame}{self._object.text}"
        call = call_of(f'{{"name": {json.dumps(self._name)}, "arguments": {self._object.text}}}', "arguments")
        if isinstance(call, str):
            found.append(Fault(whole, "malformed", call, is_begun=True))
        else:
            found.append(replace(call, text=whole))
        self._state = "text"
        return True


class ObjectText:
    """Follows one JSON object up to the brace that ends it. Braces inside strings do not count."""

    def __init__(self) -> None:
        self.is_wrong = False  # it does not begin with a brace
        self.is_complete = False
        self._parts: list[str] = []
        self._depth = 0
        self._is_in_string = self._is_escaped = False

    @property
    def text(self) -> str:
        return "".join(self._parts)

    @property
    def has_begun(self) -> bool:
        return bool(self._parts)

    def push(self, text: str) -> tuple[str, str]:
        """What of the text belongs to the object, and what comes after it, or all that is left of a wrong one."""
        if not self.has_begun:
            text = text.lstrip(SPACE)
            self.is_wrong = bool(text) and text[0] != "{"
        place = 0
        while place < len(text) and not (self.is_wrong or self.is_complete):
            if self._is_escaped:
                self._is_escaped, place = False, place + 1
                continue
            match = (_INSIDE if self._is_in_string else _OUTSIDE).search(text, place)
            place = len(text) if match is None else match.end()
            if match is not None:
                self._take(match[0])
        if place:
            self._parts.append(text[:place])
        return text[:place], text[place:]

    def _take(self, character: str) -> None:
        if character == '"':
            self._is_in_string = not self._is_in_string
        elif character == "\\":
            self._is_escaped = True
        else:
            self._depth += 1 if character in "{[" else -1
            self.is_complete = self._depth == 0


def beginning_at_end(text: str, tag: str) -> int:
    """How many of the last characters could be the beginning of the tag."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)
