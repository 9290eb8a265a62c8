"""Writes the rules of one tool's call as Python: `weather(city="Paris", days=2)`. Never compiles any.

Called by tool_calls. Keyword arguments stand in the order of the schema's properties; values are written as JSON, but
for what is true, false or null by itself, which is written as Python has it.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

_HELD = frozenset((
    "type", "properties", "required", "additionalProperties", "$defs", "definitions", "title", "description", "$schema",
))  # fmt: skip
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def not_of_python(schema: Mapping[str, Any]) -> str | None:
    """The keyword, or the property, by which a schema is more than named values; None if it is not."""
    properties, required = schema.get("properties", {}), schema.get("required", ())
    named = [f"properties/{name}" for name in properties if not _IDENTIFIER.fullmatch(name)]
    missing = [f"required: {name}" for name in required if name not in properties]
    closed = [] if schema.get("additionalProperties") in (None, True, False) else ["additionalProperties"]
    return next(iter([*sorted(schema.keys() - _HELD), *named, *missing, *closed]), None)


def only_names(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with all that Python's calls can be held to of one that is not strict: the names of its properties."""
    properties = schema.get("properties", {})
    known = [name for name in properties if _IDENTIFIER.fullmatch(name)] if isinstance(properties, Mapping) else []
    return {"type": "object", "properties": {name: {} for name in known}}


def python_call(place: int, name: str, schema: Mapping[str, Any], schema_options: Mapping[str, object]) -> list[str]:
    """The rule `call_PLACE` and those that it uses."""
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    required = schema.get("required", ())
    rules: list[str] = []
    for number, (key, value) in enumerate(schema.get("properties", {}).items()):
        rules.append(f"value_{place}_{number}: {_value(value, definitions, schema_options)}")
        rules.append(f"arg_{place}_{number}: {json.dumps(f'{key}=')} value_{place}_{number}")
    rules += _arguments(place, [key in required for key in schema.get("properties", {})])
    return [*rules, f'call_{place}: {json.dumps(f"{name}(")} first_{place}_0 ")"']


def _arguments(place: int, is_required: list[bool]) -> list[str]:
    """`first` rules have no argument before them, `rest` rules have."""
    rules: list[str] = []
    size = len(is_required)
    for number, must in enumerate(is_required):
        here = f"arg_{place}_{number} rest_{place}_{number + 1}"
        rules.append(f"first_{place}_{number}: {here}" + ("" if must else f" | first_{place}_{number + 1}"))
        rules.append(f'rest_{place}_{number}: ", " {here}' + ("" if must else f" | rest_{place}_{number + 1}"))
    return [*rules, f'first_{place}_{size}: ""', f'rest_{place}_{size}: ""']


def _value(schema: Any, definitions: Mapping[str, object], schema_options: Mapping[str, object]) -> str:  # noqa: ANN401 (JSON)
    if isinstance(schema, dict) and schema.get("type") == "boolean" and not {"enum", "const"} & schema.keys():
        return '"True" | "False"'
    if isinstance(schema, dict) and schema.get("type") == "null":
        return '"None"'
    inner = schema if isinstance(schema, dict) else {}
    return f"%json {json.dumps({**definitions, **inner, 'x-guidance': schema_options})}"
