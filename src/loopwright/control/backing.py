"""Gives a call the blocks that its remaining inputs need, all or none, and has it write to none that others share.

Asked by the resource manager, which has seen to it that nothing that the call needs is dropped. Counts what the prefix
cache was asked for and had.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from loopwright.control.bases import Base
from loopwright.control.block_pool import BlockPool
from loopwright.control.feeds import Feed
from loopwright.control.growing import grow_by, names_to_grow
from loopwright.control.holdings import Holdings
from loopwright.control.ordering import OpenCall, Page
from loopwright.control.prefixes import Cached, Prefixes
from loopwright.core.batch import BlockCopy
from loopwright.core.calls import CopyPage, ShiftKv


@dataclass(frozen=True, slots=True)
class PrivateCopy:
    """A page that others share and a call is about to write gets a block of its own, once `copy` has run."""

    page: Page
    copy: BlockCopy


class Backing:
    """Puts blocks behind the pages of calls."""

    def __init__(self, blocks: BlockPool, prefixes: Prefixes, block_size: int, *, counts: bool) -> None:
        self.num_queried = self.num_found = 0  # tokens looked for in the prefix cache, and those that it had
        self._blocks, self._prefixes, self._block_size = blocks, prefixes, block_size
        self._counts = counts
        self._copies: list[PrivateCopy] = []

    def secure(self, call: OpenCall, holdings: Holdings) -> bool:
        """As `ResourceManager.secure`, once what was dropped is there."""
        if isinstance(call.work, Feed):
            return self._secure_feed(call, call.work, holdings)
        table = holdings.pages
        if not table.can_back(self.num_shared(call.page_writes) + table.num_unbacked(call.pages)):
            return False
        table.back(call.pages)
        if isinstance(call.call, CopyPage | ShiftKv):
            first = call.call.target_offset if isinstance(call.call, CopyPage) else call.call.start
            self._make_writable(holdings, call.page_writes, first % self._block_size, call.page_writes)
        return True

    def take_copies(self) -> list[PrivateCopy]:
        """What has to run before the call that was secured last."""
        taken, self._copies = self._copies, []
        return taken

    def num_shared(self, pages: Sequence[Page]) -> int:
        """How many of the pages have a block that somebody else may read."""
        return sum(page.id is not None and self._blocks.num_others(page.id) > 0 for page in pages)

    def _secure_feed(self, call: OpenCall, feed: Feed, holdings: Holdings) -> bool:
        table, root, size = holdings.pages, holdings.root, self._block_size
        num_held = len(feed.block_ids)
        num_needed = -(-(feed.kv_len + feed.num_left) // size)
        needed = call.pages[num_held:num_needed]
        names = names_to_grow(call, num_needed)
        if names:
            table.check_bindable(names, "grow_from")
        cached = Cached(root) if call.is_started else self._prefixes.find(call, feed, root)
        num_cached, num_before = len(cached.blocks), feed.kv_len // size
        first_written = max(num_held, num_before + num_cached)
        old = [page for page in call.pages[first_written:num_needed] if page.id is not None]
        num_fresh = len(names) + table.num_unbacked(needed) - num_cached
        self._blocks.share(cached.blocks)
        if not table.can_back(num_fresh + self.num_shared(old)):
            for block in cached.blocks:
                self._blocks.give(block)
            return False
        if self._counts and not call.is_started and feed.num_left > 1:
            self.num_queried += feed.num_left
            self.num_found += num_cached * size
        if names:
            needed += grow_by(call, table, names)
        if num_cached:
            pages = call.pages[num_before : num_before + num_cached]
            table.back_with(pages, cached.blocks)
            self._prefixes.bind(pages, cached, root)
            feed.skip(num_cached * size)
        table.back(needed)
        offset = max(feed.kv_len - first_written * size, 0)
        self._make_writable(holdings, call.pages[first_written:num_needed], offset, old)
        if isinstance(call.base, Base) and not num_held:
            feed.block_ids += call.base.block_ids(table)
            needed = needed[len(call.base) :]
        feed.block_ids += [page.id for page in needed if page.id is not None]
        return True

    def _make_writable(self, holdings: Holdings, pages: Sequence[Page], offset: int, old: Sequence[Page]) -> None:
        """Makes the pages' blocks their own, for from `offset` of the first page on they are going to be written. Only
        the `old` ones of them have a block that somebody else may know."""
        self._prefixes.cut(pages, offset, holdings.root)
        for page in old:
            assert page.id is not None
            if self._blocks.num_others(page.id) == 0:
                self._blocks.disown(page.id)
            else:
                shared, own = holdings.pages.replace(page)
                self._copies.append(PrivateCopy(page, BlockCopy(shared, own, 0, 0, self._block_size)))
