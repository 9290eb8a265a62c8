"""Says why a value is no JSON: where in it, what stands there, and what to write instead. Never encodes one.

Called once an encoder has refused a value, by the port for what a program sends and by `program` for what main returns.
"""

import inspect
import math
from typing import Any

from loopwright.sdk.argument_check import shown


def why_not_json(value: Any, error: Exception) -> str:  # noqa: ANN401 (anything)
    """In one text, of a value that `json.dumps` refused with that error."""
    found = json_fault(value, error)
    return str(error) if found is None else ": ".join(part for part in found if part)


def json_fault(value: Any, error: Exception) -> tuple[str, str] | None:  # noqa: ANN401 (anything)
    """Where and why; None of a value that is inside itself or nested too deeply, where the error says all there is."""
    is_endless = isinstance(error, RecursionError) or "Circular" in str(error)
    return None if is_endless else _fault(value, "")


def _fault(value: Any, path: str) -> tuple[str, str] | None:  # noqa: ANN401 (anything)
    if value is None or isinstance(value, str | int):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else (path, f"{value} is not a finite number")
    inside: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        if wrong := [key for key in value if not isinstance(key, str | int | float | None)]:
            return path, f"the key {shown(wrong[0])} is no text"
        inside = [(f"{path}.{key}".lstrip("."), one) for key, one in value.items()]
    elif isinstance(value, list | tuple):
        inside = [(f"{path}[{place}]", one) for place, one in enumerate(value)]
    else:
        return path, f"{shown(value)} is no JSON value{_instead(value)}"
    return next((found for name, one in inside if (found := _fault(one, name)) is not None), None)


def _instead(value: object) -> str:
    if inspect.isawaitable(value):
        return "; write await before it"
    if isinstance(value, set | frozenset | range) or hasattr(value, "tolist"):
        return "; a list of it is"
    return "; its .text is" if isinstance(getattr(value, "text", None), str) else ""
