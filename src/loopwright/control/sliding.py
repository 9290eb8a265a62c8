"""Gives back the pages of a segment that have left its window for good. Never decides what a row sees: its view does.

Called by the resource manager after each row of a windowed segment. A page that leaves goes from the call as if it had
never been listed: places behind it move up, so rows stay short and the books hold only what there is.
"""

from collections.abc import Sequence

from loopwright.control.holdings import Holdings
from loopwright.control.ordering import OpenCall, Page
from loopwright.control.segments import SegmentFeed
from loopwright.core.calls import Generate
from loopwright.core.ids import PageName


def slide(call: OpenCall, feed: SegmentFeed, holdings: Holdings, block_size: int) -> None:
    """Unbinds the names of pages that no token to come can see, and lets go of the pages. One that has another name, or
    is held by another call or run, lives on."""
    assert isinstance(call.call, Generate)
    assert feed.view is not None
    gone = feed.view.out_of_window(feed.first_position_left, feed.kv_len)
    if not gone:
        return
    names = [*_given_names(call, feed.freed), *call.grown]
    pages, freed = [call.pages[place] for place in gone], [names[place] for place in gone]
    feed.leave_out(gone, freed, block_size)
    _forget(call, pages, freed)
    for page in pages:
        page.written = (1 << block_size) - 1  # it may have another name
    table = holdings.pages
    mine = [name for name, page in zip(freed, pages, strict=True) if table.names.get(name) is page]
    table.unbind(mine, "pages")
    holdings.pass_masks(mine)
    table.drop(pages)


def _given_names(call: OpenCall, freed: Sequence[PageName]) -> list[PageName]:
    """The names of the pages that the program listed, but those that have left."""
    assert isinstance(call.call, Generate)
    gone = set(freed)
    return [name for name in call.call.pages if name not in gone]


def _forget(call: OpenCall, pages: Sequence[Page], names: Sequence[PageName]) -> None:
    """Takes the pages out of what the call touches: who is issued from now on need not wait for it."""
    gone, freed = set(pages), set(names)
    call.pages = [page for page in call.pages if page not in gone]
    call.page_reads = [page for page in call.page_reads if page not in gone]
    call.page_writes = [page for page in call.page_writes if page not in gone]
    call.grown = [name for name in call.grown if name not in freed]
    for page in pages:
        page.readers.pop(call, None)
        if page.writer is call:
            page.writer = None
