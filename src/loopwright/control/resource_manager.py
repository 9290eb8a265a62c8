"""Owns the pools and every run's names of pages and embeds. Never decides who runs, and never delivers.

Called by the controller when calls are issued and are over, and by the scheduler, which asks it for the blocks that the
next row needs.
"""

from collections.abc import Collection, Iterable, Sequence

from loopwright.control.audit import check_books
from loopwright.control.backing import Backing
from loopwright.control.bases import Bases
from loopwright.control.block_pool import BlockPool
from loopwright.control.dropping import Dropping
from loopwright.control.exports import Exports
from loopwright.control.feeds import Feed
from loopwright.control.growing import grow, grow_forward, keep_before
from loopwright.control.holdings import Holdings
from loopwright.control.joining import range_bits, writes_of
from loopwright.control.moment import Moment
from loopwright.control.name_table import Kind, NameTable
from loopwright.control.ordering import OpenCall, Page, is_dropped
from loopwright.control.page_content import Root
from loopwright.control.pool import Pool
from loopwright.control.prefixes import Prefixes, note_texts
from loopwright.control.reads import check_kv
from loopwright.control.segments import SegmentFeed
from loopwright.control.sliding import slide
from loopwright.core.calls import (
    AllocateEmbeds,
    AllocatePages,
    CopyPage,
    EmbedText,
    ExportPages,
    Forward,
    FreeEmbeds,
    FreePages,
    ImportPages,
    MaskPage,
    SharePages,
    ShiftKv,
    UnexportPages,
)
from loopwright.core.control import ControlLimits
from loopwright.core.errors import LimitExceeded, OutOfPages, Overloaded
from loopwright.core.executor import EngineShape
from loopwright.core.ids import BlockId, EmbedName, PageName, RunId, SlotId, TenantId
from loopwright.core.results import Done, Imported

ImmediateCall = AllocatePages | FreePages | SharePages | MaskPage | AllocateEmbeds | FreeEmbeds
"""Calls that only change names: done when they are issued."""

_PAGE = Kind("page", over_limit=OutOfPages, none_free=OutOfPages)
_EMBED = Kind("embed", over_limit=LimitExceeded, none_free=Overloaded)


class ResourceManager:
    """Pages and embeds of all runs, over the engine's blocks and slots."""

    def __init__(self, shape: EngineShape, *, prefix_cache: bool = True, moment: Moment | None = None) -> None:
        self.shape = shape
        self.moment = moment or Moment()
        self.blocks = BlockPool(BlockId(number) for number in range(shape.num_blocks))
        self.slots = Pool(SlotId(number) for number in range(shape.num_slots))
        self._holdings: dict[RunId, Holdings] = {}
        self._prefixes = Prefixes(self.blocks, shape.block_size, binds=prefix_cache)
        self.exports = Exports(self.blocks, self._prefixes)
        self._dropping = Dropping(self.blocks, shape.block_size)
        self.backing = Backing(self.blocks, self._prefixes, shape.block_size, counts=prefix_cache)

    def open(self, run_id: RunId, limits: ControlLimits, tenant: str = "") -> Holdings:
        """Begins a run that holds nothing. Runs of one tenant share what they compute alike."""
        assert run_id not in self._holdings, f"run {run_id} is open"
        pages: NameTable[PageName, BlockId] = NameTable(_PAGE, self.blocks, limits.max_pages, self.moment)
        embeds: NameTable[EmbedName, SlotId] = NameTable(_EMBED, self.slots, limits.max_embeds, self.moment)
        self._holdings[run_id] = Holdings(pages, embeds, Root(tenant), Bases(pages, self.shape.block_size))
        return self._holdings[run_id]

    def holdings(self, run_id: RunId) -> Holdings:
        return self._holdings[run_id]

    def unbind_all(self, run_id: RunId) -> None:
        """Unbinds every name of the run; what running calls hold stays until they are over."""
        holdings = self._holdings[run_id]
        holdings.pages.unbind(tuple(holdings.pages.names), "pages")
        holdings.masked.clear()
        holdings.embeds.unbind(tuple(holdings.embeds.names), "embeds")

    def forget(self, run_id: RunId) -> None:
        """Ends a run that holds nothing."""
        holdings = self._holdings.pop(run_id)
        assert holdings.pages.num_held == holdings.embeds.num_held == 0, f"run {run_id} still holds something"

    def num_held_blocks(self) -> dict[RunId, int]:
        """The blocks that each run holds, of those that hold any; pages without a block do not count."""
        return {run_id: num for run_id, one in self._holdings.items() if (num := one.pages.num_backed)}

    def apply(self, run_id: RunId, call: ImmediateCall) -> None:
        """Changes the run's names. Raises, and changes nothing, if the call cannot be honoured."""
        holdings = self._holdings[run_id]
        match call:
            case AllocatePages():
                fresh = holdings.pages.bind_new(call.pages, "pages")
                if holdings.pages.can_back(len(fresh)):  # else who writes there waits for blocks
                    holdings.pages.back(fresh)
            case FreePages():
                holdings.pages.unbind(call.pages, "pages")
                holdings.pass_masks(call.pages)
            case SharePages():
                holdings.pages.share(call.sources, call.targets)
                holdings.pass_masks(call.sources, call.targets)
            case MaskPage():
                holdings.mask(call, self.shape.block_size)
            case AllocateEmbeds():
                holdings.embeds.bind_backed(call.embeds, "embeds")
            case FreeEmbeds():
                holdings.embeds.unbind(call.embeds, "embeds")

    def hold(self, call: OpenCall) -> None:
        """Keeps what the call touches until `release`."""
        holdings = self._holdings[call.run_id]
        holdings.pages.hold(call.marked_pages)
        if call.base is not None:
            holdings.pages.keep(call.base.pages)
        holdings.embeds.hold(call.embed_reads)
        holdings.embeds.hold(call.embed_writes)
        if isinstance(call.call, ExportPages | ImportPages):
            for page in call.pages:
                page.num_exchanging += 1

    def release(self, call: OpenCall) -> None:
        """Ends `hold`. A call that failed also loses the names it bound: its program finds the pages as they were."""
        holdings = self._holdings[call.run_id]
        if call.failure is not None and call.grown:
            grown = zip(call.grown, call.pages[-len(call.grown) :], strict=True)
            mine = [name for name, page in grown if holdings.pages.names.get(name) is page]
            holdings.pages.unbind(mine, "grow_from")
            holdings.pass_masks(mine)
        self._dropping.abandon(call)
        if isinstance(call.call, ExportPages | ImportPages):
            for page in call.pages:
                page.num_exchanging -= 1
        holdings.pages.drop(call.marked_pages)
        if call.base is not None:
            holdings.pages.end_keep(call.base.pages)
        holdings.embeds.drop(call.embed_reads)
        holdings.embeds.drop(call.embed_writes)

    def exchange(self, call: OpenCall, tenant: TenantId) -> Done | Imported:
        """Exports, unexports or imports, when the call's turn has come. Raises, and changes nothing, if it cannot."""
        holdings = self._holdings[call.run_id]
        match call.call:
            case ExportPages(positions=positions):
                check_kv(call.pages, len(positions), self.shape.block_size, "positions")
                self.exports.add(tenant, call.run_id, call.call, call.pages, holdings.root)
            case UnexportPages(name=name):
                self.exports.remove(tenant, name)
            case ImportPages():
                imported = self.exports.import_into(holdings.pages, tenant, call.call, call.pages, holdings.root)
                self._mark_kv(call.pages, 0, imported.kv_len)
                return imported
        return Done()

    def secure(self, call: OpenCall) -> bool:
        """Gives the call every block that its remaining inputs need, all or none. False if the pool has too few now.

        Inputs that the prefix cache has need not run. Pages that others share and the call writes are its own now; if
        that takes copies, which `backing.take_copies` returns, they run before the call does.
        A segment binds names as it needs pages: raises BadRequest if one is bound, OutOfPages beyond a limit."""
        if not self._restore(call):
            return False
        if call.restoring is not None:
            return True
        return self.backing.secure(call, self._holdings[call.run_id])

    def grow(self, call: OpenCall, feed: Feed) -> bool:
        """As `secure` for a segment that goes on into one new page, as each does once in so many tokens. False, and
        nothing has changed, if there is more to it, or no block."""
        return grow(call, feed, self._holdings[call.run_id].pages)

    def grow_all(self, calls: Sequence[OpenCall]) -> int:
        """As `grow` of segments, up to the first that cannot: how many have grown."""
        holdings = self._holdings
        for place, call in enumerate(calls):
            feed = call.work
            assert isinstance(feed, Feed)
            if not grow(call, feed, holdings[call.run_id].pages):
                return place
        return len(calls)

    def grow_forward(self, call: OpenCall, feed: Feed, name: PageName) -> bool:
        """Likewise, for a forward that goes on; `name` is its new page's."""
        return grow_forward(call, feed, self._holdings[call.run_id].pages, name)

    def shrink(self, call: OpenCall) -> None:
        """Takes back the pages that a segment grew and has no use for, now that it went back to an earlier token."""
        feed = call.work
        assert isinstance(feed, Feed)
        if feed.num_recorded > feed.kv_len:
            self._prefixes.take_back(call, feed, self._holdings[call.run_id].root)
            self._holdings[call.run_id].bases.forget()
        self._keep_before(call, feed, feed.kv_len + feed.num_left)

    def trim(self, call: OpenCall) -> None:
        """As `shrink`, for a segment that is over: a row ahead of its end may have had one. A prompt keeps its own."""
        feed = call.work
        assert isinstance(feed, SegmentFeed)
        self._keep_before(call, feed, max(feed.kv_len, feed.start_kv_len + feed.num_prompt))

    def slide(self, call: OpenCall) -> None:
        """Gives back what has left the window of a segment, if it has one, for good."""
        if isinstance(call.work, SegmentFeed) and call.work.view is not None:
            slide(call, call.work, self._holdings[call.run_id], self.shape.block_size)

    def finish_restoring(self, call: OpenCall) -> None:
        """What `secure` found dropped has run again."""
        self._dropping.finish(call, self._holdings[call.run_id].pages)

    def give_up_restoring(self, call: OpenCall) -> None:
        """What `secure` found dropped stays so, if anything was being restored."""
        self._dropping.abandon(call)

    def has_dropped(self, call: OpenCall) -> bool:
        """Whether pages that the call needs have to be restored before it runs."""
        return self._may_have_dropped(call) and any(map(is_dropped, self._needed_pages(call)))

    def has_room(self, calls: Iterable[OpenCall]) -> bool:
        """Whether there are blocks for all that the calls need to go on."""
        calls = list(calls)
        unbacked = {page for call in calls for page in self._needed_pages(call) if page.id is None}
        return len(unbacked) + sum(map(self._num_new, calls)) <= self.blocks.num_free

    def drop(self, run_id: RunId, open_calls: Collection[OpenCall]) -> bool:
        """Takes the blocks of a run, of which no call runs, as far as they can be computed again. Whether some are free
        now that were not."""
        assert not any(call.is_running for call in open_calls), f"run {run_id} runs"
        num_free, table = self.blocks.num_free, self._holdings[run_id].pages
        if table.num_backed == 0 and not any(call.restoring for call in open_calls):
            return False
        for call in open_calls:
            if call.restoring is not None:
                self._dropping.abandon(call)
            if isinstance(call.work, Feed):
                self._mark_kv(call.pages, call.work.start_kv_len, call.work.kv_len)
                self._record_up_to(call, call.work, call.work.kv_len)  # also what a veto may still take back
        pages = {*table.names.values(), *(page for call in open_calls for page in call.pages)}
        self._dropping.drop(table, self._dropping.droppable(pages))
        for call in open_calls:
            if isinstance(call.work, Feed):
                call.work.block_ids.clear()  # secured again when it goes on
        return self.blocks.num_free > num_free

    def can_join(self, call: OpenCall) -> bool:
        """Whether the call could run in a step with what it waits for: nothing has to run before that."""
        return not self.has_dropped(call) and not self.backing.num_shared(call.page_writes)

    def advance(self, call: OpenCall) -> int:
        """How many calls issued earlier a feed may overtake, for what the prefix cache has of it."""
        assert isinstance(call.work, Feed)
        return self._prefixes.advance(call, call.work, self._holdings[call.run_id].root)

    def record(self, call: OpenCall) -> None:
        """Notes what a feed wrote for good, so that others need not compute it again."""
        assert isinstance(call.work, Feed)
        self._record_up_to(call, call.work, call.work.kv_len if call.is_over else call.work.num_final)

    def mark_written(self, call: OpenCall) -> None:
        """Notes what a call that is over wrote. A feed that failed wrote what its finished chunks did."""
        if isinstance(call.work, Feed):
            self._mark_kv(call.pages, call.work.start_kv_len, call.work.kv_len)
            self.record(call)
        note_texts(call)
        if call.failure is not None:
            return
        if isinstance(call.call, CopyPage | EmbedText | Forward):
            for resource, bits in writes_of(call, self.shape.block_size):
                resource.written |= bits
        root = self._holdings[call.run_id].root
        if isinstance(call.call, CopyPage):
            source, target = call.pages
            self._prefixes.record_copy(call.call, source, target, root)
        elif isinstance(call.call, ShiftKv):
            self._prefixes.cut(call.page_writes, call.call.start % self.shape.block_size, root)

    def mark_token(self, call: OpenCall, feed: Feed) -> None:
        """As `mark_written`, for a forward that has gone on by one token."""
        place, offset = divmod(feed.kv_len - 1, self.shape.block_size)
        page = call.pages[place]
        page.written |= 1 << offset
        content = page.content
        if content is None or len(content.tokens) != offset or offset + 1 == self.shape.block_size:
            self.record(call)
            return
        token, position = feed.last_input()
        content.extend((token,), (position,), self.shape.block_size)
        feed.num_recorded = feed.kv_len

    def mark_lost(self, call: OpenCall) -> None:
        """Notes that what the call wrote is not to be read: it ran beside a call that it waited for, which failed."""
        for resource, bits in writes_of(call, self.shape.block_size):
            resource.written &= ~bits
        self._holdings[call.run_id].bases.forget()

    def mark_empty(self, call: OpenCall, page: Page) -> None:
        """Notes that a page of the call may have nothing any more."""
        page.written = 0
        self._holdings[call.run_id].bases.forget()

    def check_integrity(self, open_calls: Iterable[OpenCall]) -> None:
        """Asserts that counts equal the names and calls there are, and that the pools agree."""
        check_books(self._holdings, self.exports, self.blocks, self.slots, open_calls)

    def _restore(self, call: OpenCall) -> bool:
        """Begins to restore what the call needs and has lost, if anything. False if the pool has too few blocks now."""
        while call.restoring is None and self._may_have_dropped(call):
            pages = self._needed_pages(call)
            dropped = next((page for page in reversed(pages) if is_dropped(page)), None)
            if dropped is None:
                return True
            num_more = self._num_new(call) + sum(page.id is None and not page.written for page in pages)
            if not self._dropping.begin(call, dropped, num_more):
                return False
            assert call.restoring is not None
            if call.restoring.num_inputs == 0:  # the cache has all of it
                self.finish_restoring(call)
        return True

    def _keep_before(self, call: OpenCall, feed: Feed, end: int) -> None:
        keep_before(call, feed, self._holdings[call.run_id], end, self.shape.block_size)

    def _record_up_to(self, call: OpenCall, feed: Feed, end: int) -> None:
        self._prefixes.record(call, feed, self._holdings[call.run_id].root, end)

    def _may_have_dropped(self, call: OpenCall) -> bool:
        """Whether the call's run has pages without a block: most never do."""
        table = self._holdings[call.run_id].pages
        return table.num_held != table.num_backed

    def _needed_pages(self, call: OpenCall) -> Sequence[Page]:
        """Of the pages that the call has, those that its next row may touch."""
        if not isinstance(call.work, Feed):
            return call.pages
        return call.pages[: -(-(call.work.kv_len + call.work.num_left) // self.shape.block_size)]

    def _num_new(self, call: OpenCall) -> int:
        """Pages that the call needs to go on and has no name for yet."""
        if not isinstance(call.work, Feed):
            return 0
        return max(0, -(-(call.work.kv_len + call.work.num_left) // self.shape.block_size) - len(call.pages))

    def _mark_kv(self, pages: Sequence[Page], start: int, end: int) -> None:
        size = self.shape.block_size
        for place in range(max(start, 0) // size, -(-end // size)):  # below 0: what was there has left a window
            first = place * size
            pages[place].written |= range_bits(max(start - first, 0), min(end - first, size))
