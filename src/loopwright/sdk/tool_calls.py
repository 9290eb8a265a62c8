"""Tools in a segment: what the model is told and held to, and its calls as they are complete. Never executes a call.

Used by Context; `tool_formats` reads the text. docs/tools-while-generating.md.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from loopwright.sdk.call_object import ArgumentsText, CallBegun, Fault, Found, FoundCall
from loopwright.sdk.errors import BadRequest
from loopwright.sdk.grammar import Grammar, grammar_fields
from loopwright.sdk.schema_check import check
from loopwright.sdk.tool_formats import CallReader, reader_of
from loopwright.sdk.tools import Tool
from loopwright.sdk.turn import BrokenCall, ToolCall, Turn

Part: TypeAlias = str | ToolCall
"""Text that is no call's, or a call."""


@dataclass(slots=True)
class ToolUse:
    """The tools of one segment. `choice` is auto, none, required or the name of a tool."""

    tools: tuple[Tool, ...]
    choice: str = "auto"
    are_calls_parallel: bool = True
    is_strict: bool = True
    format: str = field(default="", init=False)
    is_answer_held: bool = field(default=False, init=False)

    def options(self, given: Mapping[str, Any], format: str) -> dict[str, Any]:
        """The segment's options, with the grammar that holds it to these tools. `format` is how the model writes calls.
        A grammar that is given is that of an answer, which is all that the model may write beside calls. Raises
        BadRequest."""
        self._check(given)
        reader_of(format)
        answer = given.get("grammar")
        self.format, self.is_answer_held = format, answer is not None
        if self.choice == "none" and answer is not None:
            return {**given}
        calls = None if self.choice == "none" else {"format": format, "is_answer_held": self.is_answer_held}
        if not self.is_strict:
            return {**given, "calls": calls}
        is_named = self.choice not in ("auto", "none", "required")
        source = {
            "format": self.format,
            "tools": [
                {"name": one.name, "parameters": one.parameters, "strict": one.is_strict}
                for one in self.tools
                if not is_named or one.name == self.choice
            ],
            "choice": "required" if is_named else self.choice,
            "parallel": self.are_calls_parallel and not is_named,
            "answer": None if answer is None else grammar_fields(answer),
        }
        return {**given, "grammar": Grammar("tool_calls", json.dumps(source)), "calls": calls}

    def reader(self) -> "ToolCallReader":
        return ToolCallReader(self)

    def read(self, turn: Turn) -> Turn:
        """The turn, with the calls that its text makes."""
        reader = self.reader()
        reader.push(turn.text)
        return reader.finish(turn)

    def _check(self, given: Mapping[str, Any]) -> None:
        names = [one.name for one in self.tools]
        if self.choice not in ("auto", "none", "required", *names):
            raise BadRequest(
                f"tool_choice: {self.choice!r} is not auto, none, required or one of {', '.join(names)}",
                field="tool_choice",
            )
        for option in ("sampler_fallback", "watch", *(() if self.is_strict else ("grammar",))):
            if given.get(option):
                loose = " that are not held" if option == "grammar" else ""
                raise BadRequest(f"{option}: a segment takes {option} or tools{loose}, not both", field=option)
        if self.is_strict:
            return
        if self.choice != "auto" or not self.are_calls_parallel:
            at_fault = "tool_choice" if self.choice != "auto" else "parallel_calls"
            raise BadRequest(f"{at_fault}: without strict nothing holds the model to it", field=at_fault)


def tool_use(tools: Sequence[Tool], tool_choice: str, parallel_calls: bool, strict: bool) -> ToolUse | None:
    """None without tools. Raises BadRequest for options that are nothing without them."""
    if tools:
        return ToolUse(tuple(tools), tool_choice, parallel_calls, strict)
    if tool_choice not in ("auto", "none"):
        raise BadRequest(f"tool_choice: {tool_choice!r} without tools", field="tool_choice")
    return None


class ToolCallReader:
    """Follows the text of one turn. A call comes once, as soon as it is complete and fits its schema."""

    def __init__(self, use: ToolUse) -> None:
        self._tools = {one.name: one for one in use.tools}
        self._reader: CallReader | None = (
            None if use.choice == "none" else reader_of(use.format, is_answer_held=use.is_answer_held)
        )
        self._prose: list[str] = []
        self._calls: list[ToolCall] = []
        self._broken: list[BrokenCall] = []

    def push(self, text: str) -> list[Part]:
        """Takes the next piece of the text."""
        return self._sorted(self._reader.push(text) if self._reader is not None else [text] if text else [])

    def finish(self, turn: Turn) -> Turn:
        """The text is over, and was that of `turn`: the turn with its calls."""
        self.flush()
        return replace(
            turn,
            prose="".join(self._prose),
            tool_calls=tuple(self._calls),
            broken_calls=tuple(self._broken),
        )

    def flush(self) -> list[Part]:
        """The text is over: what was held back of it."""
        reader, self._reader = self._reader, None
        return self._sorted(reader.finish() if reader is not None else [])

    def _sorted(self, found: Sequence[Found]) -> list[Part]:
        parts: list[Part] = []
        for one in found:
            match one:
                case FoundCall():
                    if (call := self._checked(one)) is not None:
                        self._calls.append(call)
                        parts.append(call)
                case Fault():
                    self._broken.append(BrokenCall(one.text, one.reason, one.message))
                case str() as text:
                    self._prose.append(text)
                    parts.append(text)
                case CallBegun() | ArgumentsText():
                    pass  # a program gets calls whole
        return parts

    def _checked(self, found: FoundCall) -> ToolCall | None:
        tool = self._tools.get(found.name)
        if tool is None:
            message = f"there is no tool {found.name!r}; there are {', '.join(self._tools)}"
            self._broken.append(BrokenCall(found.text, "unknown_tool", message))
            return None
        try:
            check(found.arguments, tool.parameters, tool.name)
        except BadRequest as error:
            self._broken.append(BrokenCall(found.text, "invalid", error.message))
            return None
        return ToolCall(len(self._calls), found.name, found.arguments, tool)
