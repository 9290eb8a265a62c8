"""Owns what may stand beside each keyword of JSON Schema that holds a value and no schema. Never knows which schema.

Called by json_schema, keyword by keyword. What cannot be enforced to the letter is refused, with its JSON pointer.
"""

import json
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from loopwright.core.errors import BadRequest
from loopwright.grammar.pattern import is_unwritable, search_pattern

MAX_DEPTH = 64
MAX_EXACT_INTEGER = 1 << 53  # llguidance computes with doubles
MAX_COUNT = 1_000_000  # of characters, items or properties


FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
"""Formats that are enforced, as an assertion: the specification leaves that open."""

_LEAP_YEAR = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    rf"(?:\d{{4}}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    rf"|02-(?:0[1-9]|1\d|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
CALENDAR = {
    name: search_pattern(f"^{pattern}$")
    for name, pattern in (("date", _DATE), ("time", _TIME), ("date-time", f"{_DATE}[Tt]{_TIME}"))
}
"""Patterns of RFC 3339 for the formats of which llguidance knows the spelling alone: a date is one that there is, and a
time has no leap second, as there are some on a few known days only."""


_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def schema_error(pointer: str, what: str, hint: str = "") -> BadRequest:
    """For a schema that cannot be enforced: `pointer` (RFC 6901) says where, in the message and in the field. No
    class of its own: an error has to keep its type over the wire."""
    return BadRequest(f"JSON schema at #{pointer}: {what}", field=f"grammar.source#{pointer}", hint=hint)


def exact(number: str) -> Decimal:
    """A fraction as it is written. Raises ValueError."""
    try:
        return Decimal(number)
    except InvalidOperation:
        raise ValueError(f"the exponent of {number[:60]} is too large") from None


def _type(value: object, at: str) -> object:
    for one in value if isinstance(value, list) and value else [value]:
        if one not in _TYPES:
            raise schema_error(at, f"{shown(one)} is not a type; types are {', '.join(_TYPES)}")
    return value


def _number(value: object, at: str) -> object:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise schema_error(at, f"{shown(value)} is not a number")
    if isinstance(value, int):
        if abs(value) > MAX_EXACT_INTEGER:
            raise schema_error(at, f"{value} is beyond ±2^53, where numbers can be enforced exactly")
        return value
    if Decimal(repr(float(value))) != value:
        raise schema_error(at, f"{value} has more digits than can be enforced exactly")
    return float(value)


def _multiple(value: object, at: str) -> object:
    number = _number(value, at)
    assert isinstance(number, int | float)
    if number <= 0:
        raise schema_error(at, f"{number} is not above 0")
    return number


def _count(value: Any, at: str) -> int:  # noqa: ANN401 (JSON)
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MAX_COUNT or value != int(value):
        raise schema_error(at, f"{shown(value)} is not a whole number from 0 to {MAX_COUNT}")
    return int(value)


def _pattern(value: object, at: str) -> str:
    if not isinstance(value, str):
        raise schema_error(at, f"{shown(value)} is not a string")
    try:
        return search_pattern(value)
    except BadRequest as error:
        raise schema_error(at, error.message) from None


def _format(value: object, at: str) -> object:
    if not isinstance(value, str) or value not in FORMATS:
        raise schema_error(at, f"the format {shown(value)} is not enforced; {', '.join(sorted(FORMATS))} are")
    return value


def _required(value: object, at: str) -> object:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value) or len({*value}) < len(value):
        raise schema_error(at, f"{shown(value)} is not a list of different strings")
    for name in value:
        check_name(name, at)
    return value


def _enum(value: object, at: str) -> object:
    if not isinstance(value, list) or not value:
        raise schema_error(at, f"{shown(value)} is not a list of at least one value")
    return [_constant(one, f"{at}/{place}") for place, one in enumerate(value)]


def _constant(value: object, at: str, depth: int = 0) -> object:
    if depth > MAX_DEPTH:
        raise schema_error(at, f"nested deeper than {MAX_DEPTH}")
    match value:
        case dict():
            for name in value:
                check_name(name, at)
            return {name: _constant(one, f"{at}/{escaped(name)}", depth + 1) for name, one in value.items()}
        case list():
            return [_constant(one, f"{at}/{place}", depth + 1) for place, one in enumerate(value)]
        case str() if not _is_unicode(value):
            raise schema_error(at, f"{shown(value)} is not valid Unicode")
        case str() if any(map(is_unwritable, value)):
            raise schema_error(at, f"{shown(value)} has control characters, which are never written")
        case bool() | None | str():
            return value
    return _number(value, at)


VALUES: dict[str, Callable[[object, str], object]] = {
    "type": _type,
    "enum": _enum,
    "const": _constant,
    "minimum": _number,
    "maximum": _number,
    "exclusiveMinimum": _number,
    "exclusiveMaximum": _number,
    "multipleOf": _multiple,
    "minLength": _count,
    "maxLength": _count,
    "pattern": _pattern,
    "format": _format,
    "minItems": _count,
    "maxItems": _count,
    "required": _required,
    "minProperties": _count,
    "maxProperties": _count,
}


def check_name(name: str, at: str) -> None:
    # JSON can write such characters in several ways, and a name must be known again however it is written.
    if any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in name):
        raise schema_error(at, f"the name {name!r} has control characters")
    if not _is_unicode(name):
        raise schema_error(at, f"the name {name!r} is not valid Unicode")


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str).encode(errors="backslashreplace").decode()
    return text if len(text) <= 60 else text[:57] + "..."
