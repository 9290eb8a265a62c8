"""Writes the grammar of a turn that may call tools: free text up to a call, and in a call the schema of the tool that
it names. Never compiles one.

Called by the compiler with the source of a grammar of kind "tool_calls". Each format is how one family of models was
taught to write calls; the sdk reads the same formats.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from loopwright.core.errors import BadRequest
from loopwright.grammar.json_schema import Schema, read_schema
from loopwright.grammar.python_calls import not_of_python, only_names, python_call

MAX_TOOLS = 256
_NAME = re.compile(r"[A-Za-z0-9_./:-]{1,128}")
_HINT = "leave the keyword out of the schema, or take strict=False: then arguments are checked when they are there"

ToolFormat: TypeAlias = Literal["hermes", "smollm2", "llama3_json", "mistral", "pythonic"]


class ToolSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool that may be called: its arguments are an object of that schema. If that cannot be held, it is refused with
    `strict`, and otherwise any object will do."""

    name: str
    parameters: msgspec.Raw
    strict: bool = True


class ToolCalls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A turn: with "auto" text, calls or both; with "required" calls alone, at least one; with "none" no call. With
    `parallel` false the text is whole after the first call."""

    format: ToolFormat
    tools: tuple[ToolSchema, ...]
    choice: Literal["auto", "required", "none"] = "auto"
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class ToolGrammar:
    """The grammar for llguidance, in its Lark, and the schemas in it with their tools' names."""

    lark: str
    schemas: tuple[tuple[str, Schema], ...]
    strict: frozenset[str]  # the tools whose schema has to be held


def read_tool_calls(source: str, schema_options: dict[str, object], loose: frozenset[str] = frozenset()) -> ToolGrammar:
    """`schema_options` are put into each schema, as its x-guidance; of the tools in `loose` any object will do. Raises
    BadRequest whose field names the tool."""
    try:
        turn = msgspec.json.decode(source, type=ToolCalls)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"tool calls: {error}", field="grammar.source") from None
    if not 0 < len(turn.tools) <= MAX_TOOLS:
        raise BadRequest(f"{len(turn.tools)} tools; from 1 to {MAX_TOOLS} can be named", field="tools")
    _check_names(turn.tools)
    schemas = tuple((tool.name, _parameters(tool, turn.format, tool.name in loose)) for tool in turn.tools)
    rules = [_FORMATS[turn.format](turn)]
    for place, (name, schema) in enumerate(schemas):
        if turn.format == "pythonic":
            rules += python_call(place, name, schema, schema_options)
            continue
        rules.append(f"name_{place}: {json.dumps(json.dumps(name))}")
        rules.append(f"args_{place}: %json {json.dumps({**schema, 'x-guidance': schema_options})}")
    strict = frozenset(tool.name for tool in turn.tools if tool.strict)
    return ToolGrammar("\n".join(rules) + "\n", schemas, strict)


def tool_error(name: str, pointer: str, what: str) -> BadRequest:
    """For parameters that cannot be held: `pointer` (RFC 6901) says where in the schema of the tool `name`."""
    return BadRequest(
        f"the tool {name!r}, parameters#{pointer}: {what}", field=f"tools.{name}.parameters#{pointer}", hint=_HINT
    )


def _check_names(tools: Sequence[ToolSchema]) -> None:
    for place, tool in enumerate(tools):
        if not _NAME.fullmatch(tool.name):
            raise BadRequest(
                f"the tool's name {tool.name[:130]!r} is not of 1 to 128 letters, digits and _ . / : -",
                field=f"tools[{place}].name",
            )
    names = [tool.name for tool in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadRequest(f"two tools are named {twice!r}", field="tools")


def _parameters(tool: ToolSchema, format: ToolFormat, is_loose: bool) -> Schema:
    """The schema that the arguments are held to."""
    written = bytes(tool.parameters).decode()
    if not is_loose:
        try:
            return _read_parameters(tool.name, written, format)
        except BadRequest:
            if tool.strict:
                raise
    try:
        return only_names(json.loads(written)) if format == "pythonic" else {"type": "object"}
    except (ValueError, AttributeError) as error:
        raise tool_error(tool.name, "", f"is no schema: {error}") from None


def _read_parameters(name: str, written: str, format: ToolFormat) -> Schema:
    try:
        schema = read_schema(written)
    except BadRequest as error:
        raise tool_error(name, error.field.partition("#")[2], error.message.partition(": ")[2]) from None
    if schema.get("type") != "object":
        raise tool_error(name, "/type", 'the schema of arguments must say "type": "object"')
    if format == "pythonic" and (at_fault := not_of_python(schema)) is not None:
        raise tool_error(name, f"/{at_fault}", "calls written as Python are held to named values alone")
    return schema


def _hermes(turn: ToolCalls) -> str:
    calls = _one_of_the_calls(turn, "arguments")
    start = _start(turn, prose_then_call="until_call call_body", call='"<tool_call>" call_body', between=r'"\n"')
    # The lazy rule ends where the tag first appears; the text of PROSE never holds it.
    return rf"""{start}
PROSE: /(.|\n)*/ & ~/(.|\n)*<tool_call>(.|\n)*/
until_call[lazy]: /(.|\n)*/ "<tool_call>"
call_body: "\n" ({calls}) "\n</tool_call>" """


def _llama3_json(turn: ToolCalls) -> str:
    """A turn that begins with a brace is calls, and any other is text."""
    calls = f"({_one_of_the_calls(turn, 'parameters')})"
    start = _start(turn, prose_then_call=None, call=calls, between='"; "')
    return rf"""{start}
PROSE: /([^ \t\r\n{{](.|\n)*)?/"""


def _smollm2(turn: ToolCalls) -> str:
    """As hermes, but the tags are around a list, and there is one such list."""
    item = f"({_one_of_the_calls(turn, 'arguments')})"
    items = f'{item} (", " {item})*' if turn.parallel else item
    match turn.choice:
        case "none":
            start = "start: PROSE"
        case "required":
            start = 'start: "<tool_call>" call_body'
        case _:
            start = "start: PROSE | until_call call_body"
    return rf"""{start}
PROSE: /(.|\n)*/ & ~/(.|\n)*<tool_call>(.|\n)*/
until_call[lazy]: /(.|\n)*/ "<tool_call>"
call_body: "[" {items} "]</tool_call>" """


def _mistral(turn: ToolCalls) -> str:
    return _listed_turn(turn, f"({_one_of_the_calls(turn, 'arguments')})")


def _pythonic(turn: ToolCalls) -> str:
    return _listed_turn(turn, f"({' | '.join(f'call_{place}' for place, _ in enumerate(turn.tools))})")


def _listed_turn(turn: ToolCalls, item: str) -> str:
    """A turn that begins with a bracket is calls, and any other is text."""
    items = f'"[" {item} (", " {item})* "]"' if turn.parallel else f'"[" {item} "]"'
    start = {"none": "PROSE", "required": items}.get(turn.choice, f"PROSE | {items}")
    return rf"""start: {start}
PROSE: /([^ \t\r\n\[](.|\n)*)?/"""


def _one_of_the_calls(turn: ToolCalls, key: str) -> str:
    options = [
        f'"{{\\"name\\": " name_{place} ", \\"{key}\\": " args_{place} "}}"' for place, _ in enumerate(turn.tools)
    ]
    return " | ".join(options)


def _start(turn: ToolCalls, *, prose_then_call: str | None, call: str, between: str) -> str:
    """The rule of the whole turn. `prose_then_call` is None where text and calls do not mix."""
    several = f"{call} ({between} {call})*" if turn.parallel else call
    match turn.choice:
        case "none":
            return "start: PROSE"
        case "required":
            return f"start: {several}"
    if prose_then_call is None:
        return f"start: PROSE | {several}"
    return f"start: ({prose_then_call})* PROSE" if turn.parallel else f"start: PROSE | {prose_then_call}"


_FORMATS = {
    "hermes": _hermes,
    "smollm2": _smollm2,
    "llama3_json": _llama3_json,
    "mistral": _mistral,
    "pythonic": _pythonic,
}
