"""Reads request bodies: bounded, JSON only, checked against a type. Never acts on one. Called by the routes.

What is wrong with a body is a BadRequest that names the field, or an HTTPException where HTTP has a status of its own.
No body holds the event loop up: `shape` looks at a large one piece by piece before anything is made of it.
"""

import asyncio
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec import inspect
from starlette.exceptions import HTTPException
from starlette.requests import Request

from loopwright.core.errors import BadRequest
from loopwright.core.nearest import did_you_mean
from loopwright.core.no_collecting import no_collecting
from loopwright.server.json_shape import Shape

MAX_BODY_BYTES = 4 << 20
"""Unless the server is told another limit. What is done at once with a text of this size takes 10 to 20 ms."""

MAX_VALUES = 1 << 18
"""Values of a body, names of fields not counted: twice as many as the largest contexts have tokens."""

LARGE_BYTES = 64 << 10
"""What is done in Python with a larger body is done on a thread: the loop has its turns meanwhile."""

MAX_NESTING = 200  # whoever walks through a body may recurse
MAX_NAMED = 200  # characters of a name that a message repeats

BodyT = TypeVar("BodyT")
ResultT = TypeVar("ResultT")

_AT = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_NAMED = re.compile(r"^Object (?P<problem>missing required|contains unknown) field `(?P<name>[^`]*)`")
_STEP = re.compile(r"([^.\[\]]+)(?![^\[]*\])|\[[^\]]*\]")  # a field's name, or "" for a place in a list
_PROBLEMS = {"missing required": "is required", "contains unknown": "is not a known field"}


async def read_body(request: Request, kind: type[BodyT]) -> BodyT:
    """The body as a `kind`. Raises BadRequest; HTTPException 413 (too large) and 415 (not JSON)."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HTTPException(415, f"the body is {media_type or 'of no stated type'}; send application/json")
    payload = await _read_bounded(request, request.app.state.max_body_bytes)
    if Shape.may_exceed(payload, MAX_VALUES, MAX_NESTING):
        await check_shape(payload)
    request.state.num_body_bytes = len(payload)
    return parse_body(payload, kind)


async def off_loop(request: Request, work: Callable[[], ResultT]) -> ResultT:
    """What `work` makes of a body that was read, without holding others up if it is a large one."""
    return work() if request.state.num_body_bytes <= LARGE_BYTES else await asyncio.to_thread(work)


def parse_body(payload: bytes, kind: type[BodyT]) -> BodyT:
    """Raises BadRequest whose `field` is the place in the body: `messages[0].role`."""
    with no_collecting():
        try:
            return msgspec.json.decode(payload, type=kind)
        except msgspec.ValidationError as error:
            raise _bad_field(str(error), kind=kind) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(f"the body is not JSON: {error}") from None


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
        raise _bad_field(str(error), place, kind) from None


async def check_shape(payload: bytes) -> None:
    """Raises BadRequest for a body that is nested too deeply, HTTPException 413 for one that has too many values."""
    shape = Shape()
    for piece in Shape.pieces(payload):
        shape.push(piece)
        if shape.num_values > MAX_VALUES:
            message = f"the body has more than {MAX_VALUES} values: elements of lists, and fields of objects"
            raise HTTPException(413, message)
        await asyncio.sleep(0)
    if shape.max_depth > MAX_NESTING + 1:  # the body is an object itself
        raise _too_deep(payload)


async def _read_bounded(request: Request, max_bytes: int) -> bytes:
    """The whole body; reading stops at the limit."""
    payload = bytearray()
    async for chunk in request.stream():
        payload += chunk
        if len(payload) > max_bytes:
            raise HTTPException(413, f"the body has more than {max_bytes} bytes", {"Connection": "close"})
    return bytes(payload)


def _bad_field(problem: str, place: str = "", kind: object = None) -> BadRequest:
    """msgspec's sentence, as a message that begins with the field's name. `kind` stands at the place."""
    hint = ""
    found = _AT.search(problem)
    inner = found["path"] if found else ""
    path = _joined(place, inner)
    problem = _AT.sub("", problem)
    if named := _NAMED.match(problem):
        path = _joined(path, named["name"][:MAX_NAMED])
        problem = _PROBLEMS[named["problem"]]
        if named["problem"] == "contains unknown":
            hint = did_you_mean(named["name"], _fields_at(kind, inner))
    return BadRequest(f"{path}: {problem}" if path else problem, hint=hint, field=path)


def _fields_at(kind: object, path: str) -> Iterable[str]:
    """What objects at that place of a `kind` may have; of several kinds of objects, all of them."""
    level = _alternatives([inspect.type_info(kind)])
    for name in _STEP.findall(path):
        level = _alternatives([inner for one in level for inner in _at(one, name)])
    return dict.fromkeys(
        field.encode_name for one in level if isinstance(one, inspect.StructType) for field in one.fields
    )


def _at(one: inspect.Type, name: str) -> Iterable[inspect.Type]:
    """What stands at a field, or in the place of a list or of an object with names of its own, whose `name` is ""."""
    match one:
        case inspect.StructType(fields=fields):
            return [field.type for field in fields if field.encode_name == name]
        case inspect.CollectionType(item_type=inner) | inspect.DictType(value_type=inner):
            return [inner]
    return []


def _alternatives(found: Iterable[inspect.Type]) -> list[inspect.Type]:
    return [inner for one in found for inner in (one.types if isinstance(one, inspect.UnionType) else [one])]


def _too_deep(payload: bytes) -> BadRequest:
    """What to say of a body in which lists and objects stand in each other too often: in which field."""
    fields: dict[str, msgspec.Raw] = {}
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        fields = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    field = next((name for name, raw in fields.items() if Shape.of(bytes(raw)).max_depth > MAX_NESTING), "")
    return _nested(field[:MAX_NAMED] or "the body")


def _check_nesting(value: object, field: str) -> None:
    """Raises BadRequest for a value in which lists and objects stand in each other too often."""
    level = [value]
    for _ in range(MAX_NESTING + 1):
        parts = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        if not parts:
            return
        level = [inner for part in parts for inner in part]
    raise _nested(field)


def _nested(field: str) -> BadRequest:
    return BadRequest(f"{field}: lists and objects are nested more than {MAX_NESTING} deep", field=field)


def _joined(place: str, path: str) -> str:
    return f"{place}{path}" if not (place and path) or path.startswith("[") else f"{place}.{path}"
