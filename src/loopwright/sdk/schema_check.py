"""Checks JSON values against a JSON schema, of which it knows the common keywords. Never changes a value.

Used by tools, in programs and in the server. What a schema says in other words is left to who executes the tool;
`unknown_keywords` tells of it.
"""

from collections.abc import Iterator
from typing import Any

from loopwright.sdk.errors import BadRequest

MAX_DEPTH = 64
_ANNOTATIONS = frozenset(("title", "description", "default", "examples", "deprecated", "$schema", "$comment", "$id"))
_CHECKED = frozenset((
    "type", "enum", "const", "anyOf", "properties", "required", "additionalProperties", "items", "minimum", "maximum",
    "minLength", "maxLength", "minItems", "maxItems",
))  # fmt: skip


def check(value: Any, schema: Any, path: str) -> None:  # noqa: ANN401 (JSON)
    """Raises BadRequest, its field the `path` to what does not fit."""
    reason = next(_faults(value, schema, path, 0), None)
    if reason is not None:
        place, what = reason
        raise BadRequest(f"{place}: {what}", field=place)


def unknown_keywords(schema: Any) -> set[str]:  # noqa: ANN401 (JSON)
    """The keywords, anywhere in the schema, that `check` would pass over."""
    if not isinstance(schema, dict):
        return set()
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    inner += [schema.get("items"), schema.get("additionalProperties")]
    return (schema.keys() - _CHECKED - _ANNOTATIONS).union(*map(unknown_keywords, inner))


def _faults(value: Any, schema: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:  # noqa: ANN401 (JSON)
    """(place, what is wrong), the outermost first."""
    if schema is False:
        yield path, "there is no such parameter"
    if not isinstance(schema, dict):
        return
    if depth > MAX_DEPTH:
        yield path, f"nested deeper than {MAX_DEPTH}"
        return
    if (wanted := schema.get("type")) is not None and not _has_type(value, wanted):
        yield path, f"{_shown(value)} is no {wanted if isinstance(wanted, str) else ' or '.join(wanted)}"
        return
    yield from _no_choice(value, schema, path, depth)
    yield from _out_of_bounds(value, schema, path)
    if isinstance(value, dict):
        yield from _object_faults(value, schema, path, depth)
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _faults(item, schema.get("items"), f"{path}[{number}]", depth + 1)


def _no_choice(value: Any, schema: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:  # noqa: ANN401 (JSON)
    if "enum" in schema and not any(_is_equal(value, one) for one in schema["enum"]):
        yield path, f"{_shown(value)} is none of {', '.join(map(_shown, schema['enum']))}"
    if "const" in schema and not _is_equal(value, schema["const"]):
        yield path, f"{_shown(value)} is not {_shown(schema['const'])}"
    first = [next(_faults(value, one, path, depth + 1), None) for one in schema.get("anyOf", ())]
    if first and None not in first:
        yield path, "; or ".join(what if place == path else f"{place}: {what}" for place, what in filter(None, first))


def _object_faults(value: dict[str, Any], schema: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:  # noqa: ANN401 (JSON)
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name}", f"is missing; there are {', '.join(properties) or 'no'} parameters"
    for name, item in value.items():
        inner = properties.get(name, schema.get("additionalProperties"))
        yield from _faults(item, inner, f"{path}.{name}", depth + 1)


def _out_of_bounds(value: Any, schema: Any, path: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401 (JSON)
    size, unit, low, high = value, "", "minimum", "maximum"
    if isinstance(value, str):
        size, unit, low, high = len(value), " characters", "minLength", "maxLength"
    elif isinstance(value, list):
        size, unit, low, high = len(value), " items", "minItems", "maxItems"
    elif not _has_type(value, "number"):
        return
    if low in schema and size < schema[low]:
        yield path, f"{size}{unit}; at least {schema[low]} are wanted"
    if high in schema and size > schema[high]:
        yield path, f"{size}{unit}; at most {schema[high]} are allowed"


_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
    "array": list,
    "object": dict,
}


def _has_type(value: Any, wanted: str | list[str]) -> bool:  # noqa: ANN401 (JSON)
    """True is no number, as in JSON; 1.0 is no integer, which is stricter than JSON Schema."""
    names = [wanted] if isinstance(wanted, str) else wanted
    return any(
        isinstance(value, _TYPES.get(name, ())) and (not isinstance(value, bool) or name == "boolean") for name in names
    )


def _is_equal(one: Any, other: Any) -> bool:  # noqa: ANN401 (JSON)
    """As JSON Schema compares: 1 is 1.0, True is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_equal(one[name], other[name]) for name in one)
    return bool(one == other)


def _shown(value: Any) -> str:  # noqa: ANN401 (JSON)
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
