"""Owns the segments that have a row of one token in every step, as columns that stay from step to step.

Never admits one. A step with the rows of the one before costs only what was sampled: places and positions follow from
the number of steps, and what a row needs once in a while, a page or its end by length, has a step at which it is due.
Used by the scheduler, which says who joins, and by the controller, which brings what came of the rows.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from loopwright.control.members import Members, Row
from loopwright.control.ordering import OpenCall
from loopwright.control.reading import Reading
from loopwright.control.segments import SegmentFeed
from loopwright.control.watching import WatchedFeed
from loopwright.core.batch import NO_DECODES, DecodeResult, DecodeRows
from loopwright.core.calls import Generate
from loopwright.core.errors import ErrorInfo
from loopwright.core.ids import RunId


class Over(NamedTuple):
    """A call that the step which is being taken ends: with what it failed, and whether its last token counts."""

    call: OpenCall
    error: ErrorInfo | None = None
    has_token: bool = True


class DecodeStep:
    """The group's rows in one step."""

    __slots__ = ("members", "rows", "wasted")

    def __init__(self, members: Members, rows: DecodeRows = NO_DECODES) -> None:
        self.members, self.rows = members, rows
        self.wasted: list[OpenCall] = []  # they were over with the step before

    def __len__(self) -> int:
        return len(self.members.columns.calls)

    @property
    def calls(self) -> Sequence[OpenCall]:
        return self.members.columns.calls

    @property
    def run_ids(self) -> Sequence[RunId]:
        """Whose rows count: a run has as many entries as rows."""
        columns = self.members.columns
        if not self.wasted:
            return columns.run_ids
        wasted = set(self.wasted)
        return [one for one, call in zip(columns.run_ids, columns.calls, strict=True) if call not in wasted]

    @property
    def shown(self) -> Sequence[OpenCall]:
        """Who wants to see what the step sampled, and reads alone."""
        return self.members.shown

    @property
    def readings(self) -> Sequence[Reading]:
        """Those who read for many."""
        return self.members.readings

    def has(self, call: OpenCall) -> bool:
        """Whether the call has a row in it."""
        return self.members.has(call)


NO_DECODE_STEP = DecodeStep(Members())


class DecodeGroup:
    """Rows join and leave between steps. Implements `ordering.Decoding`.

    A member's feed is steady, so its tokens say how far it is: nothing else of it changes from step to step. A step may
    be formed ahead, while the one before runs: then how far a row is follows from the steps that were formed."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._num_formed = self._num_taken = 0  # steps
        self._running: deque[DecodeStep] = deque()
        self._rows: dict[OpenCall, Row] = {}
        self._is_changed = False  # since the columns were made
        self._members = Members()  # of the step that was formed last
        self._full: defaultdict[int, list[OpenCall]] = defaultdict(list)  # who may need a page, by the steps before
        self._ending: defaultdict[int, list[OpenCall]] = defaultdict(list)  # who may be over, by the steps until then
        self._watched: defaultdict[int, list[OpenCall]] = defaultdict(
            list
        )  # whose program may hold it, by the steps before
        self._resting: dict[OpenCall, int] = {}  # who is held, and the steps until its last row has run

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def calls(self) -> Collection[OpenCall]:
        """Those with a row in the next step, in the order of their rows."""
        return self._rows.keys()

    @property
    def is_running(self) -> bool:
        """Whether a step of the group runs."""
        return bool(self._running)

    def join(self, call: OpenCall, num_unknown: int = 0) -> None:
        """Takes a call whose feed has a place for its next token and is steady, or will be when the one token is here
        that the running step samples."""
        feed, generate = call.work, call.call
        assert isinstance(feed, SegmentFeed)
        assert isinstance(generate, Generate)
        assert feed.is_steady or num_unknown
        formed, has_penalties = self._num_formed, generate.sampling.has_penalties
        num_tokens = len(feed.tokens) + num_unknown
        self._rows[call] = Row(
            call, feed, call.run_id, feed.block_ids, feed.kv_len_at(num_tokens) - formed,
            feed.position + num_unknown - formed, generate.sampling, feed.tokens if has_penalties else (),
            num_tokens - 1 - formed, feed.tokens, feed.logprobs, feed.stop_tokens,
            call.inbox.reader if feed.shows_tokens_alone else None,
            formed, formed + max(1, feed.max_more(num_unknown)), feed.sampler,
        )  # fmt: skip
        call.decoding = self
        self._is_changed = True
        self._ending[self._rows[call].end].append(call)
        self.has_grown(call)
        if isinstance(feed, WatchedFeed):
            self._watched[formed + feed.room(num_tokens)].append(call)

    def leave(self, call: OpenCall) -> None:
        """The call is none of the group's any more; if a step runs that has a row of it, that row is wasted."""
        if self._rows.pop(call, None) is not None:
            self._is_changed = True
            if self._running:
                self._running[-1].wasted.append(call)
        self._resting.pop(call, None)
        call.decoding = None

    def withdraw(self, call: OpenCall) -> None:
        """As `leave`, for a call that goes on elsewhere, or may: rows of it in steps that run do not count."""
        for step in self._running:
            if step.has(call) and call not in step.wasted:
                step.wasted.append(call)
        if self._rows.pop(call, None) is not None:
            self._is_changed = True
        self._resting.pop(call, None)
        call.decoding = None
        if isinstance(call.work, WatchedFeed):
            call.work.leave_group()

    def end(self, call: OpenCall) -> None:
        """The call has a row in the steps that run, and in none after them."""
        if self._rows.pop(call, None) is not None:
            self._is_changed = True

    def rest_held(self) -> list[OpenCall]:
        """Has those leave whose programs let them have no more tokens than what runs samples. Returns those with no row
        in what runs; the others, when it is over, `take_rested` has."""
        gone = []
        for call in self._watched.pop(self._num_formed, ()):
            row = self._rows.get(call)
            if row is None:
                continue
            assert isinstance(row.feed, WatchedFeed)
            room = row.feed.room(row.num_generated + 1 + self._num_formed)
            if room > 0:
                self._watched[self._num_formed + room].append(call)
                continue
            self.end(call)
            if self._running and row.start < self._num_formed:
                self._resting[call] = self._num_formed
            else:
                call.decoding = None
                gone.append(call)
        return gone

    def take_rested(self) -> list[OpenCall]:
        """Those of `rest_held` whose last row has run. They are none of the group's any more."""
        rested = [call for call, num_steps in self._resting.items() if num_steps <= self._num_taken]
        for call in rested:
            del self._resting[call]
            call.decoding = None
        return [call for call in rested if not call.is_over]

    def dissolve(self) -> list[OpenCall]:
        """Has all leave; who they were."""
        calls = list(self._rows)
        for call in calls:
            self.leave(call)
        return calls

    def end_known(self) -> None:
        """Ends those that will be over by their length with what runs."""
        for call in self._ending.get(self._num_formed, ()):
            if call in self._rows and self._rows[call].end == self._num_formed:
                self.end(call)

    def take_full(self) -> list[OpenCall]:
        """Those that have no place for their next token. Each leaves, or `has_grown`."""
        due, rows = self._full.pop(self._num_formed, ()), self._rows
        return [call for call in dict.fromkeys(due) if call in rows and self._room(call) == 0]

    def has_grown(self, call: OpenCall) -> None:
        """The call has places for tokens to come. One that has none is among the next `take_full`."""
        self._full[self._num_formed + self._room(call)].append(call)

    def have_grown(self, calls: Sequence[OpenCall]) -> None:
        """As `has_grown`, of those that had no place and have a page more."""
        if calls:
            self._full[self._num_formed + self._size] += calls

    def look_at(self, call: OpenCall) -> None:
        """The call may be over when the next step is."""
        self._ending[self._num_taken + 1].append(call)

    def form(self, running: Sequence[OpenCall] | None = None) -> DecodeStep:
        """The rows of the next step. `running` are the calls of the rows of the one that runs, if one does."""
        if self._is_changed or not self._rows:
            self._members = Members.of(self._rows.values(), self._members) if self._rows else Members()
            self._is_changed = False
        step = DecodeStep(self._members, self._form_rows(running) if self._rows else NO_DECODES)
        self._num_formed += 1
        self._running.append(step)
        return step

    def take(self, step: DecodeStep, result: DecodeResult) -> list[Over]:
        """Keeps what the step sampled. Returns the calls that are over."""
        ended = self._running.popleft()
        assert ended is step, "steps end in their order"
        self._num_taken += 1
        columns = step.members.columns
        step.members.keep(result)
        over: dict[OpenCall, Over] = {}
        for place, error in result.errors.items():
            call, feed = columns.calls[place], columns.feeds[place]
            if self._counts(call, step):
                feed.take_back()
                over[call] = Over(call, error, has_token=False)
        for call, feed in _unsure(step, result):
            if call not in over and self._counts(call, step):
                feed.end_unsure()
                over[call] = Over(call, has_token=False)
        ending = [*_stopped(step, result), *step.members.matching, *self._ending.pop(self._num_taken, ())]
        for call in dict.fromkeys(ending):
            if call not in over and self._had_row(call, step) and _has_ended(call):
                over[call] = Over(call)
        return list(over.values())

    def _form_rows(self, running: Sequence[OpenCall] | None) -> DecodeRows:
        members, columns = self._members, self._members.columns
        tokens, sources = members.sampled, self._sources(running)
        if sources:
            tokens = members.unknown if isinstance(sources, range) else _known(members.sampled, sources)
        return DecodeRows(
            columns.block_ids, columns.kv_lens, columns.positions, columns.samplings, columns.generated, tokens,
            self._num_formed, columns.num_generated, sources, members.samplers,
            () if isinstance(sources, range) else members.states, members.unsure,
        )  # fmt: skip

    def _counts(self, call: OpenCall, step: DecodeStep) -> bool:
        """Whether what the step, which is being taken, did for the call is wanted: it has not left."""
        return call.decoding is self and call not in step.wasted

    def _had_row(self, call: OpenCall, step: DecodeStep) -> bool:
        """Whether the call, of those that may be over, had a row that counts in the step, which is being taken. One
        that has left by now may have been in a later step alone."""
        row = self._rows.get(call)
        return self._counts(call, step) and (step.has(call) if row is None else row.start < self._num_taken)

    def _sources(self, running: Sequence[OpenCall] | None) -> Sequence[int]:
        if running is None:
            return ()
        if self._running and self._running[-1].members is self._members:
            return range(len(self._rows))
        places = {call: place for place, call in enumerate(running)}
        for call in self._running[-1].wasted if self._running else ():  # what it has there does not count
            places.pop(call, None)
        return [places.get(call, -1) for call in self._rows]

    def _room(self, call: OpenCall) -> int:
        """Tokens for which there is a place."""
        row = self._rows[call]
        return len(row.block_ids) * self._size - row.kv_len - self._num_formed


def _known(sampled: Sequence[int], sources: Sequence[int]) -> Sequence[int]:
    return [0 if source >= 0 else token for token, source in zip(sampled, sources, strict=True)]


def _stopped(step: DecodeStep, result: DecodeResult) -> Iterable[OpenCall]:
    if step.members.stop_tokens.isdisjoint(result.token_ids):
        return ()
    columns = step.members.columns
    return [
        call
        for call, stop_tokens, token in zip(columns.calls, columns.stop_tokens, result.token_ids, strict=True)
        if token in stop_tokens
    ]


def _unsure(step: DecodeStep, result: DecodeResult) -> Iterable[tuple[OpenCall, SegmentFeed]]:
    members = step.members
    columns = members.columns
    return [
        (columns.calls[place], columns.feeds[place])
        for place, limit, entropy in zip(members.unsure, members.limits, result.entropies, strict=True)
        if entropy > limit
    ]


def _has_ended(call: OpenCall) -> bool:
    assert isinstance(call.work, SegmentFeed)
    return call.work.has_ended()
