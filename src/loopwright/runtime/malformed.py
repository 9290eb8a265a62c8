"""Says what is wrong with a call that cannot be decoded: the field, its value and what it may be. Never decodes one.

Called by the host, once the decoder has refused a call.
"""

import json
import re
from typing import Any

import msgspec

from loopwright.core.errors import BadRequest

_MAX_SHOWN = 40  # characters of a value


def malformed(op: str, error: msgspec.DecodeError) -> BadRequest:
    """The error for a program. The decoder's says where and what was expected, but not what was there."""
    reason, _, path = str(error).rpartition(" - at `$")
    field = path.strip("`.")
    if not reason:
        return BadRequest(f"malformed call: {error}")
    value = _value_at(op, path)
    shown = "" if value is None else f"{value} is refused: "
    return BadRequest(f"malformed call: {field}: {shown}{reason}", field=field)


def _value_at(op: str, path: str) -> str | None:
    """The value there, if it is a plain one."""
    try:
        found: Any = json.loads(op)
    except (ValueError, RecursionError):  # the decoder stopped before what is no JSON
        return None
    for name, place in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and place.isdigit() and int(place) < len(found):
            found = found[int(place)]
        else:
            return None
    if isinstance(found, dict | list):
        return f"{len(found)} of them" if isinstance(found, list) else None
    text = json.dumps(found, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
