"""Owns one segment: its tokens, when it ends and what is kept of it. Never chooses a token or a page.

Made when a Generate is issued; from then on used as every feed is, by the scheduler and the controller.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Literal, TypeAlias

from loopwright.control.feeds import Feed
from loopwright.control.stops import Stops
from loopwright.core.batch import ENTROPY, ForwardRow, RowResult, Sampled
from loopwright.core.calls import MAX_DRAFTS, Generate
from loopwright.core.grammars import CompiledGrammar, GrammarState
from loopwright.core.ids import PageName
from loopwright.core.late_bits import LateBits
from loopwright.core.results import Progress, Segment, StopReason, TopLogprobs
from loopwright.core.samplers import SamplerRun, SamplerState, StateValue, TracedSampler

Outlook: TypeAlias = Literal["over", "steady", "row", "paused", "unknown"]
"""Of a segment while a row of it runs: it is over by its length; its next row is one of a decode group, or one of its
own; it waits for its program; or that depends on what the row samples."""

Kept: TypeAlias = tuple[Sequence[TopLogprobs], int]
"""What came of a token beside it, in what its step had of all rows, and the place there: it is made when it is read."""

Carried: TypeAlias = tuple[Sequence[SamplerState | None], int]
"""Likewise, what a sampler has for the next token; None: that is the first."""

_BEGINNING: Carried = ((None,), 0)
_NO_STATES = deque[Carried](maxlen=0)


class SegmentFeed(Feed):
    """A feed that, once its prompt has run, feeds each sampled token back, until something ends it.

    Token j is sampled to stand at position last + 1 + j, where last is the prompt's last position, and runs there in
    the next step; so the last sampled token never runs. At least one token is sampled, even when the prompt fills the
    context; a further one only if its position is below `max_context`.

    Under a grammar each row also says what may be sampled. Tokens that the grammar forces after the last input join the
    row as drafts that no other token contests: they need no row of their own, and have real log-probabilities. None of
    them ever ends the segment: one that would is left to be sampled, where nothing else is allowed but its like."""

    __slots__ = (
        "_call", "_chain", "_grammar", "_has_row_ahead", "_is_choice", "_late", "_max_context", "_may_force",
        "_num_prompt", "_reason", "_state", "_stops", "carried", "freed",
        "has_stops", "is_interrupted", "is_shown", "logprobs", "num_allowed", "stop_tokens", "tokens", "tops",
    )  # fmt: skip

    def __init__(self, call: Generate, token_bytes: Sequence[bytes], max_context: int) -> None:
        super().__init__(
            kv_len=call.kv_len,
            tokens=call.tokens,
            positions=call.positions,
            sampling=call.sampling,
            distributions=() if call.stop_entropy is None else (ENTROPY,),
        )
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.tops: list[Kept] = []  # of each token, only if asked for
        self.carried: deque[Carried] = _NO_STATES  # behind the last token, with a sampler
        self.num_allowed: tuple[int, ...] = ()  # for each of `sampled`; only if asked for, and if not all were allowed
        if call.sampling.has_penalties:
            self._generated = self.tokens  # rows refer to this very list
        self.freed: list[PageName] = []  # of pages that have left its window, in this order
        self.is_interrupted = False  # set by the controller; the segment ends at its next token boundary
        self._call = call
        self._num_prompt = len(call.tokens)
        self.stop_tokens = frozenset(call.stop_tokens)
        self.has_stops, self.is_shown = bool(call.stop), call.progress
        self._max_context = max_context
        self._stops = Stops(call, token_bytes) if call.stop else None
        self._reason: StopReason = "interrupted"
        self._grammar: CompiledGrammar | None = None
        self._state: GrammarState | None = None
        self._may_force = self._is_choice = True
        self._has_row_ahead = False  # behind the one whose result comes next
        self._late: LateBits | None = None  # of the row ahead, until they are given
        self._chain: list[int] | None = None  # forced tokens that are to come one by one; empty: now one is chosen
        if call.sampler is not None:
            self._sampler = SamplerRun(_interned(call.sampler), call.sampler_state)
            self.carried = deque((_BEGINNING,), maxlen=None if call.watch else 1)

    @property
    def num_prompt(self) -> int:
        return self._num_prompt

    def follow(self, grammar: CompiledGrammar) -> None:
        """Holds the text to a grammar; before the first row. Raises LimitExceeded, BadRequest."""
        self._grammar, self._state = grammar, grammar.start()
        self._continue(self._call.tokens, self._call.positions)

    def advance(self, result: RowResult) -> bool:
        """Takes what came of the row. True when the segment is over. Raises LimitExceeded, BadRequest when its grammar
        cannot go on."""
        assert not self.is_steady, "its rows are those of a group"
        if not super().advance(result):
            return self.is_interrupted
        assert self.sampled, "the last row of a prompt asks for a token"
        reason: StopReason | None = None
        is_unsure = self._is_unsure()
        if is_unsure:
            self.sampled = self.sampled[:-1]
        if self._call.explain:
            self.num_allowed = self._count_allowed()
        if self._sampler is not None:
            self.carried.append(((result.sampler_state,), 0))
        for place, one in enumerate(self.sampled, start=1 - is_unsure - len(self.sampled)):
            assert reason is None, "a forced token ends nothing"
            self._keep(one)
            reason = self._end_reason(one.token_id, self._sample_position + place)
        if (reason := "entropy" if is_unsure else self._grammar_reason(reason)) is not None:
            self._reason = reason
            return True
        self._continue((self.tokens[-1],), (self._sample_position,))
        if self._has_row_ahead:
            self._has_row_ahead, self._num_in_row, self._picked = False, 1, range(len(self._distributions))
            self._give_late(self._allowed_bits)
        return self.is_interrupted

    def give_up_ahead(self) -> None:
        """Nobody looks at what the row ahead gives: the engine need not wait for what it may choose."""
        self._give_late(None)

    @property
    def kv_len(self) -> int:
        """As of every feed; of a steady one, all but the last of its tokens."""
        return self._kv_len if not self.is_steady else self.kv_len_at(len(self.tokens))

    def kv_len_at(self, num_tokens: int) -> int:
        """Of a steady one with so many tokens."""
        return self.start_kv_len + self._num_prompt + num_tokens - 1

    @property
    def position(self) -> int:
        """Where the last token stands."""
        return self._call.positions[-1] + len(self.tokens)

    def max_more(self, num_unknown: int = 0) -> int:
        """Tokens after which the segment is over by its length, beside those that are being sampled."""
        num_left = min(self._call.max_tokens - len(self.tokens), self._max_context - 1 - self.position)
        return num_left - num_unknown

    @property
    def outlook(self) -> Outlook:
        """What it does next, unless the token ends it that the row which runs samples."""
        if not self.is_through or self.view is not None:
            return "unknown"
        if self._state is not None and self._num_drafts:
            return "unknown"  # what drafts were is not among the tokens yet
        if self.max_more(1) <= 0:
            return "over"
        return "steady" if self._state is None else "row"

    @property
    def kv_len_next(self) -> int:
        """The KV length when what runs is over."""
        return self.kv_len_at(len(self.tokens) + 1) if self.is_steady else self._kv_len + self._num_in_row

    def row_ahead(self, source: int) -> ForwardRow:
        """The row behind the one that runs, whose place in its step is `source`; for the outlook "row"."""
        self._has_row_ahead = True
        sampler, position = self._sampler, self._sample_position
        self._late = None if self._state is None else LateBits()
        return ForwardRow(
            block_ids=self.block_ids,
            kv_len=self.kv_len_next,
            positions=(position,),
            token_ids=(0,),
            distributions=self._distributions,
            sampling=self._call.sampling,  # not what a veto has left of it for the row that runs
            sample_position=position + 1,
            generated=tuple(self._generated),  # the list may have one more when the row runs
            sampler=None if sampler is None else SamplerRun(sampler.graph, sampler.initial),
            source=source,
            late_bits=self._late,
        )

    def has_ended(self) -> bool:
        """Whether a steady segment, which has just got its last token, is over. To be asked once for each token that
        may be the last; with stop strings, for each token."""
        if (reason := self._end_reason(self.tokens[-1], self.position)) is None:
            return self.is_interrupted
        self._reason = reason
        return True

    @property
    def shows_tokens_alone(self) -> bool:
        """Whether its program wants to see each token, and nothing beside that which others have too."""
        return self.is_shown and self._call.watch is None and not self._call.sampling.top_logprobs

    @property
    def listing(self) -> list[Kept] | None:
        """Where a decode group puts what came of each token beside it, if that is asked for."""
        return self.tops if self._call.sampling.top_logprobs else None

    @property
    def sampler(self) -> SamplerRun | None:
        """What chooses its tokens; what that carries is in `carried`."""
        return None if self._sampler is None else SamplerRun(self._sampler.graph, self._sampler.initial)

    @property
    def stop_entropy(self) -> float | None:
        """It ends before a token in whose place the model's distribution has more."""
        return self._call.stop_entropy

    def take_back(self) -> None:
        """The last token of a steady one does not count: its row failed."""
        del self.tokens[-1], self.logprobs[-1], self.tops[len(self.tokens) :]

    def end_unsure(self) -> None:
        """A steady one is over: it does not take its last token, in whose place the model was too unsure."""
        self._kv_len = self.kv_len
        self.take_back()
        self.is_steady, self._num_run, self._reason = False, self.num_inputs, "entropy"

    @property
    def first_position_left(self) -> int:
        """No token that it runs from now on stands before this, nor can any see what such a token could not."""
        if not self.tokens and self.num_left:
            return min(self._positions[self._num_run :])
        return self.position

    def leave_out(self, blocks: Sequence[int], names: Sequence[PageName], block_size: int) -> None:
        """Blocks of its page list are gone: KV places behind them move up."""
        assert self.view is not None
        self.view.leave_out(blocks)
        gone, num_places = set(blocks), len(blocks) * block_size
        self.block_ids = [block for place, block in enumerate(self.block_ids) if place not in gone]
        place, offset = divmod(self.num_recorded, block_size)
        num_before = sum(block < place for block in blocks)
        self.num_recorded = (place - num_before) * block_size + (0 if place in gone else offset)
        self.start_kv_len -= num_places  # from here on it says only where tokens that have not left would be
        self._kv_len -= num_places
        self.freed += names

    def progress(self) -> Progress | None:
        """The tokens of the step that just ended, if the program asked to see them and there were any."""
        if not self._call.progress or not self.sampled:
            return None
        first, sampling = len(self.tokens) - len(self.sampled), self._call.sampling
        return Progress(
            tuple(self.tokens[first:]),
            tuple(self.logprobs[first:]),
            self.top_logprobs(first),
            logprob_kind=sampling.logprobs,
            num_allowed=self.num_allowed,
        )

    def last_token(self) -> Progress:
        """The same, of a steady one: it has one in each step, and nothing else to tell."""
        tops = self.top_logprobs(len(self.tokens) - 1)
        return Progress((self.tokens[-1],), (self.logprobs[-1],), tops, logprob_kind=self._call.sampling.logprobs)

    def top_logprobs(self, first: int = 0) -> tuple[TopLogprobs, ...]:
        """Of the tokens from the first on; none, if they were not asked for."""
        return tuple([found[place] for found, place in self.tops[first:]])

    def segment(self, num_pages: int) -> Segment:
        """What the segment completes with, ended by the last token or, if by none, interrupted."""
        if self._stops is not None and self._stops.finish():
            self._reason = "stop"
        num_kept, remainder = len(self.tokens), ""
        num_gone = self._call.kv_len - self.start_kv_len  # places that have left its window
        stop: str | int | None = None
        if self._reason == "stop_token":
            num_kept, stop = num_kept - 1, self.tokens[-1]
        elif self._stops is not None and self._stops.match is not None:
            stop = self._stops.match.stop
            num_kept, remainder = self._stops.cut(self.tokens)
        return Segment(
            tokens=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            num_kept=num_kept,
            remainder=remainder,
            reason=self._reason,
            stop=stop,
            kv_len=num_gone + min(self.kv_len, self.start_kv_len + self._num_prompt + num_kept),
            num_pages=num_pages + len(self.freed),
            freed=tuple(self.freed),
            top_logprobs=self.top_logprobs(),
            logprob_kind=self._call.sampling.logprobs,
            sampler_state=self._sampler_state(),
            cached_tokens=self.num_cached,
        )

    def unrecorded(self, end: int) -> tuple[Sequence[int], Sequence[int]]:
        if self.view is not None:
            return (), ()
        start, end = self.num_recorded - self.start_kv_len, end - self.start_kv_len
        prompt, positions = self._call.tokens[start:end], self._call.positions[start:end]
        first = max(start - self._num_prompt, 0)
        num_sampled = max(end - self._num_prompt, 0)
        after_prompt = self._call.positions[-1] + 1
        return (
            (*prompt, *self.tokens[first:num_sampled]),
            (*positions, *range(after_prompt + first, after_prompt + num_sampled)),
        )

    def _sampler_state(self) -> dict[str, StateValue]:
        if self._sampler is None:
            return self._call.sampler_state
        states, place = self.carried[-1]
        state = states[place]
        return self._call.sampler_state if state is None else state.values()

    def _keep(self, one: Sampled) -> None:
        self.tokens.append(one.token_id)
        self.logprobs.append(one.logprob)
        if self._call.sampling.top_logprobs:
            self.tops.append(((one.top_logprobs,), 0))

    def _continue(self, tokens: Sequence[int], positions: Sequence[int]) -> None:
        """Makes the next inputs: these, and what the grammar forces after them."""
        rides = self._state is not None and self._sampler is None and self._may_force and not self._has_row_ahead
        forced = self._forced(positions[-1]) if rides else ()
        first = positions[-1] + 1
        self._tokens = (*tokens, *forced) if forced else tokens
        self._positions = (*positions, *range(first, first + len(forced))) if forced else positions
        self._sample_position = first + len(forced)
        self._num_run, self.num_inputs = 0, len(self._tokens)
        self._num_drafts, self._are_drafts_forced = len(forced), bool(forced)
        self.is_steady = self._state is None and self.view is None
        if self._sampler is not None:
            states, place = self.carried[-1]
            self._sampler = SamplerRun(self._sampler.graph, self._sampler.initial, states[place])
        if self._state is not None:
            self._is_choice = self._call.stop_entropy is None or not self._state.forced()
            self._allowed_bits = self._state.allowed_bits(self.stop_tokens)
            if not rides and self._may_force and (only := self._next_forced(positions[-1])) is not None:
                self._allowed_bits, self._is_choice = (1 << only).to_bytes(len(self._allowed_bits), "little"), False

    def _forced(self, position: int) -> Sequence[int]:
        """What the grammar forces after `position`; it takes them."""
        assert self._state is not None
        forced = self._forced_chain(position) if self._chain is None else self._chain
        self._chain = None
        for token in forced:
            self._state.accept(token)
        return forced

    def _forced_chain(self, position: int) -> list[int]:
        """Up to a token that would end the segment; not taken."""
        assert self._state is not None
        forced: Iterable[int] = self._state.forced()[: self._num_forcible(position)]
        if self._stops is not None:
            forced = self._stops.before_one(forced)
        return list(takewhile(lambda token: token not in self.stop_tokens, forced))

    def _next_forced(self, position: int) -> int | None:
        """The first token that is forced, not taken: a sampler carries state, so it is asked about every token, and a
        row ahead has no room for drafts. Then those of a chain come one by one, and the token behind it is chosen."""
        assert self._state is not None
        if self._sampler is None:
            chain = self._forced_chain(position) if self._chain is None else self._chain
            self._chain = chain[1:] if chain else None
            return chain[0] if chain else None
        forced = self._state.forced()[: min(1, self._num_forcible(position))]
        return forced[0] if forced and forced[0] not in self.stop_tokens else None

    def _give_late(self, bits: bytes | None) -> None:
        if self._late is not None:
            self._late.give(bits)
            self._late = None

    def _num_forcible(self, position: int) -> int:
        num_left = self._call.max_tokens - len(self.tokens) - 1
        return max(0, min(num_left, self._max_context - position - 2, MAX_DRAFTS))

    def _grammar_reason(self, reason: StopReason | None) -> StopReason | None:
        """The reason, now that the grammar has seen the last token too."""
        if self._state is None or reason not in (None, "length"):
            return reason
        self._state.accept(self.tokens[-1])
        return "grammar_end" if self._state.is_over else reason

    def _count_allowed(self) -> tuple[int, ...]:
        """Among how many tokens each of `sampled` was chosen: a grammar's drafts had no rival."""
        if self._allowed_bits is None:
            return ()
        num_choices = int.from_bytes(self._allowed_bits, "little").bit_count()
        return (*(1 for _ in range(self._num_drafts)), num_choices)[: len(self.sampled)]

    def _is_unsure(self) -> bool:
        """Whether the model's distribution in the place of the sampled token has too much entropy to take it."""
        limit = self._call.stop_entropy
        if limit is None or not self._is_choice:
            return False
        entropy = self._found[0].entropy
        assert entropy is not None, "it was asked for"
        return entropy > limit

    def _end_reason(self, token: int, position: int) -> StopReason | None:
        if token in self.stop_tokens:
            return "stop_token"
        if self._stops is not None and self._stops.push(token):
            return "stop"
        if len(self.tokens) == self._call.max_tokens or position + 1 >= self._max_context:
            return "length"
        return None


@lru_cache(maxsize=256)
def _interned(sampler: TracedSampler) -> TracedSampler:
    """One object for equal graphs: the engine puts rows together by it, and compares objects first."""
    return sampler
