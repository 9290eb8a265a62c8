"""Reads request bodies: bounded, JSON only, checked against a type. Never acts on one. Called by the routes.

What is wrong with a body is a BadRequest that names the field, or an HTTPException where HTTP has a status of its own.
"""

import re
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

from loopwright.core.errors import BadRequest

MAX_BODY_BYTES = 16 << 20
MAX_NESTING = 200  # whoever walks through a body may recurse
MAX_NAMED = 200  # characters of a name that a message repeats

BodyT = TypeVar("BodyT")

_AT = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_NAMED = re.compile(r"^Object (?P<problem>missing required|contains unknown) field `(?P<name>[^`]*)`")
_PROBLEMS = {"missing required": "is required", "contains unknown": "is not a known field"}


async def read_body(request: Request, kind: type[BodyT]) -> BodyT:
    """The body as a `kind`. Raises BadRequest; HTTPException 413 (too large) and 415 (not JSON)."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HTTPException(415, f"the body is {media_type or 'of no stated type'}; send application/json")
    return parse_body(await _read_bounded(request), kind)


def parse_body(payload: bytes, kind: type[BodyT]) -> BodyT:
    """Raises BadRequest whose `field` is the place in the body: `messages[0].role`."""
    try:
        body = msgspec.json.decode(payload, type=kind)
    except msgspec.ValidationError as error:
        raise _bad_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if payload.count(b"{") + payload.count(b"[") > MAX_NESTING:
        for name, value in msgspec.json.decode(payload).items():
            _check_nesting(value, name[:MAX_NAMED])
    return body


def parse_object(text: str, field: str) -> dict[str, Any]:
    """A JSON object that stands as text at that field of a body. Raises BadRequest naming the field."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadRequest(f"{field}: is not JSON: {error}", field=field) from None
    if not isinstance(value, dict):
        raise BadRequest(f"{field}: is no JSON object", field=field)
    _check_nesting(value, field)
    return value


def convert_part(part: object, kind: type[BodyT], place: str = "") -> BodyT:
    """The same of a part of a body that was read as any JSON, and stands at that place."""
    try:
        return msgspec.convert(part, kind)
    except msgspec.ValidationError as error:
        raise _bad_field(str(error), place) from None


async def _read_bounded(request: Request) -> bytes:
    """The whole body; reading stops at the limit."""
    payload = bytearray()
    async for chunk in request.stream():
        payload += chunk
        if len(payload) > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body has more than {MAX_BODY_BYTES} bytes", {"Connection": "close"})
    return bytes(payload)


def _bad_field(problem: str, place: str = "") -> BadRequest:
    """msgspec's sentence, as a message that begins with the field's name."""
    found = _AT.search(problem)
    path = _joined(place, found["path"] if found else "")
    problem = _AT.sub("", problem)
    if named := _NAMED.match(problem):
        path = _joined(path, named["name"][:MAX_NAMED])
        problem = _PROBLEMS[named["problem"]]
    return BadRequest(f"{path}: {problem}" if path else problem, field=path)


def _check_nesting(value: object, field: str) -> None:
    """Raises BadRequest for a value in which lists and objects stand in each other too often."""
    level = [value]
    for _ in range(MAX_NESTING + 1):
        parts = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        if not parts:
            return
        level = [inner for part in parts for inner in part]
    message = f"{field}: lists and objects are nested more than {MAX_NESTING} deep"
    raise BadRequest(message, field=field)


def _joined(place: str, path: str) -> str:
    return f"{place}{path}" if not (place and path) or path.startswith("[") else f"{place}.{path}"
