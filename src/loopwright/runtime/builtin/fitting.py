"""Lets go of a conversation's oldest messages until the prompt fits, for requests that ask for that. Used by `chat`.

What the system says stays, and so does the last message; a result never stays without the message that called for it.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

Message = dict[str, Any]


def room(max_context: int, max_tokens: int | None) -> int:
    """How many tokens a prompt may have, so that the answer fits behind it: a quarter of the context where nobody says
    how long that is, and never more than half."""
    return max_context - min(max_context // 4 if max_tokens is None else max_tokens, max_context // 2)


async def fitting(
    messages: Sequence[Message], max_tokens: int, tokens_of: Callable[[Sequence[Message]], Awaitable[list[int]]]
) -> list[Message]:
    """The messages without as many of the first as it takes, so that their prompt has `max_tokens` at the most; if none
    is short enough, the shortest there is. `tokens_of` is a prompt, which grows with its messages."""
    shorter = _shorter(messages)
    first, last = 0, len(shorter) - 1  # what is looked for is among these
    while first < last:
        middle = (first + last) // 2
        if len(await tokens_of(shorter[middle])) <= max_tokens:
            last = middle
        else:
            first = middle + 1
    return shorter[first]


def _shorter(messages: Sequence[Message]) -> list[list[Message]]:
    """The conversation whole, and then shorter and shorter."""
    places = [place for place, message in enumerate(messages) if message["role"] != "system"]
    starts = [place for place in places[1:] if messages[place]["role"] != "tool"]
    found = [list(messages)]
    for start in starts:
        kept = [one for place, one in enumerate(messages) if place >= start or one["role"] == "system"]
        found.append(kept)
    return found
