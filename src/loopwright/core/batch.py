"""What control sends the engine and what comes back. Never names a run or a program.

Made by control, run by an executor.

Everything here is about blocks and slots: names were resolved when the call was issued. The executor runs the lists of
a batch in the order copies, shifts, embeds, rows, heads: an entry may depend on those of an earlier list, and on none
of its own. Entries are made by the hundred in each step, so they are structs of msgspec: a frozen dataclass of as many
fields takes ten times as long to make.
"""

from collections.abc import Mapping, Sequence

import msgspec

from loopwright.core.calls import DistributionRequest, Sampling, Visibility
from loopwright.core.errors import ErrorInfo
from loopwright.core.ids import BlockId, SlotId
from loopwright.core.late_bits import LateBits
from loopwright.core.results import Distribution, TopLogprobs
from loopwright.core.samplers import SamplerRun, SamplerState


class BlockCopy(msgspec.Struct, frozen=True):
    """Copy the KV of `size` tokens of every layer."""

    source: BlockId
    target: BlockId
    source_offset: int
    target_offset: int
    size: int


class KvShift(msgspec.Struct, frozen=True):
    """Rotate the keys of KV places start … start + size - 1 of `block_ids`, of every layer, `delta` positions on."""

    block_ids: Sequence[BlockId]
    start: int
    size: int
    delta: int


class EmbedRow(msgspec.Struct, frozen=True):
    """Write embeddings and positions into slots; three sequences of equal length."""

    token_ids: Sequence[int]
    positions: Sequence[int]
    slots: Sequence[SlotId]


class ForwardRow(msgspec.Struct, frozen=True):
    """One row of the forward pass: a run of new tokens of one page table.

    Exactly one of `token_ids` and `input_slots` is given. The n new tokens are written at KV places kv_len … kv_len+n-1
    of `block_ids` (16 places a block) and attend to places 0 … their own, or to what `mask` says."""

    block_ids: Sequence[BlockId]
    kv_len: int
    positions: Sequence[int]  # of token_ids; unused with input_slots, whose slots hold positions
    token_ids: Sequence[int] = ()
    input_slots: Sequence[SlotId] = ()
    mask: Sequence[Visibility] | None = None
    output_slots: Sequence[SlotId] = ()  # receive the hidden states of the last len(output_slots) tokens
    distributions: Sequence[DistributionRequest] = ()  # indices are of this row; -1 is its last token
    sampling: Sampling | None = None  # choose the token after the last one
    sample_position: int = 0  # where the chosen token will stand; with the seed, the key of its draw
    num_drafts: int = 0  # the last so many tokens are checked against what is sampled before each of them
    generated: Sequence[int] = ()  # what penalties count beside the lists of `sampling`
    are_drafts_forced: bool = False  # each draft is the only token allowed in its place
    allowed_bits: bytes | None = None  # what may be chosen after the last token: bit i % 8 of byte i // 8 is token i
    sampler: SamplerRun | None = None  # chooses the token after the last one; never beside drafts
    source: int = -1  # if not: the one token is what this row of the batch before samples; see `Batch`
    late_bits: LateBits | None = None  # `allowed_bits` that follow from the source's token: given when that is here

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) or len(self.input_slots)


class DecodeRows(msgspec.Struct, frozen=True):
    """Rows of one token each that only sample the next one, as columns: entry i of each is of row i.

    From one step to the next, the same rows have the same columns, the very same lists, but for what was sampled:
    `num_steps` more tokens stand in the KV of each than when its column entries were made. With `sources`, tokens are
    named by who samples them: see `Batch`."""

    block_ids: Sequence[Sequence[BlockId]]
    kv_lens: Sequence[int]  # when num_steps is 0, and less by what num_steps was when the row came
    positions: Sequence[int]  # likewise, of the input
    samplings: Sequence[Sampling]
    generated: Sequence[Sequence[int]]  # what penalties count beside the lists of `samplings`; the last is the input
    token_ids: Sequence[int]  # of a row with a source, 0
    num_steps: int = 0
    num_generated: Sequence[int] = ()  # the length of `generated` without a source's token; as kv_lens counts
    sources: Sequence[int] = ()  # -1: in `token_ids`; a range from 0 on if each row is that of the step before
    samplers: Sequence[SamplerRun | None] = ()  # if any row has one: what chooses its tokens; no state is in them
    states: Sequence[SamplerState | None] = ()  # beside `samplers`: what they carry, of rows without a source
    unsure: Sequence[int] = ()  # places of rows that want to know the entropy of the model's distribution, too

    def __len__(self) -> int:
        return len(self.token_ids)

    def rows(self) -> list[ForwardRow]:
        """The same, row by row."""
        num = self.num_steps
        columns = (self.block_ids, self.kv_lens, self.positions, self.token_ids, self.samplings, self.generated)
        rows = [
            ForwardRow(
                block_ids, kv_len + num, (position + num,), (token_id,), (), None, (), (), sampling,
                position + num + 1, 0, generated,
            )
            for block_ids, kv_len, position, token_id, sampling, generated in zip(*columns, strict=True)
        ]  # fmt: skip
        for place in self.unsure:
            rows[place] = msgspec.structs.replace(rows[place], distributions=(ENTROPY,))
        for place, sampler in enumerate(self.samplers):
            if sampler is not None:
                state = self.states[place] if place < len(self.states) else None
                mine = SamplerRun(sampler.graph, sampler.initial, state)
                rows[place] = msgspec.structs.replace(rows[place], sampler=mine)
        for place, source in enumerate(self.sources):
            if source >= 0:  # control may add the source's token while this step waits
                known = self.generated[place][: self.num_generated[place] + num]  # a copy, also of nothing yet
                rows[place] = msgspec.structs.replace(rows[place], source=source, generated=known)
        return rows

    @property
    def listing(self) -> list[int]:
        """Places of rows that want to know the most probable tokens, too."""
        return [place for place, one in enumerate(self.samplings) if one.top_logprobs]


ENTROPY = DistributionRequest(k=1, entropy=True)
"""What an `unsure` row asks for, as a row of its own."""

NO_DECODES = DecodeRows((), (), (), (), (), ())


class HeadRow(msgspec.Struct, frozen=True):
    """Distribution or sample from a hidden state that an earlier step left in a slot."""

    slot: SlotId
    distributions: Sequence[DistributionRequest] = ()
    sampling: Sampling | None = None
    sample_position: int = 0


class Batch(msgspec.Struct, frozen=True):
    """What one step runs.

    To an executor whose shape says that steps may be *ahead*, a batch may come while the one before it runs, or waits.
    Then a row that goes on with what that one samples has a *source*: the place of a row among `all_rows` of the batch
    before. What the source samples is the row's one token, whose id stands nowhere. It counts among `generated`, which
    ends before it, and the source's `sampler_state` is that of the row's sampler. If the source fails, or its whole
    batch, the row fails too, and its neighbours do not notice. Control may have heard by then that a text was over with
    its source's token: it leaves such a row's result alone, and gives what the row wrote to others in later batches
    only. The lists that a row refers to may grow while it waits, and do not change otherwise."""

    copies: Sequence[BlockCopy] = ()
    shifts: Sequence[KvShift] = ()
    embeds: Sequence[EmbedRow] = ()
    decodes: DecodeRows = NO_DECODES  # run with `rows`, in one forward pass
    rows: Sequence[ForwardRow] = ()
    heads: Sequence[HeadRow] = ()

    @property
    def num_rows(self) -> int:
        return len(self.decodes) + len(self.rows)

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + sum(row.num_tokens for row in self.rows)

    @property
    def num_long_tokens(self) -> int:
        """Of rows with more than one token."""
        return sum(num for row in self.rows if (num := row.num_tokens) > 1)

    @property
    def num_drafts(self) -> int:
        """Tokens that programs guessed."""
        return sum(row.num_drafts for row in self.rows if not row.are_drafts_forced)

    @property
    def all_rows(self) -> Sequence[ForwardRow]:
        """The decode rows, and behind them the others."""
        return [*self.decodes.rows(), *self.rows]


class Sampled(msgspec.Struct, frozen=True):
    """One sampled token, with log-probabilities of the kind that its Sampling asks for."""

    token_id: int
    logprob: float
    top_logprobs: TopLogprobs = ()


class RowResult(msgspec.Struct, frozen=True):
    """What came of one ForwardRow, HeadRow or KvShift. With `error` (say, NaN logits) only this row failed.

    `sampled` are the accepted drafts and the token after them."""

    sampled: Sequence[Sampled] = ()
    distributions: Sequence[Distribution] = ()
    error: ErrorInfo | None = None
    sampler_state: SamplerState | None = None  # what the row's sampler leaves to the next token

    @property
    def token_id(self) -> int | None:
        """The last sampled token."""
        return self.sampled[-1].token_id if self.sampled else None

    @property
    def logprob(self) -> float | None:
        """Its log-probability."""
        return self.sampled[-1].logprob if self.sampled else None


class DecodeResult(msgspec.Struct, frozen=True):
    """What came of DecodeRows, as columns. Sequences may make their entries when they are asked for."""

    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    errors: Mapping[int, ErrorInfo] = {}  # by row: it failed, and its token means nothing
    tops: Sequence[TopLogprobs] = ()  # of the `listing` rows
    entropies: Sequence[float] = ()  # of the `unsure` rows
    states: Sequence[SamplerState | None] = ()  # of each row, if any has a sampler: what it leaves to the next token

    @classmethod
    def of_rows(cls, rows: DecodeRows, results: Sequence[RowResult]) -> "DecodeResult":
        """The same, of results row by row."""
        chosen = [_FAILED if one.error is not None else one.sampled[0] for one in results]
        return cls(
            [one.token_id for one in chosen],
            [one.logprob for one in chosen],
            {place: one.error for place, one in enumerate(results) if one.error is not None},
            [chosen[place].top_logprobs for place in rows.listing],
            [_entropy_of(results[place]) for place in rows.unsure],
            [one.sampler_state for one in results] if rows.samplers else (),
        )


def _entropy_of(result: RowResult) -> float:
    found = result.distributions[0].entropy if result.error is None else 0.0
    assert found is not None, "it was asked for"
    return found


NO_DECODE_RESULT = DecodeResult()
_FAILED = Sampled(0, 0.0)


class StepResult(msgspec.Struct, frozen=True):
    """What came of a batch: a result for each row, head and shift, in the batch's order."""

    decodes: DecodeResult = NO_DECODE_RESULT
    rows: Sequence[RowResult] = ()
    heads: Sequence[RowResult] = ()
    shifts: Sequence[RowResult] = ()

    @classmethod
    def of_all_rows(
        cls, batch: Batch, results: Sequence[RowResult], heads: Sequence[RowResult], shifts: Sequence[RowResult]
    ) -> "StepResult":
        """With `results` of the batch's `all_rows`."""
        num_decodes = len(batch.decodes)
        decoded = DecodeResult.of_rows(batch.decodes, results[:num_decodes])
        return cls(decoded, results[num_decodes:], heads, shifts)
