"""Says which calls may share a step with the calls they wait for. Never admits one: the scheduler does.

A step runs its lists one after the other: copies, shifts, embeds, rows, heads. So a chain of one queue that is known in
advance, say embed, forward, sample, is one step, and so are calls of one queue that do not touch the same pages.
"""

from collections.abc import Iterator, Sequence

from loopwright.control.feeds import Feed
from loopwright.control.ordering import AnyResource, Embed, OpenCall, Page
from loopwright.control.segments import SegmentFeed
from loopwright.core.batch import EmbedRow
from loopwright.core.calls import CopyPage, EmbedText, Forward


class Joining:
    """The calls of one step that end with it, and who waits for nobody but them."""

    def __init__(self, block_size: int) -> None:
        self.promised: dict[AnyResource, int] = {}  # bits of `written` that the step will set
        self._block_size = block_size
        self._blockers: dict[OpenCall, list[OpenCall]] = {}  # of the step, by who waits for them

    def freed_by(self, call: OpenCall) -> list[OpenCall]:
        """Those that may run in the step now that `call` is in it. Each call of the step is asked about once."""
        if not _ends_with_step(call):
            return []
        for resource, bits in writes_of(call, self._block_size):
            self.promised[resource] = self.promised.get(resource, 0) | bits
        freed: list[OpenCall] = []
        for dependent, _ in call.dependents:
            blockers = self._blockers.setdefault(dependent, [])
            blockers.append(call)
            if len(blockers) == dependent.num_blockers and dependent.failure is None:
                freed.append(dependent)
        return [one for one in freed if all(_may_share(blocker, one) for blocker in self._blockers[one])]


def writes_of(call: OpenCall, block_size: int) -> Iterator[tuple[AnyResource, int]]:
    """What the call writes if it goes well, as bits of `written`. A shift moves what is written already."""
    if isinstance(call.work, Feed):
        start, end = call.work.start_kv_len, call.work.start_kv_len + call.work.num_inputs
        for place in range(start // block_size, -(-end // block_size)):
            first = place * block_size
            yield call.pages[place], range_bits(max(start - first, 0), min(end - first, block_size))
    if isinstance(call.call, CopyPage):
        offset = call.call.target_offset
        yield call.pages[1], range_bits(offset, offset + call.call.size)
    elif isinstance(call.call, EmbedText | Forward):
        yield from ((embed, 1) for embed in call.embed_writes)


def range_bits(start: int, end: int) -> int:
    """Bits start … end - 1."""
    return (1 << end) - (1 << start)


def _ends_with_step(call: OpenCall) -> bool:
    """Whether the call is over after the row that was made for it, with all of its writes, unless it fails."""
    if isinstance(call.work, Feed):
        return call.work.is_last_row and not isinstance(call.work, SegmentFeed)
    return True


def _may_share(blocker: OpenCall, call: OpenCall) -> bool:
    """Whether a step may hold both: its lists keep their order, or nothing but their queue does."""
    return _list_place(blocker) < _list_place(call) or not _conflict(blocker, call)


def _list_place(call: OpenCall) -> int:
    if isinstance(call.work, Feed):
        return 3
    if call.work is not None:
        return 2 if isinstance(call.work, EmbedRow) else 4
    return 0 if isinstance(call.call, CopyPage) else 1


def _conflict(one: OpenCall, other: OpenCall) -> bool:
    """W(a) ∩ (R(b) ∪ W(b)) ≠ ∅, one way or the other."""
    writes, other_writes = _touched(one.page_writes, one.embed_writes), _touched(other.page_writes, other.embed_writes)
    reads, other_reads = (_touched(call.all_page_reads, call.embed_reads) for call in (one, other))
    return not writes.isdisjoint(other_reads | other_writes) or not other_writes.isdisjoint(reads)


def _touched(pages: Sequence[Page], embeds: Sequence[Embed]) -> set[AnyResource]:
    return {*pages, *embeds}
