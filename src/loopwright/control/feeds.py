"""Owns how far one forward has come: which inputs ran, in which chunks, with what results. Never chooses when it runs.

Made when a call is issued, asked by the scheduler for rows, advanced by the controller with what came of them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from loopwright.control.page_content import PageKey
from loopwright.control.row_views import RowView
from loopwright.core.batch import ForwardRow, RowResult, Sampled
from loopwright.core.calls import DistributionRequest, ForwardText, Sampling, Visibility
from loopwright.core.errors import BadRequest
from loopwright.core.grammars import CompiledGrammar, HeldText
from loopwright.core.ids import BlockId, SlotId
from loopwright.core.results import Distribution, Forwarded

if TYPE_CHECKING:
    from loopwright.core.samplers import SamplerRun


class Feed:
    """Inputs of one call on their way into KV, cut into chunks as the scheduler's budget asks.

    A mask holds for KV places, which chunks do not move; a distribution's index is of the inputs, so each chunk
    answers the requests whose index it holds. Outputs are the hidden states of the last inputs. Drafts and the input
    before them stay in one row: what is sampled at each decides whether the next one counts."""

    __slots__ = (
        "_allowed_bits",
        "_are_drafts_forced",
        "_distributions",
        "_found",
        "_generated",
        "_has_run_many",
        "_held",
        "_is_divisible",
        "_is_going_on",
        "_kv_len",
        "_mask",
        "_num_ahead",
        "_num_drafts",
        "_num_in_row",
        "_num_run",
        "_output_slots",
        "_picked",
        "_picked_ahead",
        "_positions",
        "_sample_position",
        "_sampler",
        "_sampling",
        "_slots",
        "_tokens",
        "block_ids",
        "is_steady",
        "num_cached",
        "num_inputs",
        "num_recorded",
        "sampled",
        "start_kv_len",
        "texts",
        "view",
    )  # fmt: skip

    def __init__(
        self,
        *,
        kv_len: int,
        tokens: Sequence[int] = (),
        positions: Sequence[int] = (),
        input_slots: Sequence[SlotId] = (),
        output_slots: Sequence[SlotId] = (),
        mask: Sequence[Visibility] | None = None,
        distributions: Sequence[DistributionRequest] = (),
        sampling: Sampling | None = None,
        num_drafts: int = 0,
        held: HeldText | None = None,
        view: RowView | None = None,
    ) -> None:
        self.start_kv_len = self._kv_len = kv_len
        self.block_ids: list[BlockId] = []  # grows while the call runs; rows refer to this very list
        self.num_inputs = len(tokens) or len(input_slots)
        # An input that is also an output must have been read by the whole row before it is written.
        self.is_steady = False  # a segment that has one token in each step and nothing special: it is in a DecodeGroup
        self._is_divisible = set(input_slots).isdisjoint(output_slots)
        self.view = view  # if not all that is cached is seen
        self.sampled: Sequence[Sampled] = ()  # by the row that ran last
        self._tokens, self._positions, self._slots, self._output_slots = tokens, positions, input_slots, output_slots
        self._mask, self._distributions, self._sampling = mask, distributions, sampling
        self._sample_position = positions[-1] + 1 if positions else 0
        self._num_drafts = num_drafts
        self._are_drafts_forced = False
        self._held = held
        self._allowed_bits: bytes | None = None  # of the token after the last input
        self._generated: Sequence[int] = ()  # what penalties count beside the lists of `sampling`
        self.texts: Sequence[tuple[int, int] | None] = ()  # of each input slot: the token and position in it, if known
        self._sampler: SamplerRun | None = None  # chooses the token after the last input
        self._num_run = self._num_in_row = 0
        self._num_ahead = 0  # inputs of a chunk behind the row that runs
        self._has_run_many = False
        self._is_going_on = False  # the last input is that of a call of its own
        self.num_cached = 0  # inputs whose KV was there before the call
        self.num_recorded = kv_len  # the KV place up to which the content of pages is noted
        self._found: dict[int, Distribution] = {}  # by place in `distributions`
        self._picked: Sequence[int] = ()  # the requests that the running row answers
        self._picked_ahead: Sequence[int] = ()

    @property
    def kv_len(self) -> int:
        """Tokens that its pages hold."""
        return self._kv_len

    @property
    def num_left(self) -> int:
        """Inputs that have not run."""
        return self.num_inputs - self._num_run

    @property
    def num_prompt(self) -> int:
        """Inputs that somebody gave it to run together; a single one goes on with what was sampled."""
        return self.num_inputs if self.num_inputs > 1 and not self._is_going_on else 0

    @property
    def may_go_on(self) -> bool:
        """Whether, once it is through, one more token may follow as part of it: it is the plain text of such calls."""
        return self._is_plain and self.num_left == 0 and (self._is_going_on or self.num_inputs == 1)

    @property
    def is_paused(self) -> bool:
        """Whether it must not run now, though nothing that it waits for is control's."""
        return False

    @property
    def is_chunkable(self) -> bool:
        """Whether a row may hold less than all that is left."""
        return self._is_divisible and self.num_left > self._num_drafts + 1

    @property
    def has_run_many(self) -> bool:
        """Whether the row that ran last had more than one input."""
        return self._has_run_many

    @property
    def num_skippable(self) -> int:
        """First inputs that need not run if their KV is there: no answer depends on their hidden states."""
        if not self._is_plain or self._num_run:
            return 0
        indices = (one.index if one.index >= 0 else self.num_inputs - 1 for one in self._distributions)
        return min(self.num_inputs - self._num_drafts - 1, *indices, self.num_inputs)

    @property
    def num_final(self) -> int:
        """The KV place up to which what it ran will not be written again, whatever comes."""
        return self.kv_len

    def ask(self, call: ForwardText) -> None:
        """What a call asks that goes on where this feed, which is through, has ended."""
        self._distributions, self._sampling = call.distributions, call.sampling

    def go_on(self, token: int, position: int) -> None:
        """Takes the one input of such a call."""
        if not self._is_going_on:
            self._tokens, self._positions, self._is_going_on = [*self._tokens], [*self._positions], True
        self._tokens.append(token)  # type: ignore[attr-defined]
        self._positions.append(position)  # type: ignore[attr-defined]
        self.num_inputs += 1
        self.num_cached = 0
        self._sample_position = position + 1
        self.sampled = ()

    @property
    def is_going_on(self) -> bool:
        """Whether its last input is that of a call of its own, with one distribution to find and nothing to sample."""
        return self._is_going_on and len(self._distributions) == 1 and self._sampling is None

    def row_going_on(self) -> ForwardRow:
        """As `next_row`, if it `is_going_on`."""
        self._num_in_row, self._picked = 1, _FIRST
        return ForwardRow(
            self.block_ids, self._kv_len, self._positions[-1:], self._tokens[-1:], (), None, (),
            self._distributions, None, self._sample_position,
        )  # fmt: skip

    def has_gone_on(self) -> int:
        """As `advance`, of such a row, whose distribution is told as it is. Returns the tokens that its pages hold."""
        self._num_in_row, self._picked = 0, ()
        self._has_run_many = False
        self._num_run += 1
        self._kv_len += 1
        return self._kv_len

    def last_input(self) -> tuple[int, int]:
        """Its token and position."""
        return self._tokens[-1], self._positions[-1]

    def follow(self, grammar: CompiledGrammar) -> None:
        """Holds what follows the last input to a grammar; before the first row. Raises LimitExceeded, BadRequest."""
        assert self._held is not None
        state = grammar.start()
        if (place := state.take(self._held.text)) < len(self._held.text):
            token_id = self._held.text[place]
            raise BadRequest(
                f"held.text: the grammar does not allow token {token_id} in place {place}", field="held.text"
            )
        allowed = self._held.stop_tokens if state.is_over else _ids(state.allowed_bits(self._held.stop_tokens))
        if not allowed:
            raise BadRequest("held: the text is whole, and no stop token is given", field="held.stop_tokens")
        if self._sampling is not None:
            self._sampling = msgspec.structs.replace(self._sampling, allowed=allowed)
        self._distributions = [
            msgspec.structs.replace(one, allowed=allowed) if one.index in (-1, self.num_inputs - 1) else one
            for one in self._distributions
        ]

    def page_keys(self, block_size: int, num_pages: int) -> list[PageKey]:
        """The first inputs as full pages."""
        starts = range(0, num_pages * block_size, block_size)
        return [
            (tuple(self._tokens[at : at + block_size]), tuple(self._positions[at : at + block_size])) for at in starts
        ]

    def skip(self, num_inputs: int) -> None:
        """Leaves out first inputs, whose KV is there."""
        assert num_inputs <= self.num_skippable
        self._num_run += num_inputs
        self._kv_len += num_inputs
        self.num_cached = num_inputs
        self.num_recorded = self.kv_len

    def unrecorded(self, end: int) -> tuple[Sequence[int], Sequence[int]]:
        """Tokens and positions that ran at KV places num_recorded … end - 1; none if they do not say all."""
        if self._mask is not None or self.view is not None or None in self.texts:
            return (), ()
        first, last = self.num_recorded - self.start_kv_len, end - self.start_kv_len
        if self._slots:
            texts = [text for text in self.texts[first:last] if text is not None]
            return [token for token, _ in texts], [position for _, position in texts]
        return self._tokens[first:last], self._positions[first:last]

    @property
    def num_beyond(self) -> int:
        """Inputs that are in no row yet; while one runs."""
        return self.num_left - self._num_in_row - self._num_ahead

    @property
    def is_through(self) -> bool:
        """Whether the row that was made last leaves nothing to run."""
        return self.num_beyond == 0

    @property
    def is_last_row(self) -> bool:
        """As `is_through`, and the row has no drafts: those may be rejected."""
        return self.is_through and not self._num_drafts

    @property
    def _is_plain(self) -> bool:
        """Whether each input is a token that sees all that lies before it."""
        return not self._slots and self._mask is None and self.view is None

    def next_row(self, max_tokens: int) -> ForwardRow:
        """The next chunk, of at most `max_tokens` inputs, as a row that will run."""
        row = self._next_row(max_tokens)
        return row if self.view is None else self.view.of(row)

    def chunk_ahead(self, max_tokens: int) -> ForwardRow | None:
        """The chunk behind the one that runs, of which it needs nothing but that it runs before; None if what may not
        be cut is too long. For a feed that sees all that is cached."""
        assert self.view is None, "what leaves a window is known behind the chunk"
        num_left = self.num_beyond
        num_taken = num_left if num_left <= max_tokens else min(max_tokens, num_left - self._num_drafts - 1)
        if num_taken <= 0:
            return None
        start = self._num_run + self._num_in_row
        self._num_ahead, self._picked_ahead = num_taken, self._picks(start, start + num_taken)
        return self._chunk(start, start + num_taken, self._picked_ahead)

    def advance(self, result: RowResult) -> bool:
        """Takes what came of the row. True when the call is over."""
        picked, self._picked, self._picked_ahead = self._picked, self._picked_ahead, ()
        self._kv_len += self._num_in_row
        self._num_run += self._num_in_row
        self._has_run_many = self._num_in_row > 1
        self._num_in_row, self._num_ahead = self._num_ahead, 0
        if picked:
            self._found.update(zip(picked, result.distributions, strict=True))
        self.sampled = result.sampled
        if self._num_run < self.num_inputs:
            return False
        if self._num_drafts:
            self._kv_len -= self._num_drafts + 1 - len(self.sampled)
        return True

    @property
    def num_drafts(self) -> int:
        """Of the inputs, the last ones that may be rejected."""
        return self._num_drafts

    def result(self, num_pages: int, draft_cost: float | None = None) -> Forwarded:
        """What a forward that is over completes with."""
        found = RowResult(self.sampled, [self._found[place] for place in range(len(self._distributions))])
        return forwarded(found, self._sampling, self.kv_len, num_pages, self.num_cached, draft_cost)

    def _next_row(self, max_tokens: int) -> ForwardRow:
        if self._is_going_on:
            self._num_in_row, self._picked = 1, range(len(self._distributions))
            return ForwardRow(
                self.block_ids, self._kv_len, self._positions[-1:], self._tokens[-1:], (), None, (),
                self._distributions, self._sampling, self._sample_position,
            )  # fmt: skip
        self._num_in_row = min(max_tokens, self.num_left)
        if self._num_in_row < self.num_left:
            self._num_in_row = min(self._num_in_row, self.num_left - self._num_drafts - 1)
        if self._num_in_row < self.num_inputs:
            self._picked = self._picks(self._num_run, self._num_run + self._num_in_row)
            return self._chunk(self._num_run, self._num_run + self._num_in_row, self._picked)
        self._picked = range(len(self._distributions))
        return ForwardRow(
            self.block_ids, self.kv_len, self._positions, self._tokens, self._slots, self._mask, self._output_slots,
            self._distributions, self._sampling, self._sample_position, self._num_drafts, self._generated,
            self._are_drafts_forced, self._allowed_bits, self._sampler,
        )  # fmt: skip

    def _picks(self, start: int, end: int) -> Sequence[int]:
        """The requests that a chunk answers."""
        return [place for place in range(len(self._distributions)) if start <= self._index(place) < end]

    def _index(self, place: int) -> int:
        """The input that a request is about."""
        index = self._distributions[place].index
        return index if index >= 0 else self.num_inputs - 1

    def _chunk(self, start: int, end: int, picked: Sequence[int]) -> ForwardRow:
        first_output = self.num_inputs - len(self._output_slots)
        is_last = end == self.num_inputs
        return ForwardRow(
            block_ids=self.block_ids,
            kv_len=self.kv_len + start - self._num_run,
            positions=self._positions[start:end],
            token_ids=self._tokens[start:end],
            input_slots=self._slots[start:end],
            mask=None if self._mask is None else self._mask[start:end],
            output_slots=self._output_slots[max(0, start - first_output) : max(0, end - first_output)],
            distributions=[_moved(self._distributions[place], self._index(place) - start) for place in picked],
            sampling=self._sampling if is_last else None,
            sample_position=self._sample_position if is_last else 0,
            num_drafts=self._num_drafts if is_last else 0,
            generated=self._generated if is_last else (),
            are_drafts_forced=self._are_drafts_forced,
            allowed_bits=self._allowed_bits if is_last else None,
            sampler=self._sampler if is_last else None,
        )


def forwarded(
    row: RowResult,
    sampling: Sampling | None,
    kv_len: int = 0,
    num_pages: int = 0,
    cached_tokens: int = 0,
    draft_cost: float | None = None,
) -> Forwarded:
    """What a row or a head completes with."""
    return Forwarded(
        kv_len=kv_len,
        num_pages=num_pages,
        distributions=tuple(row.distributions),
        token=row.token_id,
        logprob=row.logprob,
        tokens=tuple(one.token_id for one in row.sampled),
        logprobs=tuple(one.logprob for one in row.sampled),
        top_logprobs=tuple(one.top_logprobs for one in row.sampled) if sampling and sampling.top_logprobs else (),
        logprob_kind=None if sampling is None else sampling.logprobs,
        cached_tokens=cached_tokens,
        draft_cost=draft_cost,
    )


def _ids(bits: bytes) -> tuple[int, ...]:
    """The tokens whose bits are set."""
    return tuple(8 * place + bit for place, byte in enumerate(bits) if byte for bit in _BITS[byte])


_FIRST = range(1)
_BITS = [[bit for bit in range(8) if byte >> bit & 1] for byte in range(256)]


def _moved(request: DistributionRequest, index: int) -> DistributionRequest:
    return msgspec.structs.replace(request, index=index)
