"""What goes between the first rank and the others: how they begin, and each step as a message. Never sends one.

A step's message says what the others need to do it, too. Rows that decode, step after step, are sent once: from then on
a message has what changed, the blocks and tokens that were added, and the reader keeps the same lists as the writer.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from loopwright.core.batch import NO_DECODES, Batch, BlockCopy, DecodeRows, EmbedRow, ForwardRow, HeadRow, KvShift
from loopwright.core.calls import Sampling
from loopwright.core.errors import ErrorInfo
from loopwright.core.ids import BlockId
from loopwright.core.late_bits import LateBits
from loopwright.core.model_info import WeightDtype
from loopwright.core.samplers import SamplerNode, SamplerRun, TracedSampler


class RankSettings(msgspec.Struct, frozen=True):
    """What a rank is started with."""

    rank: int
    num_ranks: int
    path: str  # of the model
    layers: tuple[int, ...]
    shape: str  # of random weights in its place
    meeting: str  # the file where the ranks find each other
    timeout_s: float
    device: Literal["auto", "cpu", "cuda"]
    dtype: WeightDtype
    attention: Literal["auto", "flashinfer", "sdpa"]
    num_threads: int
    num_blocks: int  # that were asked for; 0: as many as fit
    num_slots: int
    max_rows: int
    max_tokens: int


class Room(msgspec.Struct, frozen=True):
    """What there is room for beside a rank's weights: blocks of KV, and tokens in a step."""

    num_blocks: int
    step_tokens: int

    def of_both(self, other: "Room") -> "Room":
        """What two ranks both have room for."""
        return Room(min(self.num_blocks, other.num_blocks), min(self.step_tokens, other.step_tokens))


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """From a rank: it has its weights."""

    room: Room


class Serving(msgspec.Struct, frozen=True, tag=True):
    """From a rank: it waits for steps."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """From a rank, before it ends."""

    error: ErrorInfo


class Begin(msgspec.Struct, frozen=True, tag=True):
    """To all ranks: all have their weights, and this is how many blocks there are."""

    num_blocks: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """To a rank: there are no more steps."""


class AllDecodes(msgspec.Struct, frozen=True, tag=True):
    """The columns of DecodeRows. `has_all_sources`: each row is that of the step before. `sampled` are the places of
    those with samplers, of which no more is told."""

    block_ids: list[list[BlockId]]
    kv_lens: list[int]
    positions: list[int]
    samplings: list[Sampling]
    generated: list[list[int]]
    token_ids: list[int]
    num_steps: int
    num_generated: list[int]
    sources: list[int]
    has_all_sources: bool
    sampled: list[int]
    unsure: list[int]


class NextDecodes(msgspec.Struct, frozen=True, tag=True):
    """The rows of the message before, in a later step. `blocks` and `generated` are what was added, by row."""

    num_steps: int
    token_ids: list[int]
    blocks: list[tuple[int, list[int]]]
    generated: list[tuple[int, list[int]]]
    sources: list[int]
    has_all_sources: bool


class Step(msgspec.Struct, frozen=True, tag=True):
    """A batch. A program's sampler, and bits that come late, stay with the first rank, which alone chooses tokens; but
    how a row's logits are asked for follows from whether there are such: `peculiar` are the places of those rows."""

    copies: list[BlockCopy]
    shifts: list[KvShift]
    embeds: list[EmbedRow]
    decodes: AllDecodes | NextDecodes | None
    rows: list[ForwardRow]
    peculiar: list[int]
    heads: list[HeadRow]


FromRank: TypeAlias = Loaded | Serving | Failed
ToRank: TypeAlias = Begin | Step | Stop

_NOBODY_LOOKS = LateBits()  # whatever a row chooses here
_NOBODY_LOOKS.give(None)
_SOME_SAMPLER = SamplerRun(TracedSampler((SamplerNode("scores"),), 0), {})  # whatever it was
_encoder = msgspec.msgpack.Encoder(enc_hook=list)  # a range is a list of its numbers
_from_rank = msgspec.json.Decoder(FromRank)
_to_rank = msgspec.msgpack.Decoder(ToRank)


def encode(message: ToRank) -> bytes:
    return _encoder.encode(message)


def decode(payload: bytes) -> ToRank:
    return _to_rank.decode(payload)


def encode_from_rank(message: FromRank) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"


def decode_from_rank(line: bytes) -> FromRank:
    return _from_rank.decode(line)


class StepWriter:
    """Batches to messages, in their order."""

    def __init__(self) -> None:
        self._columns: tuple[Any, ...] = ()  # of the decode rows that were sent last: the very lists
        self._lengths: tuple[list[int], list[int]] = ([], [])  # of each row's blocks and generated tokens, as sent

    def step(self, batch: Batch) -> Step:
        rows = list(batch.rows)
        peculiar = [place for place, row in enumerate(rows) if row.sampler is not None or row.late_bits is not None]
        for place in peculiar:
            rows[place] = msgspec.structs.replace(rows[place], sampler=None, late_bits=None)
        return Step(
            list(batch.copies), list(batch.shifts), list(batch.embeds), self._decodes(batch.decodes), rows, peculiar,
            list(batch.heads),
        )  # fmt: skip

    def _decodes(self, rows: DecodeRows) -> AllDecodes | NextDecodes | None:
        if not len(rows):
            self._columns = ()
            return None
        columns = (
            rows.block_ids, rows.kv_lens, rows.positions, rows.samplings, rows.generated, rows.num_generated,
            rows.samplers, rows.unsure,
        )  # fmt: skip
        has_all = isinstance(rows.sources, range)
        sources = [] if has_all else list(rows.sources)
        if self._columns and all(one is other for one, other in zip(columns, self._columns, strict=True)):
            added = [
                _added(lists, lengths)
                for lists, lengths in zip((rows.block_ids, rows.generated), self._lengths, strict=True)
            ]
            return NextDecodes(rows.num_steps, list(rows.token_ids), added[0], added[1], sources, has_all)
        block_ids, generated = list(map(list, rows.block_ids)), list(map(list, rows.generated))
        self._columns = columns
        self._lengths = (list(map(len, block_ids)), list(map(len, generated)))
        return AllDecodes(
            block_ids, list(rows.kv_lens), list(rows.positions), list(rows.samplings), generated, list(rows.token_ids),
            rows.num_steps, list(rows.num_generated), sources, has_all,
            [place for place, one in enumerate(rows.samplers) if one is not None], list(rows.unsure),
        )  # fmt: skip


class StepReader:
    """The same messages to batches, whose decode rows keep their lists as those of the writer do."""

    def __init__(self) -> None:
        self._rows = NO_DECODES

    def batch(self, step: Step) -> Batch:
        rows = step.rows
        for place in step.peculiar:
            rows[place] = msgspec.structs.replace(rows[place], late_bits=_NOBODY_LOOKS)
        self._rows = self._decodes(step.decodes)
        return Batch(step.copies, step.shifts, step.embeds, self._rows, rows, step.heads)

    def _decodes(self, sent: AllDecodes | NextDecodes | None) -> DecodeRows:
        if sent is None:
            return NO_DECODES
        sources: Sequence[int] = range(len(sent.token_ids)) if sent.has_all_sources else sent.sources
        if isinstance(sent, AllDecodes):
            samplers: list[SamplerRun | None] = [None] * len(sent.token_ids)
            for place in sent.sampled:
                samplers[place] = _SOME_SAMPLER
            return DecodeRows(
                sent.block_ids, sent.kv_lens, sent.positions, sent.samplings, sent.generated, sent.token_ids,
                sent.num_steps, sent.num_generated, sources, samplers if sent.sampled else (), (), sent.unsure,
            )  # fmt: skip
        before = self._rows
        for column, added in ((before.block_ids, sent.blocks), (before.generated, sent.generated)):
            for place, more in added:
                known = column[place]
                assert isinstance(known, list), "they came in a message"
                known += more
        return msgspec.structs.replace(
            before, token_ids=sent.token_ids, num_steps=sent.num_steps, sources=sources
        )  # fmt: skip


def _added(lists: Sequence[Sequence[int]], lengths: list[int]) -> list[tuple[int, list[int]]]:
    """What stands behind the known lengths, which are brought up to date."""
    grown = [place for place, (one, length) in enumerate(zip(lists, lengths, strict=True)) if len(one) != length]
    added: list[tuple[int, list[int]]] = []
    for place in grown:
        more = list(lists[place][lengths[place] :])
        assert more, "the lists of a row grow, and do not change otherwise"
        added.append((place, more))
        lengths[place] += len(more)
    return added
