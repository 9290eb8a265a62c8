"""Owns what is known of the KV in one page: which tokens at which positions, after what. Never takes a block.

Kept on each page, written when a call's row or the call is over. Only what follows from tokens and positions alone is
known: KV from hidden states, under a mask, shifted or copied into the middle of a page is opaque, and so is all behind
it.
"""

from collections.abc import Sequence
from typing import TypeAlias

from loopwright.core.ids import BlockId

PageKey: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""A full page's token ids and their positions."""

CacheMark: TypeAlias = tuple[BlockId, int]
"""Where the prefix cache has something: a block, and the number under which it came there."""


class Prefix:
    """Full pages from the beginning of a context on: the last of them, and those before it. Compared by identity.

    The root, of no page, says for whom: nobody gets what was computed for another tenant."""

    __slots__ = ("key", "mark", "num_pages", "parent", "tenant")

    def __init__(self, tenant: str, parent: "Prefix | None" = None, key: PageKey = ((), ())) -> None:
        self.tenant, self.parent, self.key = tenant, parent, key
        self.num_pages: int = 0 if parent is None else parent.num_pages + 1
        self.mark: CacheMark | None = None  # where the cache had it when it was last kept there

    def child(self, tokens: Sequence[int], positions: Sequence[int]) -> "Prefix":
        """This prefix and one page more."""
        return Prefix(self.tenant, self, (tuple(tokens), tuple(positions)))

    def keys(self) -> list[PageKey]:
        """Of all pages, in order."""
        keys: list[PageKey] = []
        one = self
        while one.parent is not None:
            keys.append(one.key)
            one = one.parent
        return keys[::-1]


class Root(Prefix):
    """What one run's pages begin with."""

    __slots__ = ("num_lost",)

    def __init__(self, tenant: str) -> None:
        super().__init__(tenant)
        self.num_lost = 0  # full pages of the run of which something was forgotten


class Line:
    """Pages, compared by identity, of which each held what comes after those before it, when `num_lost` of the root was
    this. So that is so as long as the root's number has not changed."""

    __slots__ = ("num_lost", "pages")

    def __init__(self, num_lost: int) -> None:
        self.num_lost = num_lost
        self.pages: list[object] = []


class PageContent:
    """The known tokens of one page, from its offset 0 on; each saw all of `before` and those in front of it."""

    __slots__ = ("before", "full", "line", "positions", "tokens")

    def __init__(self, before: Prefix, tokens: Sequence[int] = (), positions: Sequence[int] = ()) -> None:
        self.before = before
        self.tokens, self.positions = tuple(tokens), tuple(positions)
        self.full: Prefix | None = None  # once every offset is known
        self.line: Line | None = None  # in which the page was last found, if it is full

    def extend(self, tokens: Sequence[int], positions: Sequence[int], block_size: int) -> None:
        """Adds tokens behind those that are known."""
        self.tokens += tuple(tokens)
        self.positions += tuple(positions)
        assert len(self.tokens) <= block_size, f"{len(self.tokens)} tokens in a page of {block_size}"
        if len(self.tokens) == block_size:
            self.full = self.before.child(self.tokens, self.positions)

    def cut(self, offset: int) -> None:
        """Forgets what stands at `offset` and behind it."""
        if offset < len(self.tokens):
            self.tokens, self.positions = self.tokens[:offset], self.positions[:offset]
            self.full = None
