"""Owns what one step runs: a batch, with the call of each of its entries. Never chooses one.

Filled by the scheduler, turned into a batch when it begins, and asked by the controller what came of which call.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import NamedTuple

from loopwright.control.backing import PrivateCopy
from loopwright.control.decoding import NO_DECODE_STEP, DecodeGroup, DecodeStep
from loopwright.control.feeds import Feed
from loopwright.control.ordering import OpenCall
from loopwright.control.segments import SegmentFeed
from loopwright.core.batch import Batch, BlockCopy, EmbedRow, ForwardRow, HeadRow, KvShift, RowResult, StepResult
from loopwright.core.calls import CopyPage, ShiftKv
from loopwright.core.errors import LoopwrightError


class GoingOn(NamedTuple):
    """A segment whose next row has a row of the running step as its source: the place of that, and whether the segment
    is one of the decode group's from then on."""

    source: int
    feed: SegmentFeed
    is_steady: bool


@dataclass(slots=True)
class Step:
    """A batch in the making, with the call of each of its entries."""

    block_size: int
    decoding: DecodeGroup  # what it has when the batch is made is in it
    before: "Step | None" = None  # the one that runs, if this one is ahead
    continued: set[OpenCall] = field(default_factory=set)  # a piece of theirs runs in that one, and more is left
    decoded: DecodeStep = NO_DECODE_STEP  # the group's rows, once the batch is made
    private: list[tuple[OpenCall, PrivateCopy]] = field(default_factory=list)  # calls that run when these are done
    copies: list[OpenCall] = field(default_factory=list)
    shifts: list[OpenCall] = field(default_factory=list)
    embeds: list[OpenCall] = field(default_factory=list)
    rows: list[OpenCall] = field(default_factory=list)
    heads: list[OpenCall] = field(default_factory=list)
    joined: list[OpenCall] = field(default_factory=list)  # those of them that wait for others of them, in order
    refused: list[tuple[OpenCall, LoopwrightError]] = field(default_factory=list)  # not in the batch: these fail now
    settled: list[OpenCall] = field(default_factory=list)  # not in the batch: these need no engine any more
    batch_rows: list[ForwardRow] = field(default_factory=list)  # of `rows`
    num_going: int = 0  # the first so many of them go on from calls of one token, and ask for one distribution
    num_short: int = 0  # the first so many of them are of one token
    joined_decoding: list[OpenCall] = field(default_factory=list)  # they were not among the decode rows before

    @property
    def num_rows(self) -> int:
        """Rows of the forward pass."""
        decoding = self.decoding if self.decoded is NO_DECODE_STEP else self.decoded
        return len(decoding) + len(self.rows)

    @property
    def num_wasted(self) -> int:
        """Rows of texts that were over when the step before was; while this one has not been taken."""
        return len(self.decoded.wasted) + sum(call.is_over for call in self.rows)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run."""
        return not self.decoding and not self.calls

    @property
    def calls(self) -> list[OpenCall]:
        """All calls of the batch but the decode group's, and those that wait for its private copies."""
        return [*self.copying, *self.copies, *self.shifts, *self.embeds, *self.rows, *self.heads]

    @property
    def copying(self) -> list[OpenCall]:
        """Calls that run once the step has made their private copies, which is all that it does for them."""
        return list(dict.fromkeys(call for call, _ in self.private))

    def is_copied_from(self, call: OpenCall) -> bool:
        """Whether the call copies into a block of which a private copy is made: copies of a step have no order."""
        if not self.private or not isinstance(call.call, CopyPage):
            return False
        return any(one.copy.source == call.pages[1].id for _, one in self.private)

    def light_list(self, call: OpenCall) -> list[OpenCall] | None:
        """Where a call that is no feed belongs; None if it needs no engine."""
        if isinstance(call.work, EmbedRow):
            return self.embeds
        if isinstance(call.work, HeadRow):
            return self.heads
        if isinstance(call.call, ShiftKv):
            return self.shifts
        return self.copies if isinstance(call.call, CopyPage) else None

    def outcomes(self, result: StepResult, first: int = 0) -> Iterable[tuple[OpenCall, RowResult]]:
        """Each call with what came of it, after all that it waited for; without so many of the first rows."""
        pairs = chain(
            zip(self.copies, repeat(_NOTHING)),
            zip(self.shifts, result.shifts, strict=True),
            zip(self.embeds, repeat(_NOTHING)),
            zip(self.rows[first:], result.rows[first:], strict=True),
            zip(self.heads, result.heads, strict=True),
        )
        if not self.joined:
            return pairs
        places = {call: place for place, call in enumerate(self.joined, start=1)}
        return sorted(pairs, key=lambda pair: places.get(pair[0], 0))

    def going_on(self) -> dict[OpenCall, GoingOn] | None:
        """The calls, beside the decode rows, that go on with what the step samples; while it runs. None if one goes on
        with more than that. A prompt that is cut needs none of it, unless its window moves or one token is left."""
        going: dict[OpenCall, GoingOn] = {}
        for place, call in enumerate(self.rows, start=len(self.decoded)):
            feed = call.work
            if call.is_over or call.inbox.is_closed:
                continue
            if call.restoring is not None or not isinstance(feed, Feed):
                return None
            if not feed.is_through:
                if feed.view is not None or feed.num_beyond == 1:
                    return None
                continue
            if isinstance(feed, SegmentFeed):
                outlook = feed.outlook
                if outlook == "unknown":
                    return None
                if outlook in ("steady", "row"):
                    going[call] = GoingOn(place, feed, outlook == "steady")
        return going

    def cut(self) -> set[OpenCall]:
        """The calls that want to go on of which it has a piece, and not the last; while it runs."""
        return {
            call
            for call in self.rows
            if not (call.is_over or call.inbox.is_closed or call.feed is None or call.feed.is_through)
        }

    def give_up_ahead(self) -> None:
        """Nobody will take what came of the step before: the engine need not wait for what follows from it."""
        for call in self.rows:
            if isinstance(call.work, SegmentFeed):
                call.work.give_up_ahead()

    def has(self, call: OpenCall) -> bool:
        """Whether the batch has something of the call."""
        return call in self.calls or call in self.decoded.calls

    def batch(self) -> Batch:
        """To be made once."""
        before, self.before = self.before, None
        self.decoded = self.decoding.form(None if before is None else [*before.decoded.calls, *before.rows])
        return Batch(
            copies=[*(one.copy for _, one in self.private), *(_block_copy(call) for call in self.copies)],
            shifts=[_kv_shift(call, self.block_size) for call in self.shifts],
            embeds=[call.work for call in self.embeds if isinstance(call.work, EmbedRow)],
            decodes=self.decoded.rows,
            rows=self.batch_rows,
            heads=[call.work for call in self.heads if isinstance(call.work, HeadRow)],
        )


_NOTHING = RowResult()


def _block_copy(call: OpenCall) -> BlockCopy:
    copy, (source, target) = call.call, call.pages
    assert isinstance(copy, CopyPage)
    assert source.id is not None
    assert target.id is not None
    return BlockCopy(source.id, target.id, copy.source_offset, copy.target_offset, copy.size)


def _kv_shift(call: OpenCall, block_size: int) -> KvShift:
    """Of the touched pages alone, which is what the call holds."""
    shift = call.call
    assert isinstance(shift, ShiftKv)
    block_ids = [page.id for page in call.pages if page.id is not None]  # what is written has a block
    return KvShift(block_ids, shift.start % block_size, shift.size, shift.delta)
