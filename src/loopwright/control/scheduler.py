"""Chooses what the next step runs, of the calls that wait for nobody. Never touches tensors, sockets or clocks.

Called by the controller whenever the engine is idle. Rows of one token come first: they keep segments flowing. Prompts
share what the token budget leaves, by rank, and are cut to fit it. A call that needs a block and finds none stays.
"""

from bisect import insort
from dataclasses import dataclass, field

import msgspec

from loopwright.control.feeds import Feed
from loopwright.control.ordering import OpenCall
from loopwright.control.resource_manager import ResourceManager
from loopwright.control.segments import SegmentFeed
from loopwright.core.batch import Batch, BlockCopy, EmbedRow, ForwardRow, HeadRow, KvShift
from loopwright.core.calls import CopyPage, ShiftKv
from loopwright.core.errors import LoopwrightError


class ControlConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How large a step may be. Prompts get what the rows of one token leave of `max_batch_tokens`, so the second limit
    must be above the first."""

    max_batch_rows: int = 256  # rows of one token; also heads, embeds, copies and shifts, each
    max_batch_tokens: int = 512
    max_stuck_s: float = 0.1  # how long calls that all wait for blocks may do so before one of them fails

    def __post_init__(self) -> None:
        if not 0 < self.max_batch_rows < self.max_batch_tokens:
            raise ValueError(
                f"max_batch_rows {self.max_batch_rows} must be from 1 to below max_batch_tokens {self.max_batch_tokens}"
            )


@dataclass(slots=True)
class Step:
    """A batch in the making, with the call of each of its entries."""

    block_size: int
    copies: list[OpenCall] = field(default_factory=list)
    shifts: list[OpenCall] = field(default_factory=list)
    embeds: list[OpenCall] = field(default_factory=list)
    rows: list[OpenCall] = field(default_factory=list)
    heads: list[OpenCall] = field(default_factory=list)
    refused: list[tuple[OpenCall, LoopwrightError]] = field(default_factory=list)  # not in the batch: these fail now
    batch_rows: list[ForwardRow] = field(default_factory=list)

    @property
    def calls(self) -> list[OpenCall]:
        """All calls of the batch."""
        return [*self.copies, *self.shifts, *self.embeds, *self.rows, *self.heads]

    def batch(self) -> Batch:
        return Batch(
            copies=[_block_copy(call) for call in self.copies],
            shifts=[_kv_shift(call, self.block_size) for call in self.shifts],
            embeds=[call.work for call in self.embeds if isinstance(call.work, EmbedRow)],
            rows=self.batch_rows,
            heads=[call.work for call in self.heads if isinstance(call.work, HeadRow)],
        )


class Scheduler:
    """The calls that wait for nobody but the engine. A call stays until it is over; its owner says so on the call."""

    def __init__(self, config: ControlConfig, resources: ResourceManager) -> None:
        self._config = config
        self._resources = resources
        self._light: list[OpenCall] = []  # copies, shifts, embeds and heads, by arrival
        self._short: list[OpenCall] = []  # feeds with one input left, by arrival; the longest unserved first
        self._long: list[OpenCall] = []  # feeds with more, by rank

    def add(self, call: OpenCall) -> None:
        """Takes a call that waits for nobody any more."""
        if not isinstance(call.work, Feed):
            self._light.append(call)
        elif call.work.num_left == 1:
            self._short.append(call)
        else:
            insort(self._long, call, key=lambda one: one.rank)

    def form(self) -> Step:
        """What the next step runs; no call if none can."""
        step = Step(self._resources.shape.block_size)
        self._take_light(step)
        self._take_short(step)
        self._take_long(step)
        return step

    def waiting(self) -> list[OpenCall]:
        """The calls that are not over. After a form that took none, all of them wait for blocks."""
        calls = (*self._light, *self._short, *self._long)
        return [call for call in calls if not call.is_over and not call.is_paused]

    def _take_light(self, step: Step) -> None:
        waiting = [call for call in self._light if not call.is_over]
        self._light = []
        for call in waiting:
            taken = step.copies
            if isinstance(call.work, EmbedRow):
                taken = step.embeds
            elif isinstance(call.work, HeadRow):
                taken = step.heads
            elif isinstance(call.call, ShiftKv):
                taken = step.shifts
            if len(taken) < self._config.max_batch_rows and self._admit(call, step):
                taken.append(call)
            elif not _is_refused(call, step):
                self._light.append(call)

    def _take_short(self, step: Step) -> None:
        max_rows, block_size = self._config.max_batch_rows, self._resources.shape.block_size
        waiting, short = [call for call in self._short if not call.is_over], list[OpenCall]()
        for call in waiting:
            assert isinstance(call.work, Feed)
            if call.work.num_left == 1:
                short.append(call)
            else:  # a grammar forced tokens after the sampled one
                insort(self._long, call, key=lambda one: one.rank)
        self._short = short
        for place, call in enumerate(short):
            if len(step.rows) == max_rows:
                self._short = short[place:] + short[:place]
                break
            feed = call.work
            assert isinstance(feed, Feed)
            if feed.is_paused:
                continue
            if feed.kv_len < len(feed.block_ids) * block_size or self._admit(call, step):
                step.rows.append(call)
                step.batch_rows.append(feed.next_row(1))

    def _take_long(self, step: Step) -> None:
        budget = self._config.max_batch_tokens - len(step.rows)
        is_first, is_blocked = True, False
        still_long: list[OpenCall] = []
        for place, call in enumerate(self._long):
            if budget <= 0:
                still_long += self._long[place:]
                break
            if call.is_over:
                continue
            feed = call.work
            assert isinstance(feed, Feed)
            is_fitting = feed.is_chunkable or feed.num_left <= budget or is_first
            # Blocks go by rank: one that waits for them holds back all below it that need some, or it might starve.
            if is_fitting and not feed.is_paused and (call.is_started or not is_blocked):
                if self._admit(call, step):
                    row = feed.next_row(budget if feed.is_chunkable else feed.num_left)
                    step.rows.append(call)
                    step.batch_rows.append(row)
                    budget -= row.num_tokens
                    is_first = False
                    if _will_be_short(feed, row):
                        self._short.append(call)
                        continue
                elif not _is_refused(call, step):
                    is_blocked = True
            still_long.append(call)
        self._long = still_long

    def _admit(self, call: OpenCall, step: Step) -> bool:
        """Whether the call has all it needs to run now. One that cannot ever is put among the refused."""
        try:
            if not call.is_started:
                self._resources.check_reads(call)
            if not self._resources.secure(call):
                return False
        except LoopwrightError as error:
            step.refused.append((call, error))
            return False
        call.is_started = True
        return True


def _is_refused(call: OpenCall, step: Step) -> bool:
    return bool(step.refused) and step.refused[-1][0] is call


def _will_be_short(feed: Feed, row: ForwardRow) -> bool:
    """Whether one input is left after the row: the last of a prompt, or a segment's first sampled token."""
    num_left = feed.num_left - row.num_tokens
    return num_left == 1 or (num_left == 0 and isinstance(feed, SegmentFeed))


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
