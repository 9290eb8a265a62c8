"""How a segment binds names for the pages that it needs as it goes on, and leaves those that it has no use for.

Called by the resource manager, which has seen to it that there are blocks. Never takes blocks of others.
"""

from collections.abc import Sequence
from typing import TypeAlias

from loopwright.control.feeds import Feed
from loopwright.control.holdings import Holdings
from loopwright.control.name_table import NameTable
from loopwright.control.ordering import OpenCall, Page
from loopwright.control.segments import SegmentFeed
from loopwright.core.calls import Generate
from loopwright.core.ids import BlockId, PageName

PageTable: TypeAlias = NameTable[PageName, BlockId]


def names_to_grow(call: OpenCall, num_pages: int) -> list[PageName]:
    """What the pages are called that the call lacks to have so many."""
    num_new = num_pages - len(call.pages)
    if num_new <= 0:
        return []
    first = _next_name(call)
    return [PageName(name) for name in range(first, first + num_new)]


def grow_by(call: OpenCall, table: PageTable, names: Sequence[PageName]) -> list[Page]:
    """Binds the names, which are free, to pages of the call's own, and returns those."""
    fresh = table.bind_new(names, "grow_from")
    table.hold(fresh)
    for page in fresh:
        page.writer = call
    call.grown += names
    call.pages += fresh
    call.page_writes += fresh
    return fresh


def grow(call: OpenCall, feed: Feed, table: PageTable) -> bool:
    """As `ResourceManager.grow`: one new page with its block, where nothing else has to be seen to."""
    pages = call.pages
    if table.num_held != table.num_backed or len(feed.block_ids) != len(pages):
        return False
    return _grow_to(call, feed, table, _next_name(call))


def grow_forward(call: OpenCall, feed: Feed, table: PageTable, name: PageName) -> bool:
    """Likewise for a forward that goes on, into a page of that name: what it wrote so far it only reads from now on."""
    written, call.page_writes = call.page_writes, []
    if not _grow_to(call, feed, table, name):
        call.page_writes = written
        return False
    for page in written:
        if page.writer is call:
            page.writer = None
        page.readers[call] = None
    call.page_reads = list(dict.fromkeys([*call.page_reads, *written]))
    return True


def _grow_to(call: OpenCall, feed: Feed, table: PageTable, name: PageName) -> bool:
    pages, page = call.pages, table.grow(name)
    if page is None:
        return False
    assert page.id is not None
    page.writer = call
    call.grown.append(name)
    pages.append(page)
    call.page_writes.append(page)
    feed.block_ids.append(page.id)
    return True


def keep_before(call: OpenCall, feed: Feed, holdings: Holdings, end: int, block_size: int) -> None:
    """Leaves a segment only the pages that it grew before KV place `end`."""
    table = holdings.pages
    num_surplus = min(len(call.pages) - -(-end // block_size), len(call.grown))
    if num_surplus <= 0:
        return
    pages, names = call.pages[-num_surplus:], call.grown[-num_surplus:]
    del call.pages[-num_surplus:], call.grown[-num_surplus:]
    feed.block_ids = feed.block_ids[: len(call.pages)]  # a row that waits for its turn has the longer list
    call.page_writes = [page for page in call.page_writes if page not in pages]
    for page in pages:
        if page.writer is call:
            page.writer = None
    mine = [name for name, page in zip(names, pages, strict=True) if table.names.get(name) is page]
    table.unbind(mine, "pages")
    holdings.pass_masks(mine)
    table.drop(pages)


def _next_name(call: OpenCall) -> PageName:
    """Behind the pages that the segment has grown, those included that have left its window."""
    assert isinstance(call.call, Generate), "other calls bind their pages at issue"
    assert isinstance(call.work, SegmentFeed)
    num_grown = len(call.pages) + len(call.work.freed) - len(call.call.pages)
    return PageName(call.call.grow_from + num_grown)
