"""Owns what of JSON Schema is enforced: every keyword is on a list here, or the schema is refused. Never compiles one.

Called with the source of a schema; gives llguidance a schema that says the same, less its annotations. It holds to
draft 2020-12 (draft 7 says the same in what is on the list). Refused is also what llguidance would accept and not hold
to the letter: numbers that do not fit a double, counts of keys that may come twice, and what can never be complete.
"""

import json
from collections.abc import Callable, Iterator
from math import floor, lcm
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

from loopwright.grammar.schema_values import (
    CALENDAR,
    MAX_DEPTH,
    VALUES,
    _pattern,
    check_name,
    escaped,
    exact,
    schema_error,
    shown,
)

if TYPE_CHECKING:
    from decimal import Decimal

Schema: TypeAlias = dict[str, object]
Schemas: TypeAlias = list[tuple[str, object]]
"""Every schema of a document with its pointer, inner ones first."""

MAX_TOTAL_DEPTH = (
    4000  # of the document and of all that is referred to: llguidance recurses as deep, on its thread's stack
)
MAX_MULTIPLE = 100_000_000  # from about 2^30 on, llguidance's arithmetic with multiples overflows
ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "discriminator")
)
"""Keywords that constrain nothing (discriminator is OpenAPI's)."""

_DIALECTS = ("https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema")


def read_schema(source: str) -> Schema:
    """The schema that llguidance is to enforce. Raises BadRequest."""
    if not source.strip():
        raise schema_error("", "there is no schema")
    try:
        value = json.loads(source, parse_float=exact, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except ValueError as error:
        raise schema_error("", f"not JSON: {error}") from None
    except RecursionError:
        raise schema_error("", f"nested deeper than {MAX_DEPTH}") from None
    return check_schema(value)


def check_schema(value: object) -> Schema:
    """The same for a schema that is decoded, its fractions with `exact`."""
    if not isinstance(value, dict):
        raise schema_error("", f"the schema is {shown(value)}; it must be an object", _ANY_HINT)
    checker = _Checker(value)
    checked = checker.check(value, "", 0)
    assert isinstance(checked, dict)
    if not checked.keys() - {"$defs", "definitions"}:
        raise schema_error("", "the schema is empty: it says nothing about the text", _ANY_HINT)
    checker.check_references()
    schemas = list(_inner_first(checked, ""))
    _check_total_depth(schemas, checker.targets)
    _check_exclusive_bounds(schemas)
    _check_multiples(schemas)
    _check_is_finite(schemas)
    return checked


def subschemas(schema: object, pointer: str) -> Iterator[tuple[str, object]]:
    """The schemas directly inside one, with their pointers."""
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        if keyword in ("items", "additionalProperties"):
            yield f"{pointer}/{keyword}", value
        elif keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
            yield from ((f"{pointer}/{keyword}/{place}", one) for place, one in enumerate(value))
        elif keyword in ("properties", "patternProperties", "$defs", "definitions"):
            yield from ((f"{pointer}/{keyword}/{escaped(name)}", one) for name, one in value.items())


class _Checker:
    """One schema on its way through the list."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._seen: set[str] = set()  # pointers of schemas
        self._references: list[tuple[str, str]] = []  # where, and to which pointer

    def check(self, schema: object, pointer: str, depth: int) -> object:
        """The schema as it is enforced."""
        if depth > MAX_DEPTH:
            raise schema_error(pointer, f"nested deeper than {MAX_DEPTH}")
        self._seen.add(pointer)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise schema_error(pointer, f"{shown(schema)} is not a schema")
        checked: Schema = {}
        for keyword, value in schema.items():
            at = f"{pointer}/{escaped(keyword)}"
            if keyword in ANNOTATIONS or (pointer == "" and self._is_identity(keyword, value, at)):
                continue
            if keyword == "prefixItems" and self._is_draft_7:
                raise schema_error(at, "draft 7 has no prefixItems, and its items hold for all", "leave $schema out")
            if keyword in _APPLICATORS:
                checked[keyword] = _APPLICATORS[keyword](self, value, at, depth)
            elif keyword in VALUES:
                checked[keyword] = VALUES[keyword](value, at)
            elif keyword == "$ref":
                checked[keyword] = self._reference(value, at)
            else:
                raise schema_error(at, f"the keyword {keyword!r} is not supported")
        _check_min_properties(checked, pointer)
        return _with_calendar(checked)

    @property
    def targets(self) -> set[str]:
        """The pointers that are referred to."""
        return {target for _, target in self._references}

    def check_references(self) -> None:
        """Raises for a reference that leads to no schema."""
        for at, target in self._references:
            if target not in self._seen:
                raise schema_error(at, f"{('#' + target)!r} is not a schema in this document")

    def one(self, value: object, at: str, depth: int) -> object:
        return self.check(value, at, depth + 1)

    def many(self, value: object, at: str, depth: int) -> object:
        if not isinstance(value, list) or not value:
            raise schema_error(at, f"{shown(value)} is not a list of at least one schema")
        return [self.check(one, f"{at}/{place}", depth + 1) for place, one in enumerate(value)]

    def named(self, value: object, at: str, depth: int) -> object:
        if not isinstance(value, dict):
            raise schema_error(at, f"{shown(value)} is not an object of schemas")
        for name in value:
            check_name(name, at)
        return {name: self.check(one, f"{at}/{escaped(name)}", depth + 1) for name, one in value.items()}

    def patterned(self, value: object, at: str, depth: int) -> object:
        if not isinstance(value, dict):
            raise schema_error(at, f"{shown(value)} is not an object of schemas")
        return {
            _pattern(pattern, f"{at}/{escaped(pattern)}"): self.check(one, f"{at}/{escaped(pattern)}", depth + 1)
            for pattern, one in value.items()
        }

    def _reference(self, value: object, at: str) -> str:
        if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
            raise schema_error(at, f"{shown(value)} is not a reference into this document", "start it with '#/'")
        self._references.append((at, unquote(value[1:])))
        return value

    @property
    def _is_draft_7(self) -> bool:
        return isinstance(self._root, dict) and str(self._root.get("$schema")).rstrip("#") == _DIALECTS[1]

    def _is_identity(self, keyword: str, value: object, at: str) -> bool:
        """Whether the keyword only says what this document is."""
        if keyword == "$schema" and (not isinstance(value, str) or value.rstrip("#") not in _DIALECTS):
            raise schema_error(at, f"{shown(value)} is not a known dialect", f"known are {' and '.join(_DIALECTS)}")
        return keyword in ("$schema", "$id")


_APPLICATORS: dict[str, Callable[[_Checker, object, str, int], object]] = {
    "items": _Checker.one,
    "additionalProperties": _Checker.one,
    "anyOf": _Checker.many,
    "oneOf": _Checker.many,
    "allOf": _Checker.many,
    "prefixItems": _Checker.many,
    "properties": _Checker.named,
    "$defs": _Checker.named,
    "definitions": _Checker.named,
    "patternProperties": _Checker.patterned,
}


ENFORCED = frozenset((*_APPLICATORS, *VALUES, "$ref"))
"""Every keyword that is enforced."""


def _with_calendar(checked: Schema) -> Schema:
    """The schema with its dates and times as patterns."""
    if (pattern := CALENDAR.get(str(checked.get("format")))) is None:
        return checked
    rest = {keyword: value for keyword, value in checked.items() if keyword != "format"}
    if "pattern" not in rest:
        return {**rest, "pattern": pattern}
    earlier = rest.get("allOf", [])
    assert isinstance(earlier, list)
    return {**rest, "allOf": [*earlier, {"pattern": pattern}]}


def _check_min_properties(checked: Schema, pointer: str) -> None:
    # A key that the schema does not list may come twice, and then counts once.
    least, required = checked.get("minProperties", 0), checked.get("required", [])
    assert isinstance(least, int)
    assert isinstance(required, list)
    are_listed = checked.get("additionalProperties", True) is False and not checked.get("patternProperties")
    if least > max(1, len(required)) and not are_listed:
        raise schema_error(
            f"{pointer}/minProperties",
            f"{least} different keys cannot be enforced beyond the required ones",
            "list the keys in required",
        )


def _check_total_depth(schemas: Schemas, targets: set[str]) -> None:
    """Raises if a chain of references, each followed once, could lead too deep."""
    heights: dict[str, int] = {}
    for at, one in schemas:
        heights[at] = 1 + max((heights[inner] for inner, _ in subschemas(one, at)), default=0)
    total = heights[""] + sum(heights.get(target, 0) for target in targets)
    if total > MAX_TOTAL_DEPTH:
        raise schema_error("", f"the schemas that are referred to are {total} deep together; at most {MAX_TOTAL_DEPTH}")


def _check_exclusive_bounds(schemas: Schemas) -> None:
    """Raises where llguidance could let a number equal an exclusive bound: a whole one, with another farther from 0
    that lies less than 1 away. Schemas are laid over each other, so the two may stand anywhere."""
    numbers = [(at, one) for at, one in schemas if isinstance(one, dict)]
    for keyword, sign, others in (
        ("exclusiveMinimum", 1, ("maximum", "exclusiveMaximum")),
        ("exclusiveMaximum", -1, ("minimum", "exclusiveMinimum")),
    ):
        parts = {floor(sign * one[other]) for _, one in numbers for other in others
                 if other in one and sign * one[other] % 1}  # fmt: skip
        for at, one in numbers:
            if keyword in one and sign * one[keyword] >= 0 and sign * one[keyword] in parts:
                raise schema_error(
                    f"{at}/{keyword}",
                    f"{one[keyword]} cannot be enforced with another bound less than 1 away",
                    "take a bound that the number may equal",
                )


def _check_multiples(schemas: Schemas) -> None:
    """Raises for a multipleOf that llguidance cannot compute with, by itself or laid over others."""
    objects = [(at, one) for at, one in schemas if isinstance(one, dict)]
    found = [(f"{at}/multipleOf", exact(repr(one["multipleOf"]))) for at, one in objects if "multipleOf" in one]
    are_laid_over = any(
        "allOf" in one or len(one.keys() & {"anyOf", "oneOf", "$ref", "multipleOf"}) > 1 for _, one in objects
    )
    earlier: list[Decimal] = []
    for at, number in found:
        earlier = [*earlier, number] if are_laid_over else [number]
        places = max(0, *(-int(one.normalize().as_tuple().exponent) for one in earlier))
        if lcm(*(int(one.scaleb(places)) for one in earlier)) * 10**places > MAX_MULTIPLE:
            raise schema_error(at, f"multiples of {number} have too many digits to be enforced exactly")


_MAX_PASSES = 64


def _check_is_finite(schemas: Schemas) -> None:
    """Raises for a schema that requires itself, so that no text is ever complete: a least fixed point over all
    schemas, from those that need nothing else. Inner ones come first, so that a pass is needed for references only."""
    waiting, finite = schemas, set[str]()
    for _ in range(_MAX_PASSES):
        num_before = len(finite)
        for at, one in waiting:
            if _is_finite(one, at, finite):
                finite.add(at)
        if "" in finite:
            return
        waiting = [(at, one) for at, one in waiting if at not in finite]
        if len(finite) == num_before:
            raise schema_error("", "no text is ever complete: the schema requires itself")
    raise schema_error("", f"references lead on to references more than {_MAX_PASSES} times")


def _inner_first(schema: object, pointer: str) -> Iterator[tuple[str, object]]:
    for at, one in subschemas(schema, pointer):
        yield from _inner_first(one, at)
    yield pointer, schema


def _is_finite(schema: object, pointer: str, finite: set[str]) -> bool:
    if not isinstance(schema, dict):
        return True
    if "$ref" in schema and unquote(schema["$ref"][1:]) not in finite:
        return False
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema and not any(f"{pointer}/{keyword}/{n}" in finite for n in range(len(schema[keyword]))):
            return False
    if not all(f"{pointer}/allOf/{place}" in finite for place in range(len(schema.get("allOf", ())))):
        return False
    kind = schema.get("type")
    if kind in ("object", ["object"]):
        names = [name for name in schema.get("required", ()) if name in schema.get("properties", {})]
        return all(f"{pointer}/properties/{escaped(name)}" in finite for name in names)
    if kind in ("array", ["array"]):
        least, first = schema.get("minItems", 0), schema.get("prefixItems", [])
        needed = [f"{pointer}/prefixItems/{place}" for place in range(min(least, len(first)))]
        if least > len(first) and "items" in schema:
            needed.append(f"{pointer}/items")
        return all(one in finite for one in needed)
    return True


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    named: dict[str, object] = {}
    for name, value in pairs:
        if name in named:
            raise ValueError(f"the name {name!r} comes twice in one object")
        named[name] = value
    return named


_ANY_HINT = 'for any JSON object take the kind "json_object"'
