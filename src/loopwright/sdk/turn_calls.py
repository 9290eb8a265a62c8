"""Reads calls of tools of turns that are nothing but calls, as Llama, older Mistral and Gemma write them.

Readers of `tool_formats`. Whether a turn is calls is known from how it begins; any other turn is text as it is.
"""

from loopwright.sdk.call_object import SPACE, CallObject, Found, StepReader
from loopwright.sdk.pythonic_calls import PythonicReader

JSON_FENCE, CODE_FENCE, FENCE = "```json", "```tool_code", "```"


class TurnReader(StepReader):
    """A turn that is calls is objects with `name` and, under `key`, arguments, with commas or semicolons between; with
    `is_list` in brackets, or with and without if that is None. It is calls if it begins with a brace, or a bracket and
    a brace; `mark` may come first, and `end` last. Any other turn is text, and so is what follows the calls."""

    def __init__(self, key: str, *, is_list: bool | None = False, mark: str = "", end: str = "") -> None:
        super().__init__()
        self._key, self._mark = key, mark
        self._openings = {False: ("{",), True: ("[{",), None: ("{", "[{")}[is_list]
        self._between = SPACE + {False: ";", True: ",", None: ",;"}[is_list]
        self._ends = [one for one in ("" if is_list is False else "]", end) if one]  # that may still come, in order
        self._object: CallObject | None = None
        self._state = "start"  # "start", "call", "between", "behind" (the list), "text"

    def finish(self) -> list[Found]:
        left, self._text = self._text, ""
        if self._object is not None:
            return [self._object.cut(left)]
        return [left] if left and self._state == "start" else []

    @property
    def num_unread(self) -> int:
        return len(self._text)

    def _step(self, found: list[Found]) -> bool:
        """Reads on by one state; whether it changed and there may be more to read."""
        if self._object is not None:
            told, self._text = self._object.push(self._text)
            found += told
            if not self._object.is_complete:
                return False
            self._object, self._state = None, "between"
            return True
        if self._state == "start":
            return self._start()
        if self._state != "text":
            return self._leave_call()
        if self._text:
            found.append(self._text)
            self._text = ""
        return False

    def _start(self) -> bool:
        rest = self._text.lstrip(SPACE)
        if self._mark.startswith(rest):
            return False  # nothing yet, or a beginning of the mark
        rest = rest.removeprefix(self._mark).lstrip(SPACE)
        opened = "".join(rest[: rest.find("{") + 1 or None].split())
        if opened in self._openings:
            self._begin(rest[rest.index("{") :])
        elif any(one.startswith(opened) for one in self._openings):
            return False
        else:
            self._state = "text"
        return True

    def _leave_call(self) -> bool:
        """Behind a call: takes what opens the next one, or an end. Anything else is text."""
        rest = self._text.lstrip(self._between)
        if not rest:
            return False
        if self._state == "between" and rest[0] == "{":
            self._begin(rest)
            return True
        for place, end in enumerate(self._ends):
            if rest.startswith(end):
                self._text, self._ends = rest[len(end) :], self._ends[place + 1 :]
                self._state = "behind" if self._ends else "text"
                return True
            if end.startswith(rest):
                return False
        self._state = "text"
        return True

    def _begin(self, rest: str) -> None:
        self._object, self._text, self._state = CallObject(self._key), rest, "call"


class GemmaReader:
    """Gemma was taught no one way: objects, as Llama's; the same, or a list of them, in a fence of JSON; or calls
    written as Python in a fence of `tool_code`, without brackets."""

    def __init__(self) -> None:
        self._text = ""  # while it is not known which it is
        self._reader: TurnReader | PythonicReader | None = None

    def push(self, text: str) -> list[Found]:
        if self._reader is None:
            self._text += text
            rest = self._text.lstrip(SPACE)
            if any(one.startswith(rest) for one in (JSON_FENCE, CODE_FENCE)):
                return []
            text, self._text = self._text, ""
            self._reader = _reader_of(rest)
        return self._reader.push(text)

    def finish(self) -> list[Found]:
        left, self._text = self._text, ""
        if self._reader is not None:
            return self._reader.finish()
        return [left] if left else []

    @property
    def num_unread(self) -> int:
        return len(self._text) if self._reader is None else self._reader.num_unread


def _reader_of(beginning: str) -> TurnReader | PythonicReader:
    if beginning.startswith(JSON_FENCE):
        return TurnReader("parameters", is_list=None, mark=JSON_FENCE, end=FENCE)
    if beginning.startswith(CODE_FENCE):
        return PythonicReader(CODE_FENCE, FENCE)
    return TurnReader("parameters")
