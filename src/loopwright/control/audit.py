"""Counts again what control holds: names, calls, exports and pools have to add up. Never changes anything.

Called by the resource manager for tests and soaks, at any time.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from loopwright.control.block_pool import BlockPool
from loopwright.control.dropping import Restoration
from loopwright.control.exports import Exports
from loopwright.control.holdings import Holdings
from loopwright.control.name_table import IdT, NameT, NameTable
from loopwright.control.ordering import OpenCall, Resource
from loopwright.control.pool import Pool
from loopwright.core.ids import BlockId, RunId, SlotId


def check_books(
    runs: Mapping[RunId, Holdings],
    exports: Exports,
    block_pool: BlockPool,
    slot_pool: Pool[SlotId],
    open_calls: Iterable[OpenCall],
) -> None:
    """Asserts that counts equal the names and calls there are, and that the pools agree."""
    num_holds: Counter[object] = Counter()
    held_by_calls: dict[RunId, list[OpenCall]] = {run_id: [] for run_id in runs}
    for call in open_calls:
        num_holds.update([*call.marked_pages, *call.embed_reads, *call.embed_writes])
        held_by_calls[call.run_id].append(call)
    blocks: list[BlockId] = exports.block_ids()
    slots: list[SlotId] = []
    for run_id, holdings in runs.items():
        calls = held_by_calls[run_id]
        pages = {page for call in calls for page in call.pages}
        embeds = {embed for call in calls for embed in (*call.embed_reads, *call.embed_writes)}
        holdings.pages.check_kept([call.base.pages for call in calls if call.base is not None])
        blocks += _check_table(holdings.pages, pages, num_holds)
        slots += _check_table(holdings.embeds, embeds, num_holds)
    _check_lent(runs, exports, held_by_calls)
    restoring = [call.restoring for calls in held_by_calls.values() for call in calls]
    blocks += [block for one in restoring if isinstance(one, Restoration) for block in one.blocks]
    block_pool.check_integrity(blocks)
    slot_pool.check_integrity(slots)


def _check_lent(
    runs: Mapping[RunId, Holdings], exports: Exports, held_by_calls: Mapping[RunId, Sequence[OpenCall]]
) -> None:
    pages = {page for calls in held_by_calls.values() for call in calls for page in call.pages}
    pages.update(page for holdings in runs.values() for page in holdings.pages.names.values())
    counted = Counter([*exports.lent(), *(page.lent for page in pages if page.lent is not None)])
    assert all(lent.num_holders == num for lent, num in counted.items()), "holders of lent blocks do not add up"


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
