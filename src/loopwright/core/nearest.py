"""Finds the name that somebody may have meant. Pure. Used for hints of errors."""

from collections.abc import Iterable
from difflib import get_close_matches

MAX_CHARS = 100  # of a name that is looked at: the search is quadratic
MAX_NAMES = 1000


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest of the names, or "" if none is near."""
    if len(name) > MAX_CHARS:
        return ""
    near = get_close_matches(name, [one for one, _ in zip(known, range(MAX_NAMES), strict=False)], n=3)
    return f"did you mean {' or '.join(near)}?" if near else ""
