"""Writes the grammar of a turn that may call tools: free text up to a call, and in a call the schema of the tool that
it names. Never compiles one.

Called by the compiler with the source of a grammar of kind "tool_calls". Each format is how one family of models was
taught to write calls; the sdk reads the same formats.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from loopwright.core.errors import BadRequest
from loopwright.core.grammars import Grammar, ToolFormat
from loopwright.grammar.json_schema import Schema, read_schema
from loopwright.grammar.python_calls import not_of_python, only_names, python_call
from loopwright.sdk.marked_calls import ARGS, CALL_ID, CALLS
from loopwright.sdk.tool_formats import OPENINGS

MAX_TOOLS = 256
_NAME = re.compile(r"[A-Za-z0-9_./:-]{1,128}")
_HINT = "leave the keyword out of the schema, or take strict=False: then arguments are checked when they are there"


class ToolSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool that may be called: its arguments are an object of that schema. If that cannot be held, it is refused with
    `strict`, and otherwise any object will do."""

    name: str
    parameters: msgspec.Raw
    strict: bool = True


class ToolCalls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A turn: with "auto" text, calls or both; with "required" calls alone, at least one; with "none" no call. With
    `parallel` false the text is whole after the first call. With an `answer`, text is held to that grammar, and a turn
    is calls or an answer, never both."""

    format: ToolFormat
    tools: tuple[ToolSchema, ...]
    choice: Literal["auto", "required", "none"] = "auto"
    parallel: bool = True
    answer: Grammar | None = None


@dataclass(frozen=True, slots=True)
class ToolGrammar:
    """The grammar for llguidance, in its Lark, and the schemas in it with their tools' names. Where there is an answer,
    the rule `@answer` is its grammar, and no answer may begin with the opening, as calls do."""

    lark: str
    schemas: tuple[tuple[str, Schema], ...]
    strict: frozenset[str]  # the tools whose schema has to be held
    answer: Grammar | None
    opening: str


Marks: TypeAlias = Mapping[str, int]
"""Control tokens that a format may write, by how they are written."""


def read_tool_calls(
    source: str, schema_options: dict[str, object], marks: Marks, loose: frozenset[str] = frozenset()
) -> ToolGrammar:
    """`schema_options` are put into each schema, as its x-guidance; `marks` are those that the model has; of the tools
    in `loose` any object will do. Raises BadRequest whose field names the tool."""
    try:
        turn = msgspec.json.decode(source, type=ToolCalls)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"tool calls: {error}", field="grammar.source") from None
    if not 0 < len(turn.tools) <= MAX_TOOLS:
        raise BadRequest(f"{len(turn.tools)} tools; from 1 to {MAX_TOOLS} can be named", field="tools")
    _check_names(turn.tools)
    if turn.answer is not None and turn.answer.kind == "tool_calls":
        raise BadRequest("an answer is held to a grammar of another kind than tool_calls", field="grammar.source")
    schemas = tuple((tool.name, _parameters(tool, turn.format, tool.name in loose)) for tool in turn.tools)
    in_python = turn.format == "pythonic" or (
        turn.format == "gemma" and not any(not_of_python(schema) for _, schema in schemas)
    )
    rules = [_gemma(turn, in_python=in_python) if turn.format == "gemma" else _FORMATS[turn.format](turn, marks)]
    for place, (name, schema) in enumerate(schemas):
        if in_python:
            rules += python_call(place, name, schema, schema_options)
        if turn.format != "pythonic":
            rules.append(f"name_{place}: {json.dumps(json.dumps(name))}")
            rules.append(f"args_{place}: %json {json.dumps({**schema, 'x-guidance': schema_options})}")
    strict = frozenset(tool.name for tool in turn.tools if tool.strict)
    opening = OPENINGS[turn.format] if turn.choice == "auto" else ""
    return ToolGrammar("\n".join(rules) + "\n", schemas, strict, turn.answer, opening)


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


_LISTED, _NEW_LINE = '", "', r'"\n"'
_NO_TAG = r"PROSE: /(.|\n)*/ & ~/(.|\n)*<tool_call>(.|\n)*/"
_UNTIL_TAG = (
    r'until_call[lazy]: /(.|\n)*/ "<tool_call>"'  # ends where the tag first appears; the text of PROSE has none
)


def _hermes(turn: ToolCalls, _: Marks) -> str:
    call = '"<tool_call>" call_body'
    several = f'{call} ("\\n" {call})*' if turn.parallel else call
    mixed = "(until_call call_body)* PROSE" if turn.parallel else "PROSE | until_call call_body"
    return rf"""start: {_start(turn, "PROSE", several, mixed)}
{_NO_TAG}
{_UNTIL_TAG}
call_body: "\n" ({_one_of_the_calls(turn, "arguments")}) "\n</tool_call>" """


def _smollm2(turn: ToolCalls, _: Marks) -> str:
    """As hermes, but the tags are around a list, and there is one such list."""
    items = _items(turn, f"({_one_of_the_calls(turn, 'arguments')})", _LISTED)
    return rf"""start: {_start(turn, "PROSE", '"<tool_call>" call_body', "PROSE | until_call call_body")}
{_NO_TAG}
{_UNTIL_TAG}
call_body: "[" {items} "]</tool_call>" """


def _llama3_json(turn: ToolCalls, _: Marks) -> str:
    """A turn that begins with a brace is calls, and any other is text."""
    several = _items(turn, f"({_one_of_the_calls(turn, 'parameters')})", '"; "')
    return rf"""start: {_start(turn, "PROSE", several)}
PROSE: /([^ \t\r\n{{](.|\n)*)?/"""


def _gemma(turn: ToolCalls, *, in_python: bool) -> str:
    """As llama3_json; or a turn that begins with one of its fences is calls up to the end of it."""
    call = f"({_one_of_the_calls(turn, 'parameters')})"
    is_told_apart = turn.answer is not None and turn.choice == "auto"  # from an object that is the answer
    ways = [] if is_told_apart else [_items(turn, "json_call", '"; "')]
    ways += [
        rf'"```json\n" {_items(turn, "json_call", _NEW_LINE)} "\n```"',
        rf'"```json\n[" {_items(turn, "json_call", _LISTED)} "]\n```"',
    ]
    if in_python:
        calls = f"({' | '.join(f'call_{place}' for place, _ in enumerate(turn.tools))})"
        ways.append(rf'"```tool_code\n" {_items(turn, calls, _NEW_LINE)} "\n```"')
    return rf"""start: {_start(turn, "PROSE", f"({' | '.join(ways)})")}
json_call: {call}
PROSE: /([^ \t\r\n{{](.|\n)*)?/ & ~/```(json|tool_code)(.|\n)*/"""


def _mistral(turn: ToolCalls, marks: Marks) -> str:
    mark = f"{_token(CALLS, marks)} " if CALLS in marks else ""
    return _listed_turn(turn, f"({_one_of_the_calls(turn, 'arguments')})", mark)


def _mistral_args(turn: ToolCalls, marks: Marks) -> str:
    """Each call begins with a mark, and any text may come before the first."""
    begin, args = _token(CALLS, marks), _token(ARGS, marks)
    call_id = f"({_token(CALL_ID, marks)} /[A-Za-z0-9]{{9}}/)? " if CALL_ID in marks else ""
    calls = " | ".join(f"{json.dumps(tool.name)} {call_id}{args} args_{place}" for place, tool in enumerate(turn.tools))
    several = _items(turn, f"{begin} ({calls})", "")
    prose = r"PROSE: /(.|\n)*/ & ~/(.|\n)*\[TOOL_CALLS\](.|\n)*/"  # no call is written in letters where it has a token
    if CALLS in marks:
        return f"start: {_start(turn, 'PROSE', several, f'PROSE | PROSE {several}')}\n{prose}"
    more = f"({begin} call_body)*" if turn.parallel else ""
    return rf"""start: {_start(turn, "PROSE", several, f"PROSE | until_call call_body {more}")}
{prose}
until_call[lazy]: /(.|\n)*/ "[TOOL_CALLS]"
call_body: {calls}"""


def _pythonic(turn: ToolCalls, _: Marks) -> str:
    return _listed_turn(turn, f"({' | '.join(f'call_{place}' for place, _ in enumerate(turn.tools))})")


def _listed_turn(turn: ToolCalls, item: str, mark: str = "") -> str:
    """A turn that begins with a bracket is calls, and any other is text."""
    return rf"""start: {_start(turn, "PROSE", f'{mark}"[" {_items(turn, item, _LISTED)} "]"')}
PROSE: /([^ \t\r\n\[](.|\n)*)?/"""


def _token(mark: str, marks: Marks) -> str:
    """A control token if the model has it, and else its text."""
    return f"<[{marks[mark]}]>" if mark in marks else json.dumps(mark)


def _one_of_the_calls(turn: ToolCalls, key: str) -> str:
    options = [
        f'"{{\\"name\\": " name_{place} ", \\"{key}\\": " args_{place} "}}"' for place, _ in enumerate(turn.tools)
    ]
    return " | ".join(options)


def _items(turn: ToolCalls, item: str, between: str) -> str:
    return f"{item} ({between} {item})*" if turn.parallel else item


def _start(turn: ToolCalls, prose: str, calls: str, mixed: str | None = None) -> str:
    """The whole turn. `mixed` is what it may be where text and calls mix."""
    match turn.choice:
        case "none":
            return prose if turn.answer is None else "@answer"
        case "required":
            return calls
    return f"@answer | {calls}" if turn.answer is not None else mixed or f"{prose} | {calls}"


_FORMATS = {
    "hermes": _hermes,
    "smollm2": _smollm2,
    "llama3_json": _llama3_json,
    "mistral": _mistral,
    "mistral_args": _mistral_args,
    "pythonic": _pythonic,
}
