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

MAX_TOOLS = 256
_NAME = re.compile(r"[A-Za-z0-9_./:-]{1,128}")
_HINT = "leave the keyword out of the schema, or take strict=False: then arguments are checked when they are there"

ToolFormat: TypeAlias = Literal["hermes", "llama3_json"]


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


def read_tool_calls(source: str, schema_options: dict[str, object]) -> ToolGrammar:
    """`schema_options` are put into each schema, as its x-guidance. Raises BadRequest whose field names the tool."""
    try:
        turn = msgspec.json.decode(source, type=ToolCalls)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"tool calls: {error}", field="grammar.source") from None
    if not 0 < len(turn.tools) <= MAX_TOOLS:
        raise BadRequest(f"{len(turn.tools)} tools; from 1 to {MAX_TOOLS} can be named", field="tools")
    _check_names(turn.tools)
    schemas = tuple((tool.name, _parameters(tool)) for tool in turn.tools)
    rules = [_FORMATS[turn.format](turn)]
    for place, (name, schema) in enumerate(schemas):
        rules.append(f"name_{place}: {json.dumps(json.dumps(name))}")
        rules.append(f"args_{place}: %json {json.dumps({**schema, 'x-guidance': schema_options})}")
    return ToolGrammar("\n".join(rules) + "\n", schemas)


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


def _parameters(tool: ToolSchema) -> Schema:
    try:
        schema = read_schema(bytes(tool.parameters).decode())
    except BadRequest as error:
        if not tool.strict:
            return {"type": "object"}
        raise tool_error(tool.name, error.field.partition("#")[2], error.message.partition(": ")[2]) from None
    if schema.get("type") != "object":
        raise tool_error(tool.name, "/type", 'the schema of arguments must say "type": "object"')
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


_FORMATS = {"hermes": _hermes, "llama3_json": _llama3_json}
