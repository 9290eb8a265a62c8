"""A model of a few lines whose answers depend on every token it should see, read back through the page table.

Never schedules. What a KV place or an embed slot holds is a number that mixes the token, its position and all that it
attended to; so a wrong block, a lost copy, a broken order or a mask that moved changes every later token. And it checks
what control promises: nothing unwritten is read, and nothing in a batch depends on anything else in it.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec.structs import replace

from loopwright.core.batch import (
    Batch,
    BlockCopy,
    EmbedRow,
    ForwardRow,
    HeadRow,
    KvShift,
    RowResult,
    Sampled,
    StepResult,
)
from loopwright.core.calls import DistributionRequest, Sampling, Visibility
from loopwright.core.errors import InternalError
from loopwright.core.executor import EngineShape
from loopwright.core.results import Distribution
from loopwright.core.samplers import StateValue
from loopwright.engine.carried import Carried

if TYPE_CHECKING:
    from loopwright.core.errors import ErrorInfo

VOCAB_SIZE = 64


def mix(*numbers: int) -> int:
    """A number that depends on all of `numbers` and their order; equal in every process."""
    return hash(numbers) & 0xFFFF_FFFF


def choose(hidden: int, sampling: Sampling, position: int, counted: Sequence[int] = ()) -> int:
    """The token that the fake model samples after a hidden state, and after the tokens that penalties count."""
    hidden = mix(hidden, *counted) if counted else hidden
    drawn = hidden if sampling.temperature == 0 else mix(hidden, sampling.seed, position)
    return sampling.allowed[drawn % len(sampling.allowed)] if sampling.allowed else drawn % VOCAB_SIZE


def sampled_hidden(hidden: int, count: float) -> int:
    """What the fake model chooses by when the row has a sampler, whatever its graph: it changes with each token."""
    return mix(hidden, int(count))


def shifted(value: int, delta: int) -> int:
    """What a KV place holds after its position was moved."""
    return mix(value, delta)


def describe(hidden: int, request: DistributionRequest) -> Distribution:
    """The fake model's distribution: recognisable by its ids."""
    ids = mix(hidden, request.k, *request.must_include)
    entropy = entropy_of(hidden) if request.entropy else None
    return Distribution(ids.to_bytes(4, "little"), b"", covered=1.0, tail_mass=0.0, truncated=False, entropy=entropy)


def entropy_of(hidden: int) -> float:
    """From 0 to below 10, of the distribution after a hidden state."""
    return mix(hidden, 7) % 1000 / 100


def is_visible(runs: Visibility, place: int) -> bool:
    """Whether run lengths, hidden first, show a place."""
    end = 0
    for number, length in enumerate(runs):
        end += length
        if place < end:
            return number % 2 == 1
    return False


class FakeExecutor:
    """Runs each batch at once, or when released. Records the batches."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        num_slots: int = 64,
        max_context: int = 1000,
    ) -> None:
        self.shape = EngineShape(VOCAB_SIZE, max_context, block_size, num_blocks, num_slots, 0, "possible")
        self._carried = Carried()
        self.batches: list[Batch] = []
        self.fail_rows: dict[int, ErrorInfo] = {}  # by input token: rows that hold it fail
        self.fail_shift: ErrorInfo | None = None
        self.fault: Exception | None = None  # fails the next step
        self.held: list[tuple[Batch, Future[StepResult]]] | None = None  # a list: steps wait for `release`
        self.is_holding = asyncio.Event()
        self._kv: dict[tuple[int, int], int] = {}
        self._slots: dict[int, tuple[int, int]] = {}  # token and position of an embedding; (hidden, -1) of an output

    def submit(self, batch: Batch) -> Future[StepResult]:
        future: Future[StepResult] = Future()
        if self.held is not None:
            self.held.append((batch, future))
            self.is_holding.set()
        else:
            self._finish(batch, future)
        return future

    def release(self) -> None:
        """Finishes the steps that are held."""
        assert self.held is not None
        held, self.held = self.held, []
        self.is_holding.clear()
        for batch, future in held:
            self._finish(batch, future)

    def release_first(self) -> None:
        """Finishes the step that has been held the longest."""
        assert self.held is not None
        self._finish(*self.held.pop(0))

    def close(self) -> None:
        pass

    def run(self, batch: Batch) -> StepResult:
        """What comes of a batch."""
        rows = self._carried.rows(batch)
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        self.batches.append(batch)
        _check_independence(batch, self.shape.block_size)
        for copy in batch.copies:
            self._copy(copy)
        for shift in batch.shifts:
            self._shift(shift)
        for embed in batch.embeds:
            for slot, token, position in zip(embed.slots, embed.token_ids, embed.positions, strict=True):
                self._slots[slot] = (token, position)
        results = [self._row(row) for row in rows]
        self._carried.keep(results)
        return StepResult.of_all_rows(
            batch,
            results,
            [self._head(head) for head in batch.heads],
            [RowResult(error=self.fail_shift) for _ in batch.shifts],
        )

    def _finish(self, batch: Batch, future: Future[StepResult]) -> None:
        try:
            future.set_result(self.run(batch))
        except RuntimeError as error:
            future.set_exception(error)

    def _copy(self, copy: BlockCopy) -> None:
        for place in range(copy.size):
            value = self._kv[copy.source, copy.source_offset + place]
            self._kv[copy.target, copy.target_offset + place] = value

    def _shift(self, shift: KvShift) -> None:
        for place in range(shift.start, shift.start + shift.size):
            key = (shift.block_ids[place // self.shape.block_size], place % self.shape.block_size)
            self._kv[key] = shifted(self._kv[key], shift.delta)

    def _row(self, row: ForwardRow) -> RowResult:
        if min(row.token_ids, default=0) < 0:
            return RowResult(error=InternalError("the row's source has no token").info())
        slots = [self._slots[slot] for slot in row.input_slots]
        inputs = slots or list(zip(row.token_ids, row.positions, strict=True))
        hiddens = [self._forward(row, number, *one) for number, one in enumerate(inputs)]
        for slot, hidden in zip(reversed(row.output_slots), reversed(hiddens), strict=False):
            self._slots[slot] = (hidden, -1)
        failing = [self.fail_rows[token] for token, _ in inputs if token in self.fail_rows]
        if failing:
            return RowResult(error=failing[0])
        return _answer(hiddens, row)

    def _forward(self, row: ForwardRow, number: int, token: int, position: int) -> int:
        size, own = self.shape.block_size, row.kv_len + number
        self._kv[row.block_ids[own // size], own % size] = mix(token, position)
        places = [place for place in range(own + 1) if row.mask is None or is_visible(row.mask[number], place)]
        seen = [self._kv[row.block_ids[place // size], place % size] for place in places]
        hidden = mix(token, position, *seen)
        self._kv[row.block_ids[own // size], own % size] = hidden
        return hidden

    def _head(self, head: HeadRow) -> RowResult:
        hidden, mark = self._slots[head.slot]
        assert mark == -1, f"slot {head.slot} holds no hidden state"
        return _answer([hidden], head)


@dataclass(frozen=True)
class CountedState:
    """The fake model's idea of a sampler's state: how many tokens its sampler has chosen."""

    count: float

    def values(self) -> dict[str, StateValue]:
        return {"count": self.count}


def _answer(hiddens: Sequence[int], row: ForwardRow | HeadRow) -> RowResult:
    if isinstance(row, ForwardRow) and row.sampler is not None:
        state = row.sampler.state or CountedState(float(row.sampler.initial["count"]))
        assert isinstance(state, CountedState)
        assert not row.num_drafts
        hiddens = [*hiddens[:-1], sampled_hidden(hiddens[-1], state.count)]
        return replace(_answer(hiddens, replace(row, sampler=None)), sampler_state=CountedState(state.count + 1))
    distributions = [describe(hiddens[one.index], one) for one in row.distributions]
    if row.sampling is None:
        return RowResult(distributions=distributions)
    drafts = row.token_ids[row.num_tokens - row.num_drafts :] if isinstance(row, ForwardRow) else ()
    generated = row.generated if isinstance(row, ForwardRow) else ()
    sampled: list[Sampled] = []
    for number, hidden in enumerate(hiddens[len(hiddens) - 1 - len(drafts) :]):
        sampling = _allowing(row, number)
        counted = (*row.sampling.generated, *generated, *drafts[:number]) if row.sampling.has_penalties else ()
        token = choose(hidden, sampling, row.sample_position - len(drafts) + number, counted)
        sampled.append(Sampled(token, -float(token), ((token, -1.0),) if row.sampling.top_logprobs else ()))
        if number < len(drafts) and drafts[number] != token:
            break
    return RowResult(sampled, distributions)


def _allowing(row: ForwardRow | HeadRow, number: int) -> Sampling:
    """How the row's sample `number` is chosen: from what a grammar lets through, if it has one."""
    assert row.sampling is not None
    if not isinstance(row, ForwardRow):
        return row.sampling
    if number < row.num_drafts:
        forced = row.token_ids[row.num_tokens - row.num_drafts + number]
        return msgspec.structs.replace(row.sampling, allowed=(forced,)) if row.are_drafts_forced else row.sampling
    if row.allowed_bits is None:
        return row.sampling
    allowed = tuple(one for one in range(VOCAB_SIZE) if row.allowed_bits[one // 8] >> one % 8 & 1)
    return msgspec.structs.replace(row.sampling, allowed=allowed)


def _check_independence(batch: Batch, block_size: int) -> None:
    """That no entry depends on one of its own list; on those of an earlier list it may."""
    for entries in (batch.copies, batch.shifts, batch.embeds, batch.all_rows, batch.heads):
        touched = [_touched(entry, block_size) for entry in entries]
        for one, (_, writes) in enumerate(touched):
            for other, (other_reads, other_writes) in enumerate(touched):
                if one != other:
                    assert not writes & (other_reads | other_writes), "entries of one list depend on each other"


Touched: TypeAlias = set[tuple[str, int]]


def _touched(entry: BlockCopy | KvShift | EmbedRow | ForwardRow | HeadRow, block_size: int) -> tuple[Touched, Touched]:
    """What an entry reads and what it writes."""
    match entry:
        case BlockCopy():
            return {("block", entry.source)}, {("block", entry.target)}
        case KvShift():
            return set(), {("block", block) for block in entry.block_ids}
        case EmbedRow():
            return set(), {("slot", slot) for slot in entry.slots}
        case HeadRow():
            return {("slot", entry.slot)}, set()
    end = entry.kv_len + entry.num_tokens
    assert end <= len(entry.block_ids) * block_size
    return (
        {("block", block) for block in entry.block_ids[: -(-entry.kv_len // block_size)]}
        | {("slot", slot) for slot in entry.input_slots},
        {("block", block) for block in entry.block_ids[entry.kv_len // block_size : -(-end // block_size)]}
        | {("slot", slot) for slot in entry.output_slots},
    )
