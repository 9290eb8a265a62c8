"""What a call of one token has that the one before it in its session had not: so little has to be said of it. Never
decides whether it may run.

A program that chooses each token makes one such call after the other. Both sides of a boundary remember the last text
of a session; who says what is new, and who hears it, make the same call of it.
"""

from typing import NamedTuple, Protocol, runtime_checkable

from msgspec.structs import replace

from loopwright.core.calls import ForwardText
from loopwright.core.ids import CallId, PageName

_END = 1 << 31


class Next(NamedTuple):
    """One token more. `has_grown`: the page list has one more, which is the one that the last call named to grow into.
    `grow_from` is where this call may grow."""

    token: int
    position: int
    grow_from: PageName | None
    has_grown: bool


class LastText:
    """The last ForwardText of a session, however its parts came. Changed as calls go on from it."""

    __slots__ = ("_grow_from", "_kv_len", "_pages", "_text")

    def __init__(self, text: ForwardText) -> None:
        self._text, self._pages, self._grow_from = text, text.pages, text.grow_from
        self._kv_len = text.kv_len + len(text.tokens)

    def next_of(self, text: ForwardText) -> Next | None:
        """What is new in a text that goes on from here, and is the last one from now on. None, and nothing has changed,
        if it differs in more."""
        last, pages = self._text, text.pages
        if (
            text.kv_len != self._kv_len
            or len(text.tokens) != 1
            or len(text.positions) != 1
            or text.queue != last.queue
            or text.distributions != last.distributions
            or not (is_plain(text) and is_plain(last))
        ):
            return None
        has_grown = len(pages) > len(self._pages)
        if pages != ((*self._pages, self._grow_from) if has_grown else self._pages):
            return None
        one = Next(text.tokens[0], text.positions[0], text.grow_from, has_grown)
        if not (0 <= one.token < _END and 0 <= one.position < _END and -_END <= (one.grow_from or 0) < _END):
            return None  # no number that could be sent; what is wrong with it is said of the whole call
        self.go_on(one)
        return one

    def text_of(self, one: Next) -> ForwardText:
        """The whole call, of which `one` says what is new; the last one stays."""
        return replace(
            self._text, pages=self._pages_of(one), grow_from=one.grow_from, kv_len=self._kv_len,
            tokens=(one.token,), positions=(one.position,),
        )  # fmt: skip

    def go_on(self, one: Next) -> None:
        """That call is the last one from now on."""
        if one.has_grown:
            self._pages = self._pages_of(one)
        self._grow_from = one.grow_from
        self._kv_len += 1

    def _pages_of(self, one: Next) -> tuple[PageName, ...]:
        if not one.has_grown or self._grow_from is None:
            return self._pages
        return (*self._pages, self._grow_from)


def is_plain(text: ForwardText) -> bool:
    """Whether the call asks for distributions of its tokens, and nothing else that has to be looked at each time."""
    return text.sampling is None and text.mask is None and text.held is None and not text.num_drafts


@runtime_checkable
class GoesOn(Protocol):
    """A session that may hear what is new in a call."""

    def go_on(self, call_id: CallId, one: Next) -> bool:
        """As `submit`, of a call that goes on from the one before it, which was a ForwardText that `is_plain`. False:
        nothing was done, and the whole call is wanted."""
        ...
