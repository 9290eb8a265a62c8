"""The rows of the decode group as columns, and where what a step samples goes. Never decides who is a row.

Made by the group when its rows change, and the very same in all steps until they do. A step's result is put into the
lists of the segments that have its rows; whatever of it may be made later is only referred to.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

from loopwright.control.ordering import OpenCall
from loopwright.control.reading import Reading, readings
from loopwright.control.segments import Carried, Kept, SegmentFeed
from loopwright.core.batch import DecodeResult
from loopwright.core.calls import Sampling
from loopwright.core.ids import BlockId, RunId
from loopwright.core.samplers import SamplerRun, SamplerState
from loopwright.core.told_tokens import TokenReader


class Row(NamedTuple):
    """One entry of each column. What counts up is less by the steps that the group had when the row came."""

    call: OpenCall
    feed: SegmentFeed
    run_id: RunId
    block_ids: Sequence[BlockId]
    kv_len: int
    position: int
    sampling: Sampling
    generated: Sequence[int]
    num_generated: int
    tokens: list[int]
    logprobs: list[float]
    stop_tokens: frozenset[int]
    reader: tuple[TokenReader, int] | None  # who has what it shows with what others do, and its name there
    start: int  # steps that the group had when it came
    end: int  # and when it is over by its length
    sampler: SamplerRun | None


class Columns(NamedTuple):
    """All rows; as `Row`."""

    calls: Sequence[OpenCall] = ()
    feeds: Sequence[SegmentFeed] = ()
    run_ids: Sequence[RunId] = ()
    block_ids: Sequence[Sequence[BlockId]] = ()
    kv_lens: Sequence[int] = ()
    positions: Sequence[int] = ()
    samplings: Sequence[Sampling] = ()
    generated: Sequence[Sequence[int]] = ()
    num_generated: Sequence[int] = ()
    tokens: Sequence[list[int]] = ()
    logprobs: Sequence[list[float]] = ()
    stop_tokens: Sequence[frozenset[int]] = ()
    readers: Sequence[tuple[TokenReader, int] | None] = ()
    starts: Sequence[int] = ()
    ends: Sequence[int] = ()
    samplers: Sequence[SamplerRun | None] = ()


@dataclass(slots=True, eq=False)
class Members:
    """The columns of a step, and of those after it with the same rows, and what is asked of them in each."""

    columns: Columns = field(default_factory=Columns)
    stop_tokens: frozenset[int] = frozenset()  # of any of them
    matching: Sequence[OpenCall] = ()  # those with stop strings
    shown: Sequence[OpenCall] = ()  # who wants to see each token, and reads alone
    readings: Sequence[Reading] = ()  # those who read for many
    unknown: Sequence[int] = ()  # in place of tokens that have sources
    sampled: Sequence[int] = ()  # the last token of each, as far as they are here
    places: dict[OpenCall, int] = field(default_factory=dict)  # once somebody has asked
    tops: Sequence[list[Kept]] = ()  # of those who want to know the likeliest tokens too
    samplers: Sequence[SamplerRun | None] = ()  # if any has one
    sampling: Sequence[int] = ()  # the places of those who have one
    carried: Sequence[deque[Carried]] = ()  # of the same
    states: Sequence[SamplerState | None] = ()  # the last of each, as far as they are here
    unsure: Sequence[int] = ()  # the places of those who end before a token that the model is too unsure of
    limits: Sequence[float] = ()  # of the same

    @classmethod
    def of(cls, rows: Iterable[Row], before: "Members") -> "Members":
        columns = Columns(*zip(*rows, strict=True))
        pairs = list(zip(columns.calls, columns.feeds, strict=True))
        alone = zip(pairs, columns.readers, strict=True)
        members = cls(
            columns,
            frozenset().union(*set(columns.stop_tokens)),
            [call for call, feed in pairs if feed.has_stops],
            [call for (call, feed), reader in alone if feed.is_shown and reader is None],
            readings(columns.calls, columns.readers, before.readings) if any(columns.readers) else (),
            [0] * len(pairs),
            [tokens[-1] if tokens else 0 for tokens in columns.tokens],
            tops=[tops for feed in columns.feeds if (tops := feed.listing) is not None],
        )
        members._add_samplers()
        limits = {place: limit for place, feed in enumerate(columns.feeds) if (limit := feed.stop_entropy) is not None}
        members.unsure, members.limits = list(limits), list(limits.values())
        return members

    def _add_samplers(self) -> None:
        columns = self.columns
        self.sampling = [place for place, one in enumerate(columns.samplers) if one is not None]
        if self.sampling:
            self.samplers = columns.samplers
            self.carried = [columns.feeds[place].carried for place in self.sampling]
            states: list[SamplerState | None] = [None] * len(columns.samplers)
            for place, carried in zip(self.sampling, self.carried, strict=True):
                found, at = carried[-1]
                states[place] = found[at]
            self.states = states

    def keep(self, result: DecodeResult) -> None:
        """Puts what a step sampled where it belongs."""
        columns = self.columns
        self.sampled, self.states = result.token_ids, result.states
        deque(map(list.append, columns.tokens, result.token_ids), maxlen=0)
        deque(map(list.append, columns.logprobs, result.logprobs), maxlen=0)
        if self.tops:
            deque(map(list.append, self.tops, zip(repeat(result.tops), range(len(self.tops)))), maxlen=0)
        if self.carried:
            deque(map(deque.append, self.carried, zip(repeat(result.states), self.sampling)), maxlen=0)

    def has(self, call: OpenCall) -> bool:
        if not self.places:
            self.places = dict(zip(self.columns.calls, range(len(self.columns.calls)), strict=True))
        return call in self.places
