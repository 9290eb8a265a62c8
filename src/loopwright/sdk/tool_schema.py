"""Turns a function's typed signature and docstring into a JSON schema. Never calls the function. Used by `tool`.

The schema holds the keywords that `schema_check` checks, and no others.
"""

import inspect
import json
import re
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

JsonSchema = dict[str, Any]

_PLAIN: dict[Any, JsonSchema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    list: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
}
_HINT = "str, int, float, bool, None, Any, list[…], dict[str, …], Literal[…] and unions of these have one"
_SECTION = re.compile(r"(?m)^(Args|Arguments|Parameters|Returns|Yields|Raises|Examples?|Notes?):[ \t]*$")
_ENTRY = re.compile(r"^(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a function's source says about it as a tool."""

    name: str
    description: str
    parameters: JsonSchema


def declaration(function: Callable[..., Any]) -> Declaration:
    """Raises TypeError, naming tool and parameter, for a signature that no schema describes."""
    name = function.__name__
    description, notes = _documentation(inspect.getdoc(function) or "")
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"tool {name}: {error}") from None
    properties: JsonSchema = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        place = f"tool {name}: the parameter {parameter.name!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{place} has no name of its own; a tool is called with named arguments")
        if parameter.name not in hints:
            raise TypeError(f"{place} has no type: write {parameter.name}: str, for example")
        schema = _schema(hints[parameter.name], place)
        if (note := notes.get(parameter.name)) is not None:
            schema = {**schema, "description": note}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            schema = {**schema, "default": _json_value(parameter.default, place)}
        properties[parameter.name] = schema
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return Declaration(name, description, parameters)


def _schema(hint: Any, place: str) -> JsonSchema:  # noqa: ANN401 (a type)
    if (plain := _plain(hint)) is not None:
        return dict(plain)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        notes = [note for note in arguments[1:] if isinstance(note, str)]
        return {**_schema(arguments[0], place), **({"description": notes[0]} if notes else {})}
    if origin is Literal:
        return {"enum": [_json_value(value, place) for value in arguments]}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(one, place) for one in arguments]}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0], place)}
    if origin is dict and arguments[0] is str:
        return {"type": "object", "additionalProperties": _schema(arguments[1], place)}
    raise TypeError(f"{place} has the type {hint!r}, which has no JSON schema; {_HINT}")


def _plain(hint: Any) -> JsonSchema | None:  # noqa: ANN401 (a type)
    try:
        return _PLAIN.get(hint)
    except TypeError:  # not hashable: a Literal of lists
        return None


def _json_value(value: Any, place: str) -> Any:  # noqa: ANN401 (JSON)
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise TypeError(f"{place} names {value!r}, which is not a JSON value") from None
    return value


def _documentation(text: str) -> tuple[str, dict[str, str]]:
    """A docstring without its sections, and what its section of arguments says of each."""
    found = list(_SECTION.finditer(text))
    description = text[: found[0].start()] if found else text
    for number, section in enumerate(found):
        if section[1] in ("Args", "Arguments", "Parameters"):
            end = found[number + 1].start() if number + 1 < len(found) else len(text)
            return description.strip(), _entries(text[section.end() : end].splitlines())
    return description.strip(), {}


def _entries(lines: Sequence[str]) -> dict[str, str]:
    """`name: text` each, where what is indented deeper goes on."""
    entries: dict[str, str] = {}
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    name = ""
    for line in lines:
        is_new = len(line) - len(line.lstrip()) == min(indents, default=0)
        if is_new and (entry := _ENTRY.match(line.strip())) is not None:
            name = entry[1]
            entries[name] = entry[2]
        elif name and line.strip():
            entries[name] = f"{entries[name]} {line.strip()}".strip()
    return entries
