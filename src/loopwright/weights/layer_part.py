"""Which layers a model's name asks for: "NAME:layers=0-9,20-29" is the model NAME with those alone. Never reads one.

Called by the store. Layers count from 0 and keep their order.
"""

import re

from loopwright.core.errors import BadRequest

_FORM = re.compile(r"(?P<name>.+):layers=(?P<layers>[^:]*)")
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


def split_layers(name: str) -> tuple[str, str, tuple[int, ...]]:
    """The name without that part, the part, and the layers; "" and () if there is none. Raises BadRequest."""
    found = _FORM.fullmatch(name)
    if found is None:
        return name, "", ()
    part = found["layers"]
    layers: list[int] = []
    for one in part.split(","):
        ends = _RANGE.fullmatch(one)
        if ends is None:
            raise _wrong(part, f"{one!r} is neither a layer nor a range of them")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last < first or (layers and first <= layers[-1]):
            raise _wrong(part, f"{one!r} does not go up")
        layers += range(first, last + 1)
    return found["name"], f":layers={part}", tuple(layers)


def _wrong(part: str, why: str) -> BadRequest:
    return BadRequest(f"layers: {why} in {part!r}", hint="write layers=0-9,20-29", field="model")
