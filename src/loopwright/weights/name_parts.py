"""What a model's name asks for beside the model: "NAME:layers=0-9,20-29" is NAME with those layers alone, and
"NAME:dtype=int8" keeps its weights in that way, whatever the server's others do. Never reads one.

Called by the store. Layers count from 0 and keep their order.
"""

import re
from dataclasses import dataclass
from typing import cast, get_args

from loopwright.core.errors import BadRequest
from loopwright.core.model_info import WeightDtype

_FORM = re.compile(r"(?P<name>.+):(?P<key>layers|dtype)=(?P<value>[^:]*)")
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


@dataclass(frozen=True, slots=True)
class NameParts:
    """A name taken apart: `name` without its parts, and `parts` as they stood behind it."""

    name: str
    parts: str = ""
    layers: tuple[int, ...] = ()  # () is all
    dtype: WeightDtype | None = None  # None is the server's


def split_name(name: str) -> NameParts:
    """The name's parts, each of which may be there once, in any order. Raises BadRequest."""
    values: dict[str, str] = {}
    rest = name
    while (found := _FORM.fullmatch(rest)) is not None:
        if found["key"] in values:
            raise BadRequest(f"{found['key']}: it is there twice in {name!r}", field="model")
        values[found["key"]] = found["value"]
        rest = found["name"]
    layers = _layers(values["layers"]) if "layers" in values else ()
    dtype = _dtype(values["dtype"]) if "dtype" in values else None
    return NameParts(rest, name.removeprefix(rest), layers, dtype)


def _layers(part: str) -> tuple[int, ...]:
    layers: list[int] = []
    for one in part.split(","):
        ends = _RANGE.fullmatch(one)
        if ends is None:
            raise _wrong(part, f"{one!r} is neither a layer nor a range of them")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last < first or (layers and first <= layers[-1]):
            raise _wrong(part, f"{one!r} does not go up")
        layers += range(first, last + 1)
    return tuple(layers)


def _dtype(part: str) -> WeightDtype:
    if part not in get_args(WeightDtype):
        known = ", ".join(get_args(WeightDtype))
        raise BadRequest(f"dtype: {part!r} is no way to keep weights", hint=f"there are {known}", field="model")
    return cast("WeightDtype", part)


def _wrong(part: str, why: str) -> BadRequest:
    return BadRequest(f"layers: {why} in {part!r}", hint="write layers=0-9,20-29", field="model")
