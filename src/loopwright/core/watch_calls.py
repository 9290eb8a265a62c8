"""How a program watches a segment, and the calls by which it lets it go on. Never executes one.

Part of the union in `calls`; control answers them, at once and beside every queue.
"""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from loopwright.core.call_base import Call

NonNegative = Annotated[int, Meta(ge=0)]

MAX_WINDOW = 4096


class Watch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program watches the segment: it runs at most `window` tokens ahead of what the program has acknowledged."""

    window: Annotated[int, Meta(ge=1, le=MAX_WINDOW)] = 8


class Acknowledge(Call, frozen=True, kw_only=True, tag="acknowledge"):
    """The program has seen the first `num_tokens` tokens of the watched segment behind `handle`, and they stand. Done;
    if the segment is over, nothing happens."""

    handle: NonNegative
    num_tokens: NonNegative


class Veto(Call, frozen=True, kw_only=True, tag="veto"):
    """Takes back token `index` of the watched segment behind `handle`, and all that came after it: the segment goes on
    from there, with that token banned in that place if `ban`. Those before it are acknowledged. Done; BadRequest for a
    token that is acknowledged or not there."""

    handle: NonNegative
    index: NonNegative
    ban: bool = True


WatchCall: TypeAlias = Acknowledge | Veto
