"""Owns the pools and every run's names of pages and embeds. Never decides who runs, and never delivers.

Called by the controller when calls are issued and are over, and by the scheduler, which asks it for the blocks that the
next row needs.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from loopwright.control.exports import Exports
from loopwright.control.feeds import Feed
from loopwright.control.joining import range_bits, writes_of
from loopwright.control.name_table import IdT, Kind, NameT, NameTable
from loopwright.control.ordering import AnyResource, OpenCall, Page, Resource
from loopwright.control.pool import Pool
from loopwright.core.calls import (
    AllocateEmbeds,
    AllocatePages,
    CopyPage,
    EmbedText,
    ExportPages,
    Forward,
    FreeEmbeds,
    FreePages,
    Generate,
    ImportPages,
    MaskPage,
    SharePages,
    ShiftKv,
    UnexportPages,
)
from loopwright.core.control import ControlLimits
from loopwright.core.errors import BadRequest, LimitExceeded, OutOfPages, Overloaded
from loopwright.core.executor import EngineShape
from loopwright.core.ids import BlockId, EmbedName, PageName, RunId, SlotId, TenantId
from loopwright.core.results import Done, Imported

ImmediateCall = AllocatePages | FreePages | SharePages | MaskPage | AllocateEmbeds | FreeEmbeds
"""Calls that only change names: done when they are issued."""

_PAGE = Kind("page", over_limit=OutOfPages, none_free=OutOfPages)
_EMBED = Kind("embed", over_limit=LimitExceeded, none_free=Overloaded)


@dataclass(frozen=True, slots=True)
class Holdings:
    """What one run has names for."""

    pages: NameTable[PageName, BlockId]
    embeds: NameTable[EmbedName, SlotId]
    masked: dict[PageName, int] = field(default_factory=dict)  # bit i: the name does not see offset i of its page


class ResourceManager:
    """Pages and embeds of all runs, over the engine's blocks and slots."""

    def __init__(self, shape: EngineShape) -> None:
        self.shape = shape
        self.blocks = Pool(BlockId(number) for number in range(shape.num_blocks))
        self.slots = Pool(SlotId(number) for number in range(shape.num_slots))
        self.exports = Exports(self.blocks)
        self._holdings: dict[RunId, Holdings] = {}
        self._full = (1 << shape.block_size) - 1  # `written` of a page whose every offset has KV

    def open(self, run_id: RunId, limits: ControlLimits) -> Holdings:
        """Begins a run that holds nothing."""
        assert run_id not in self._holdings, f"run {run_id} is open"
        pages: NameTable[PageName, BlockId] = NameTable(_PAGE, self.blocks, limits.max_pages)
        embeds: NameTable[EmbedName, SlotId] = NameTable(_EMBED, self.slots, limits.max_embeds)
        self._holdings[run_id] = Holdings(pages, embeds)
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
                holdings.pages.bind_backed(call.pages, "pages")
            case FreePages():
                holdings.pages.unbind(call.pages, "pages")
                _pass_masks(holdings.masked, call.pages)
            case SharePages():
                holdings.pages.share(call.sources, call.targets)
                _pass_masks(holdings.masked, call.sources, call.targets)
            case MaskPage():
                self._mask(holdings, call)
            case AllocateEmbeds():
                holdings.embeds.bind_backed(call.embeds, "embeds")
            case FreeEmbeds():
                holdings.embeds.unbind(call.embeds, "embeds")

    def hold(self, call: OpenCall) -> None:
        """Keeps what the call touches until `release`."""
        holdings = self._holdings[call.run_id]
        holdings.pages.hold(call.pages)
        holdings.embeds.hold(call.embed_reads)
        holdings.embeds.hold(call.embed_writes)
        if isinstance(call.call, ExportPages):
            for page in call.pages:
                page.num_exporting += 1

    def release(self, call: OpenCall) -> None:
        """Ends `hold`. A call that failed also loses the names it bound: its program finds the pages as they were."""
        holdings = self._holdings[call.run_id]
        if call.failure is not None and call.grown:
            grown = zip(call.grown, call.pages[-len(call.grown) :], strict=True)
            mine = [name for name, page in grown if holdings.pages.names.get(name) is page]
            holdings.pages.unbind(mine, "grow_from")
            _pass_masks(holdings.masked, mine)
        if isinstance(call.call, ExportPages):
            for page in call.pages:
                page.num_exporting -= 1
        holdings.pages.drop(call.pages)
        holdings.embeds.drop(call.embed_reads)
        holdings.embeds.drop(call.embed_writes)

    def exchange(self, call: OpenCall, tenant: TenantId) -> Done | Imported:
        """Exports, unexports or imports, when the call's turn has come. Raises, and changes nothing, if it cannot."""
        match call.call:
            case ExportPages(positions=positions):
                self._check_kv(call.pages, len(positions), {}, "positions")
                self.exports.add(tenant, call.run_id, call.call, call.pages)
            case UnexportPages(name=name):
                self.exports.remove(tenant, name)
            case ImportPages():
                imported = self.exports.import_into(self._holdings[call.run_id].pages, tenant, call.call, call.pages)
                self._mark_kv(call.pages, 0, imported.kv_len)
                return imported
        return Done()

    def check_reads(self, call: OpenCall, promised: Mapping[AnyResource, int] = {}) -> None:
        """Raises BadRequest if the call would read what nobody wrote: there may be what another run left. `promised`
        are bits that will be written before the call runs."""
        for embed in call.embed_reads:
            if not embed.written and embed not in promised:
                raise BadRequest(
                    "an embed that the call reads was never written", hint="embed_text or forward fills it"
                )
        if isinstance(call.call, CopyPage):
            size, offset = call.call.size, call.call.source_offset
            if range_bits(offset, offset + size) & ~_written(call.pages[0], promised):
                raise BadRequest(
                    f"source: offsets {offset} … {offset + size - 1} are not all written", field="source_offset"
                )
        elif isinstance(call.call, ShiftKv):
            self._check_shift(call.pages, call.call, promised)
        elif isinstance(call.work, Feed):
            self._check_kv(call.pages, call.work.start_kv_len, promised)

    def secure(self, call: OpenCall) -> bool:
        """Gives the call every block that its remaining inputs need, all or none. False if the pool has too few now.

        A segment binds names as it needs pages: raises BadRequest if one is bound, OutOfPages beyond a limit."""
        if isinstance(call.work, Feed):
            return self._secure_feed(call, call.work)
        table = self._holdings[call.run_id].pages
        if not table.can_back(sum(page.id is None for page in call.pages)):
            return False
        table.back(call.pages)
        return True

    def shrink(self, call: OpenCall) -> None:
        """Takes back the pages that a segment grew and has no use for, now that it went back to an earlier token."""
        feed, table = call.work, self._holdings[call.run_id].pages
        assert isinstance(feed, Feed)
        num_needed = -(-(feed.kv_len + feed.num_left) // self.shape.block_size)
        num_surplus = min(len(call.pages) - num_needed, len(call.grown))
        if num_surplus <= 0:
            return
        pages, names = call.pages[-num_surplus:], call.grown[-num_surplus:]
        del call.pages[-num_surplus:], call.grown[-num_surplus:], feed.block_ids[len(call.pages) :]
        call.page_writes = [page for page in call.page_writes if page not in pages]
        for page in pages:
            if page.writer is call:
                page.writer = None
        mine = [name for name, page in zip(names, pages, strict=True) if table.names.get(name) is page]
        table.unbind(mine, "pages")
        _pass_masks(self._holdings[call.run_id].masked, mine)
        table.drop(pages)

    def mark_written(self, call: OpenCall) -> None:
        """Notes what a call that is over wrote. A feed that failed wrote what its finished chunks did."""
        if isinstance(call.work, Feed):
            self._mark_kv(call.pages, call.work.start_kv_len, call.work.kv_len)
        if call.failure is not None:
            return
        if isinstance(call.call, CopyPage | EmbedText | Forward):
            for resource, bits in writes_of(call, self.shape.block_size):
                resource.written |= bits

    def mark_lost(self, call: OpenCall) -> None:
        """Notes that what the call wrote is not to be read: it ran beside a call that it waited for, which failed."""
        for resource, bits in writes_of(call, self.shape.block_size):
            resource.written &= ~bits

    def check_integrity(self, open_calls: Iterable[OpenCall]) -> None:
        """Asserts that counts equal the names and calls there are, and that the pools agree."""
        num_holds: Counter[object] = Counter()
        held_by_calls: dict[RunId, list[OpenCall]] = {run_id: [] for run_id in self._holdings}
        for call in open_calls:
            num_holds.update([*call.pages, *call.embed_reads, *call.embed_writes])
            held_by_calls[call.run_id].append(call)
        blocks: list[BlockId] = self.exports.block_ids()
        slots: list[SlotId] = []
        for run_id, holdings in self._holdings.items():
            calls = held_by_calls[run_id]
            pages = {page for call in calls for page in call.pages}
            embeds = {embed for call in calls for embed in (*call.embed_reads, *call.embed_writes)}
            blocks += _check_table(holdings.pages, pages, num_holds)
            slots += _check_table(holdings.embeds, embeds, num_holds)
        self.blocks.check_integrity(blocks)
        self.slots.check_integrity(slots)

    def _mask(self, holdings: Holdings, call: MaskPage) -> None:
        holdings.pages.find(call.page, "page")
        if len(call.keep) != self.shape.block_size:
            raise BadRequest(f"keep: {len(call.keep)} of them for the page's {self.shape.block_size}", field="keep")
        holdings.masked[call.page] = sum(1 << offset for offset, is_kept in enumerate(call.keep) if not is_kept)

    def _check_kv(
        self, pages: Sequence[Page], kv_len: int, promised: Mapping[AnyResource, int], field: str = "kv_len"
    ) -> None:
        num_full, num_tail = divmod(kv_len, self.shape.block_size)
        for place in range(num_full):
            if pages[place].written != self._full and _written(pages[place], promised) != self._full:
                raise _no_kv(field, place, pages[place], self.shape.block_size)
        if num_tail and range_bits(0, num_tail) & ~_written(pages[num_full], promised):
            raise _no_kv(field, num_full, pages[num_full], num_tail)

    def _check_shift(self, pages: Sequence[Page], call: ShiftKv, promised: Mapping[AnyResource, int]) -> None:
        size, start = self.shape.block_size, call.start % self.shape.block_size
        for place, page in enumerate(pages):
            first = place * size
            bits = range_bits(max(start - first, 0), min(start + call.size - first, size))
            if bits & ~_written(page, promised):
                raise BadRequest(
                    f"start: tokens {call.start} … {call.start + call.size - 1} are not all written", field="start"
                )

    def _secure_feed(self, call: OpenCall, feed: Feed) -> bool:
        table = self._holdings[call.run_id].pages
        num_held = len(feed.block_ids)
        num_needed = -(-(feed.kv_len + feed.num_left) // self.shape.block_size)
        num_new = max(0, num_needed - len(call.pages))
        needed = call.pages[num_held:num_needed]
        names: list[PageName] = []
        if num_new:
            assert isinstance(call.call, Generate), "other calls bind their pages at issue"
            first = call.call.grow_from + len(call.grown)
            names = [PageName(first + place) for place in range(num_new)]
            table.check_bindable(names, "grow_from")
        if not table.can_back(num_new + sum(page.id is None for page in needed)):
            return False
        if num_new:
            fresh = table.bind_new(names, "grow_from")
            table.hold(fresh)
            for page in fresh:
                page.writer = call
            call.grown += names
            call.pages += fresh
            call.page_writes += fresh
            needed += fresh
        table.back(needed)
        feed.block_ids.extend(page.id for page in needed if page.id is not None)
        return True

    def _mark_kv(self, pages: Sequence[Page], start: int, end: int) -> None:
        size = self.shape.block_size
        for place in range(start // size, -(-end // size)):
            first = place * size
            pages[place].written |= range_bits(max(start - first, 0), min(end - first, size))


def _written(page: Page, promised: Mapping[AnyResource, int]) -> int:
    return page.written | promised.get(page, 0)


def _pass_masks(masked: dict[PageName, int], sources: Sequence[PageName], targets: Sequence[PageName] = ()) -> None:
    """To the targets; without any, the sources lose theirs."""
    if not masked:
        return
    if not targets:
        for name in sources:
            masked.pop(name, None)
    for source, target in zip(sources, targets, strict=False):
        if source in masked:
            masked[target] = masked[source]


def _no_kv(field: str, place: int, page: Page, num_needed: int) -> BadRequest:
    num_written = (~page.written & (page.written + 1)).bit_length() - 1
    return BadRequest(
        f"{field}: pages[{place}] has KV for its first {num_written} tokens, and {num_needed} are counted",
        field=field,
    )


def _check_table(table: NameTable[NameT, IdT], held: Iterable[Resource[IdT]], num_holds: Counter[object]) -> list[IdT]:
    """The units of all that lives, after asserting that it is counted right."""
    num_names = Counter(table.names.values())
    living = {*num_names, *held}
    for resource in living:
        assert resource.num_names == num_names[resource], "names do not add up"
        assert resource.num_holds == num_holds[resource], "calls do not add up"
    assert table.num_held == len(living), f"{table.num_held} counted as held, {len(living)} live"
    units = [resource.id for resource in living if resource.id is not None]
    assert table.num_backed == len(units), f"{table.num_backed} counted as backed, {len(units)} are"
    return units
