"""Owns how pages lose their blocks and get them back: what is known of them is run through the model again.

Called by the resource manager. Never decides whose pages are dropped, nor when the rows of a restoration run.

A page without a block that has been written is a dropped one. Only what follows from tokens and positions can be
dropped, and only while its run also holds, dropped or not, all pages that came before: so a run never needs more blocks
to go on than it had.
"""

from collections.abc import Collection, Iterable, Sequence

from loopwright.control.block_pool import BlockPool
from loopwright.control.feeds import Feed
from loopwright.control.name_table import NameTable
from loopwright.control.ordering import OpenCall, Page, is_dropped
from loopwright.control.page_content import PageContent, Prefix
from loopwright.core.ids import BlockId, PageName


class Restoration(Feed):
    """Tokens of dropped pages on their way into KV again, before the call that needs the pages goes on."""

    __slots__ = ("blocks", "prefix", "tail")

    def __init__(self, content: PageContent, blocks: Sequence[BlockId], num_found: int, block_size: int) -> None:
        """`blocks` are those of all pages up to the content's own; the first `num_found` need not be computed."""
        self.prefix, self.tail = _pages_of(content)
        keys = self.prefix.keys()[num_found:]
        super().__init__(
            kv_len=num_found * block_size,
            tokens=[*(token for key in keys for token in key[0]), *(self.tail.tokens if self.tail else ())],
            positions=[*(place for key in keys for place in key[1]), *(self.tail.positions if self.tail else ())],
        )
        self.blocks = list(blocks)  # one use of each belongs to the restoration
        self.block_ids.extend(blocks)


class Dropping:
    """Over the pool's blocks."""

    def __init__(self, blocks: BlockPool, block_size: int) -> None:
        self._blocks, self._size = blocks, block_size

    def droppable(self, pages: Collection[Page]) -> list[Page]:
        """Of all pages of a run, those with a block that they can do without."""
        held: set[Prefix] = set()
        found: list[Page] = []
        known = [page for page in pages if page.content is not None]
        for page in sorted(known, key=lambda page: page.content.before.num_pages if page.content else 0):
            content = page.content
            assert content is not None
            if content.before.parent is None or content.before in held:
                if content.full is not None:
                    held.add(content.full)
                # A lent block stays where it is: dropping the page would free nothing.
                is_free = page.lent is None or page.lent.num_holders == 1
                if page.id is not None and is_free and 0 < page.written == (1 << len(content.tokens)) - 1:
                    found.append(page)
        return found + [page for page in pages if page.id is not None and not page.written]

    def drop(self, table: NameTable[PageName, BlockId], pages: Iterable[Page]) -> None:
        """Takes the pages' blocks. Full ones stay in the cache for as long as nobody needs them."""
        table.unback(pages)

    def begin(self, call: OpenCall, page: Page, num_more: int) -> bool:
        """Starts to restore a dropped page and all before it. False if there are too few blocks for that and for
        `num_more` pages."""
        assert page.content is not None
        prefix, tail = _pages_of(page.content)
        found = self._blocks.cache.match(prefix.tenant, prefix.keys())
        num_fresh = prefix.num_pages - len(found) + (tail is not None)
        self._blocks.share(found)
        if num_fresh + num_more > self._blocks.num_free:
            self._give(found)
            return False
        blocks = found + [self._blocks.take() for _ in range(num_fresh)]
        call.restoring = Restoration(page.content, blocks, len(found), self._size)
        return True

    def finish(self, call: OpenCall, table: NameTable[PageName, BlockId]) -> None:
        """Gives the call's dropped pages the blocks that hold them again."""
        restored = call.restoring
        assert isinstance(restored, Restoration)
        num_pages = restored.prefix.num_pages
        if num_pages:
            self._blocks.keep(restored.prefix, restored.blocks[:num_pages])
        block_of = dict(zip(_chain(restored.prefix), restored.blocks, strict=False))
        for page in filter(is_dropped, call.pages):
            assert page.content is not None
            if page.content.full in block_of:
                block = block_of[page.content.full]
            elif page.content is restored.tail:
                block = restored.blocks[-1]
            else:
                continue
            self._blocks.share([block])
            table.back_with([page], [block])
        self.abandon(call)

    def abandon(self, call: OpenCall) -> None:
        """Ends a restoration, finished or not."""
        if isinstance(call.restoring, Restoration):
            self._give(call.restoring.blocks)
            call.restoring = None

    def _give(self, blocks: Iterable[BlockId]) -> None:
        for block in blocks:
            self._blocks.give(block)


def _pages_of(content: PageContent) -> tuple[Prefix, PageContent | None]:
    """The full pages up to the content's own, and the content if that is not one of them."""
    return (content.before, content) if content.full is None else (content.full, None)


def _chain(prefix: Prefix) -> list[Prefix]:
    chain: list[Prefix] = []
    while prefix.parent is not None:
        chain.append(prefix)
        prefix = prefix.parent
    return chain[::-1]
