"""Owns the segments that have a row of one token in every step, as columns that stay from step to step.

Never admits one. A step with the rows of the one before costs only what was sampled: places and positions follow from
the number of steps, and what a row needs once in a while, a page or its end by length, has a step at which it is due.
Used by the scheduler, which says who joins, and by the controller, which brings what came of the rows.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from loopwright.control.ordering import OpenCall
from loopwright.control.segments import SegmentFeed
from loopwright.core.batch import NO_DECODES, DecodeResult, DecodeRows
from loopwright.core.calls import Generate, Sampling
from loopwright.core.errors import ErrorInfo
from loopwright.core.ids import BlockId, RunId


class _Row(NamedTuple):
    """One entry of each column. What counts up is less by the steps that the group had when the row came."""

    call: OpenCall
    feed: SegmentFeed
    run_id: RunId
    block_ids: Sequence[BlockId]
    kv_len: int
    position: int
    sampling: Sampling
    generated: Sequence[int]
    tokens: list[int]
    logprobs: list[float]
    stop_tokens: frozenset[int]


class _Columns(NamedTuple):
    """All rows; as `_Row`."""

    calls: Sequence[OpenCall] = ()
    feeds: Sequence[SegmentFeed] = ()
    run_ids: Sequence[RunId] = ()
    block_ids: Sequence[Sequence[BlockId]] = ()
    kv_lens: Sequence[int] = ()
    positions: Sequence[int] = ()
    samplings: Sequence[Sampling] = ()
    generated: Sequence[Sequence[int]] = ()
    tokens: Sequence[list[int]] = ()
    logprobs: Sequence[list[float]] = ()
    stop_tokens: Sequence[frozenset[int]] = ()


class DecodeGroup:
    """Rows join and leave between steps. Implements `ordering.Decoding`.

    A member's feed is steady, so its tokens say how far it is: nothing else of it changes from step to step."""

    def __init__(self, block_size: int) -> None:
        self.is_running = False
        self.shown: Sequence[tuple[OpenCall, SegmentFeed]] = ()  # of the rows that run: who wants to see each token
        self._size = block_size
        self._num_steps = 0  # that are over
        self._rows: dict[OpenCall, _Row] = {}
        self._is_changed = False  # since the columns were made
        self._columns = _Columns()  # of the rows that run, or ran last
        self._stop_tokens: frozenset[int] = frozenset()  # of any of them
        self._matching: Sequence[OpenCall] = ()  # those with stop strings
        self._sampled: Sequence[int] = ()  # by the step that ran last
        self._full: defaultdict[int, list[OpenCall]] = defaultdict(list)  # who may need a page, by the steps before
        self._ending: defaultdict[int, list[OpenCall]] = defaultdict(list)  # who may be over, by the steps until then

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def calls(self) -> Collection[OpenCall]:
        """The members, in the order of their rows."""
        return self._rows.keys()

    @property
    def run_ids(self) -> Sequence[RunId]:
        """Whose rows run, or ran last: a run has as many entries as rows."""
        return self._columns.run_ids

    def join(self, call: OpenCall) -> None:
        """Takes a call whose feed is steady and has a place for its next token."""
        feed, generate = call.work, call.call
        assert isinstance(feed, SegmentFeed)
        assert isinstance(generate, Generate)
        assert feed.is_steady
        self._rows[call] = _Row(
            call, feed, call.run_id, feed.block_ids, feed.kv_len - self._num_steps, feed.position - self._num_steps,
            generate.sampling, feed.tokens if generate.sampling.has_penalties else (), feed.tokens, feed.logprobs,
            feed.stop_tokens,
        )  # fmt: skip
        call.decoding = self
        self._is_changed = True
        self._ending[self._num_steps + feed.max_more].append(call)
        self.has_grown(call)

    def leave(self, call: OpenCall) -> None:
        """The call has a row in no further step of the group."""
        del self._rows[call]
        call.decoding = None
        self._is_changed = True

    def dissolve(self) -> list[OpenCall]:
        """Has all leave; who they were."""
        calls = list(self._rows)
        for call in calls:
            self.leave(call)
        return calls

    def take_full(self) -> list[OpenCall]:
        """Those that have no place for their next token. Each leaves, or `has_grown`."""
        due = self._full.pop(self._num_steps, ())
        return [call for call in dict.fromkeys(due) if call in self._rows and self._room(self._rows[call].feed) == 0]

    def has_grown(self, call: OpenCall) -> None:
        """The call has places for tokens to come."""
        self._full[self._num_steps + self._room(self._rows[call].feed)].append(call)

    def look_at(self, call: OpenCall) -> None:
        """The call may be over when the next step is."""
        self._ending[self._num_steps + 1].append(call)

    def form(self) -> DecodeRows:
        """The rows of the next step."""
        if not self._rows:
            self._columns, self.shown = _Columns(), ()
            return NO_DECODES
        columns = self._columns
        if self._is_changed:
            columns = self._make_columns()
        return DecodeRows(
            columns.block_ids, columns.kv_lens, columns.positions, columns.samplings, columns.generated, self._sampled,
            self._num_steps,
        )  # fmt: skip

    def take(self, result: DecodeResult) -> list[tuple[OpenCall, ErrorInfo | None]]:
        """Keeps what the step sampled. Returns the calls that are over, with what they failed with."""
        self._num_steps += 1
        columns, self._sampled = self._columns, result.token_ids
        deque(map(list.append, columns.tokens, result.token_ids), maxlen=0)
        deque(map(list.append, columns.logprobs, result.logprobs), maxlen=0)
        over: dict[OpenCall, ErrorInfo | None] = {}
        for place, error in result.errors.items():
            columns.feeds[place].take_back()
            over[columns.calls[place]] = error
        ending = [*self._stopped(result.token_ids), *self._matching, *self._ending.pop(self._num_steps, ())]
        for call in dict.fromkeys(ending):
            row = self._rows.get(call)
            if row is not None and call not in over and row.feed.has_ended():
                over[call] = None
        return list(over.items())

    def _stopped(self, tokens: Sequence[int]) -> Iterable[OpenCall]:
        if self._stop_tokens.isdisjoint(tokens):
            return ()
        columns = self._columns
        return [
            call
            for call, stop_tokens, token in zip(columns.calls, columns.stop_tokens, tokens, strict=True)
            if token in stop_tokens
        ]

    def _make_columns(self) -> _Columns:
        columns = self._columns = _Columns(*zip(*self._rows.values(), strict=True))
        self._is_changed = False
        self._sampled = [tokens[-1] for tokens in columns.tokens]
        self._stop_tokens = frozenset().union(*set(columns.stop_tokens))
        self._matching = [call for call, feed in zip(columns.calls, columns.feeds, strict=True) if feed.has_stops]
        self.shown = [one for one in zip(columns.calls, columns.feeds, strict=True) if one[1].is_shown]
        return columns

    def _room(self, feed: SegmentFeed) -> int:
        """Tokens for which there is a place."""
        return len(feed.block_ids) * self._size - feed.kv_len
