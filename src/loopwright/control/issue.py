"""Owns what issuing a call means: values are checked, names resolved, work made. Never runs or orders calls.

Called by the controller, once for each call that waits in a queue. Names are bound last, so a refused call binds none.
"""

from collections.abc import Sequence
from typing import TypeAlias, assert_never

from loopwright.control import checks
from loopwright.control.feeds import Feed
from loopwright.control.holdings import Holdings
from loopwright.control.name_table import IdT, NameT, NameTable, check_distinct
from loopwright.control.ordering import Embed, OpenCall, Page, Resource, is_lent
from loopwright.control.row_views import RowView
from loopwright.control.segments import SegmentFeed
from loopwright.control.watching import WatchedFeed
from loopwright.core.batch import EmbedRow, HeadRow
from loopwright.core.calls import (
    ClearQueue,
    CopyPage,
    EmbedImage,
    EmbedText,
    ExportPages,
    Forward,
    ForwardText,
    ForwardWithAdapter,
    Generate,
    ImportPages,
    KvWindow,
    NextDistribution,
    Sample,
    ShiftKv,
    Synchronize,
    UnexportPages,
)
from loopwright.core.errors import BadRequest
from loopwright.core.executor import EngineShape
from loopwright.core.ids import PageName, SlotId

QueuedCall: TypeAlias = (
    Synchronize | ClearQueue | ExportPages | UnexportPages | ImportPages | CopyPage | ShiftKv | EmbedText | EmbedImage
    | Forward | ForwardWithAdapter | NextDistribution | Sample | ForwardText | Generate
)  # fmt: skip
"""Calls that wait for their turn; the others are done when they are issued."""


def prepare(
    one: OpenCall, call: QueuedCall, holdings: Holdings, shape: EngineShape, token_bytes: Sequence[bytes]
) -> None:
    """Fills in what the call touches and its work. Raises BadRequest, NotFound, OutOfPages; then nothing is bound."""
    match call:  # the most frequent first
        case ForwardText():
            _prepare_forward_text(one, call, holdings, shape)
        case Generate():
            _prepare_generate(one, call, holdings, shape, token_bytes)
        case Synchronize() | ClearQueue() | UnexportPages():
            pass
        case ExportPages() | ImportPages():
            _prepare_exchange(one, call, holdings, shape)
        case EmbedImage() | ForwardWithAdapter():
            raise AssertionError("no engine runs this: its trait is refused before")
        case CopyPage() | ShiftKv():
            _prepare_move(one, call, holdings, shape)
        case EmbedText():
            checks.check_embed_text(call, shape)
            one.embed_writes = holdings.embeds.find_all(call.embeds, "embeds")
            one.work = EmbedRow(call.tokens, call.positions, _slots(one.embed_writes))
        case Forward():
            _prepare_forward(one, call, holdings, shape)
        case NextDistribution() | Sample():
            _prepare_head(one, call, holdings, shape)
        case _:
            assert_never(call)


def prepare_refused(one: OpenCall, holdings: Holdings, block_size: int) -> None:
    """Fills in what a refused call should have written, as far as its names are bound: who reads that fails too."""
    match one.call:
        case CopyPage(target=target):
            one.page_writes = _bound(holdings.pages, (target,))
        case ShiftKv(pages=pages, start=start, size=size):
            end = -(-(start + max(size, 0)) // block_size)
            one.page_writes = _bound(holdings.pages, pages[max(start, 0) // block_size : end])
        case (
            Forward(pages=pages, kv_len=kv_len)
            | ForwardText(pages=pages, kv_len=kv_len)
            | Generate(pages=pages, kv_len=kv_len)
        ):
            one.page_writes = _bound(holdings.pages, pages[max(kv_len, 0) // block_size :])
    match one.call:
        case EmbedText(embeds=embeds) | EmbedImage(embeds=embeds) | Forward(outputs=embeds):
            one.embed_writes = _bound(holdings.embeds, embeds)
    one.pages = list(one.page_writes)


def _prepare_move(one: OpenCall, call: CopyPage | ShiftKv, holdings: Holdings, shape: EngineShape) -> None:
    if isinstance(call, CopyPage):
        _prepare_copy(one, call, holdings, shape)
    else:
        _prepare_shift(one, call, holdings, shape)


def _prepare_copy(one: OpenCall, call: CopyPage, holdings: Holdings, shape: EngineShape) -> None:
    checks.check_copy(call, shape)
    source, target = holdings.pages.find(call.source, "source"), holdings.pages.find(call.target, "target")
    if source is target:
        raise BadRequest(f"target: page {call.target} is the source too", field="target")
    _check_unshared([target], (call.target,), "target")
    one.pages, one.page_reads, one.page_writes = [source, target], [source], [target]


def _prepare_shift(one: OpenCall, call: ShiftKv, holdings: Holdings, shape: EngineShape) -> None:
    checks.check_shift(call, len(call.pages) * shape.block_size)
    first, last = call.start // shape.block_size, -(-(call.start + call.size) // shape.block_size)
    pages = holdings.pages.find_all(call.pages, "pages")[first:last]
    _check_unshared(pages, call.pages[first:last], "pages")
    one.pages, one.page_reads, one.page_writes = list(pages), pages, list(pages)


def _prepare_exchange(one: OpenCall, call: ExportPages | ImportPages, holdings: Holdings, shape: EngineShape) -> None:
    if isinstance(call, ImportPages):  # its pages get their blocks when its turn comes
        one.pages = holdings.pages.bind_new(call.pages, "pages")
        one.grown, one.page_writes = list(call.pages), list(one.pages)
    else:
        checks.check_export(call, shape)
        one.pages = holdings.pages.find_all(call.pages, "pages")
        one.page_reads = one.pages


def _prepare_head(one: OpenCall, call: NextDistribution | Sample, holdings: Holdings, shape: EngineShape) -> None:
    if isinstance(call, Sample):
        checks.check_sample(call, shape)
    else:
        checks.check_next_distribution(call, shape)
    one.embed_reads = [holdings.embeds.find(call.embed, "embed")]
    slot = _slots(one.embed_reads)[0]
    if isinstance(call, Sample):
        one.work = HeadRow(slot, sampling=call.sampling, sample_position=call.position)
    else:
        one.work = HeadRow(slot, distributions=(call.request,))


def _prepare_forward(one: OpenCall, call: Forward, holdings: Holdings, shape: EngineShape) -> None:
    checks.check_forward(call, len(call.pages) * shape.block_size)
    inputs = [holdings.embeds.find(name, "inputs") for name in call.inputs]
    outputs = holdings.embeds.find_all(call.outputs, "outputs")
    _set_pages(one, call, holdings, shape, call.kv_len + len(inputs))
    one.embed_reads, one.embed_writes = inputs, outputs
    one.work = Feed(
        kv_len=call.kv_len,
        input_slots=_slots(inputs),
        output_slots=_slots(outputs),
        mask=call.mask,
        view=_row_view(call, holdings, shape.block_size),
    )


def _prepare_forward_text(one: OpenCall, call: ForwardText, holdings: Holdings, shape: EngineShape) -> None:
    checks.check_forward_text(call, shape, len(call.pages) * shape.block_size)
    end = call.kv_len + len(call.tokens)
    _set_pages(one, call, holdings, shape, end)
    num_new = -(-end // shape.block_size) - len(one.pages)
    if call.grow_from is not None and num_new > 0:
        names = [PageName(call.grow_from + place) for place in range(num_new)]
        fresh = holdings.pages.bind_new(names, "grow_from")
        one.grown = names
        one.pages += fresh
        one.page_writes += fresh
    one.work = Feed(
        kv_len=call.kv_len,
        tokens=call.tokens,
        positions=call.positions,
        mask=call.mask,
        distributions=call.distributions,
        sampling=call.sampling,
        num_drafts=call.num_drafts,
        held=call.held,
        view=_row_view(call, holdings, shape.block_size),
    )


def _prepare_generate(
    one: OpenCall, call: Generate, holdings: Holdings, shape: EngineShape, token_bytes: Sequence[bytes]
) -> None:
    checks.check_generate(call, shape, len(call.pages) * shape.block_size)
    work = SegmentFeed(call, token_bytes, shape.max_context)
    if call.watch is not None:
        work = WatchedFeed(call, call.watch, token_bytes, shape.max_context)
    end = call.kv_len + len(call.tokens)
    _set_pages(one, call, holdings, shape, end + call.max_tokens - 1)
    holdings.pages.check_room(max(0, -(-end // shape.block_size) - len(one.pages)))
    work.view = _row_view(call, holdings, shape.block_size, call.window)
    one.work = work


def _set_pages(
    one: OpenCall, call: Forward | ForwardText | Generate, holdings: Holdings, shape: EngineShape, end: int
) -> None:
    """`end` is one past the last KV place that the call may write."""
    first, last = call.kv_len // shape.block_size, -(-end // shape.block_size)
    slides = isinstance(call, Generate) and call.window is not None  # then its first pages leave one after the other
    base = None if slides else holdings.bases.find(call.pages, first)
    if base is None:
        pages = holdings.pages.find_all(call.pages, "pages")
    else:
        behind = holdings.pages.find_all(call.pages[first:], "pages")
        if base.has_name(call.pages[first:]):
            check_distinct(call.pages, "pages")
        pages = base.pages + behind
        one.base = base if holdings.order.may_have_base(base.pages) else None
    _check_unshared(pages[first:last], call.pages[first:last], "pages")
    one.pages, one.page_writes = pages, pages[first:last]
    one.page_reads = pages[0 if one.base is None else first : -(-call.kv_len // shape.block_size)]


def _row_view(
    call: Forward | ForwardText | Generate, holdings: Holdings, block_size: int, window: KvWindow | None = None
) -> RowView | None:
    """What the call's rows see, if not everything."""
    hidden = 0
    if holdings.masked:
        hidden = sum(holdings.masked.get(page, 0) << place * block_size for place, page in enumerate(call.pages))
        hidden &= (1 << call.kv_len) - 1
    return None if window is None and not hidden else RowView(block_size, hidden, window)


def _check_unshared(pages: Sequence[Page], names: Sequence[PageName], field: str) -> None:
    for page, name in zip(pages, names, strict=True):
        if page.num_names > 1 or is_lent(page):
            sharers = f"{page.num_names} names" if page.num_names > 1 else "an export or another run"
            raise BadRequest(
                f"{field}: page {name} is shared by {sharers}; copy it first",
                field=field,
                hint="allocate a page, copy_page what you need into it, and write there",
            )


def _bound(table: NameTable[NameT, IdT], names: Sequence[NameT]) -> list[Resource[IdT]]:
    return [found for name in names if (found := table.names.get(name)) is not None]


def _slots(embeds: Sequence[Embed]) -> list[SlotId]:
    return [embed.id for embed in embeds if embed.id is not None]  # a bound embed always has its slot
