"""Runs one batch: copies, shifts, embeds, forward rows, heads. Never schedules, never starts a thread.

Called by the executor, one batch at a time. It owns the model's KV cache and embed slots.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.batch import (
    Batch,
    BlockCopy,
    EmbedRow,
    ForwardRow,
    HeadRow,
    KvShift,
    RowResult,
    StepResult,
)
from loopwright.core.errors import LoopwrightError
from loopwright.core.executor import EngineShape
from loopwright.core.traits import Trait
from loopwright.engine.asked import Asked, Hidden, asked_tokens
from loopwright.engine.attention import AttentionRow, make_attention
from loopwright.engine.carried import Carried
from loopwright.engine.kv_cache import BLOCK_SIZE, EmbedStore, KvCache, kv_bytes_per_token
from loopwright.engine.loaded_model import LoadedModel, Rope
from loopwright.engine.models import find_architecture
from loopwright.engine.native.build import Kernels
from loopwright.engine.native.cache import NativeKvCache
from loopwright.engine.native.decoder import NativeDecoder
from loopwright.engine.native.structs import WeightType
from loopwright.engine.row_checks import check_head, check_row, check_shift, check_step, checked
from loopwright.engine.sampler import Question, answer

_Forward: TypeAlias = Callable[[Tensor, Tensor, Sequence[AttentionRow]], Tensor]
_Row = TypeVar("_Row")
Share: TypeAlias = Callable[[Batch], None]
SCRATCH_BYTES = 64 << 20
_MAX_LOGIT_ROWS = 64  # rows of logits in memory at once; scoring a long text asks for thousands


@dataclass(frozen=True, slots=True, eq=False)
class NativeSettings:
    """Kernels, how each weight is kept, on how many threads they run, and how much memory a step's slices may take."""

    kernels: Kernels
    weight_type: Callable[[str], WeightType]
    num_threads: int
    scratch_bytes: int = SCRATCH_BYTES


class _Ends(Protocol):
    """What comes before a model's layers and after them, as models.architecture.Model documents it."""

    def embed(self, token_ids: Tensor) -> Tensor: ...
    def normalize(self, hidden: Tensor) -> Tensor: ...
    def logits(self, normalized: Tensor) -> Tensor: ...


class _Cache(Protocol):
    """KV of all layers, as kv_cache.KvCache documents it."""

    @property
    def token_bytes(self) -> int: ...
    def copy(self, copies: Sequence[BlockCopy]) -> None: ...
    def shift(self, shift: KvShift, ropes: Sequence[Rope], max_context: int) -> None: ...


class DevicePart(_Ends, Protocol):
    """A model and its cache on a device, which brings all of its computing: see `engine.cuda`."""

    @property
    def device(self) -> torch.device: ...
    @property
    def cache(self) -> _Cache: ...
    @property
    def ropes(self) -> Sequence[Rope]: ...
    @property
    def step_weight_bytes(self) -> int: ...
    def forward(self, hidden: Tensor, positions: Tensor, rows: Sequence[AttentionRow]) -> Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """What computes a model, and where its KV is."""

    model: _Ends
    forward: _Forward
    cache: _Cache
    step_weight_bytes: int
    answer: Callable[[Tensor, Sequence[Question]], list[RowResult]] = answer


class ModelRunner:
    """A model with its memory. `run` must always be called under torch.inference_mode."""

    traits: ClassVar[tuple[Trait, ...]] = ("allocate", "forward", "input_text", "output_text")  # what `run` can do

    def __init__(
        self,
        model: LoadedModel,
        *,
        num_blocks: int,
        num_slots: int,
        attention: str = "sdpa",
        native: "NativeSettings | None" = None,
        device: DevicePart | None = None,
        share: Share | None = None,
    ) -> None:
        """`native` takes the kernels of our own in place of torch's and of `attention`, `device` another device.

        `share` is told each batch before any of it is done, when nothing can be wrong with it as a whole any more. By
        then rows have no sources, and those that something is wrong with are gone."""
        self._share = share
        if device is not None:
            parts = _Parts(device, device.forward, device.cache, device.step_weight_bytes)
        elif native is not None:
            parts = _native_parts(model, num_blocks, native)
        else:
            parts = _torch_parts(model, num_blocks, attention)
        self._model, self._forward, self._cache = parts.model, parts.forward, parts.cache
        self._answer_together = parts.answer
        self.step_weight_bytes, self.kv_token_bytes = parts.step_weight_bytes, parts.cache.token_bytes
        self.shape = EngineShape(
            vocab_size=model.config.vocab_size,
            max_context=model.config.max_context,
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            num_slots=num_slots,
            block_bytes=BLOCK_SIZE * (kv_bytes_per_token(model.config) if device is None else device.cache.token_bytes),
            steps_ahead="possible" if device is None else "usual",
        )
        self._carried = Carried()
        self._device = torch.device("cpu") if device is None else device.device
        self._ropes = model.ropes if device is None else device.ropes
        self._slots = EmbedStore(model.config, num_slots, self._device)

    def run(self, batch: Batch) -> StepResult:
        """Raises InternalError for a copy or an embed that cannot be; what is wrong with a row is in its result."""
        rows = self._carried.rows(batch)
        check_step(batch, self.shape)
        if self._share is not None:
            self._share(checked(batch, rows, self.shape))
        self._cache.copy(batch.copies)
        shifts = tuple(self._shift(shift) for shift in batch.shifts)
        self._embed(batch.embeds)
        results = isolate(rows, lambda row: check_row(row, self.shape), self._run_rows)
        self._carried.keep(results)
        return StepResult.of_all_rows(
            batch,
            results,
            isolate(batch.heads, lambda head: check_head(head, self.shape), self._run_heads),
            shifts,
        )

    def _shift(self, shift: KvShift) -> RowResult:
        try:
            check_shift(shift, self.shape)
            self._cache.shift(shift, self._ropes, self.shape.max_context)
        except LoopwrightError as error:
            return RowResult(error=error.info())
        return RowResult()

    def _embed(self, embeds: Sequence[EmbedRow]) -> None:
        token_ids = [token_id for embed in embeds for token_id in embed.token_ids]
        if token_ids:
            slots = [slot for embed in embeds for slot in embed.slots]
            positions = [position for embed in embeds for position in embed.positions]
            self._slots.write(slots, self._model.embed(self._numbers(token_ids)), self._numbers(positions))

    def _run_rows(self, rows: Sequence[ForwardRow]) -> list[RowResult]:
        hidden, ends = self._forward_rows(rows)
        asked = [Asked.of_row(row, end) for row, end in zip(rows, ends, strict=True)]
        return self._answer(asked, lambda index: self._model.normalize(hidden.of(index)))

    def _forward_rows(self, rows: Sequence[ForwardRow]) -> tuple[Hidden, list[int]]:
        """Hidden states, and where each row's tokens end among all. Output slots are written."""
        vectors, positions = self._inputs(rows)
        planned = [AttentionRow(row.block_ids, row.kv_len, row.num_tokens, row.mask) for row in rows]
        ends = list(accumulate(row.num_tokens for row in rows))
        hidden = self._run_layers(vectors, positions, planned, lambda: asked_tokens(rows, ends))
        self._write_outputs(rows, ends, hidden, positions)
        return hidden, ends

    def _run_layers(
        self, vectors: Tensor, positions: Tensor, rows: Sequence[AttentionRow], asked: Callable[[], NDArray[np.int64]]
    ) -> Hidden:
        """`asked` finds the tokens whose hidden states anybody asks for; the others' may be left out."""
        return Hidden(self._forward(vectors, positions, rows))

    def _run_heads(self, heads: Sequence[HeadRow]) -> list[RowResult]:
        asked = [Asked.of_head(head) for head in heads]
        return self._answer(asked, self._head_vectors)

    def _head_vectors(self, slots: Sequence[int]) -> Tensor:
        return self._slots.vectors[self._numbers(slots)]

    def _inputs(self, rows: Sequence[ForwardRow]) -> tuple[Tensor, Tensor]:
        """Vectors [num_tokens, hidden_size] and positions [num_tokens] of all rows, one after the other."""
        token_ids = self._token_ids(rows)
        positions = self._numbers(_joined([row.positions if row.token_ids else row.input_slots for row in rows]))
        hidden = self._model.embed(token_ids)
        start = 0
        for row in rows:
            end = start + row.num_tokens
            if row.input_slots:
                slots = positions[start:end].clone()
                hidden[start:end] = self._slots.vectors[slots]
                positions[start:end] = self._slots.positions[slots]
            start = end
        return hidden, positions

    def _token_ids(self, rows: Sequence[ForwardRow]) -> Tensor:
        """Of all inputs [num_tokens]; 0 for a slot."""
        return self._numbers(_joined([row.token_ids or [0] * len(row.input_slots) for row in rows]))

    def _numbers(self, numbers: Sequence[int] | NDArray[np.int64]) -> Tensor:
        return torch.tensor(numbers, device=self._device)

    def _write_outputs(
        self, rows: Sequence[ForwardRow], ends: Sequence[int], hidden: Hidden, positions: Tensor
    ) -> None:
        slots = [slot for row in rows for slot in row.output_slots]
        if slots:
            index = [i for row, end in zip(rows, ends, strict=True) for i in range(end - len(row.output_slots), end)]
            self._slots.write(slots, self._model.normalize(hidden.of(index)), positions[self._numbers(index)])

    def _answer(self, asked: Sequence[Asked], vectors: Callable[[list[int]], Tensor]) -> list[RowResult]:
        """`vectors` gives the normalised hidden states of the asked indices: [num_indices, hidden_size]."""
        results = [
            one for logits, mine in self._logits_of(asked, vectors) for one in self._answer_together(logits, mine)
        ]
        remaining = iter(results)
        return [one.assemble(remaining) for one in asked]

    def _logits_of(
        self, asked: Sequence[Asked], vectors: Callable[[list[int]], Tensor]
    ) -> Iterator[tuple[Tensor, Sequence[Question]]]:
        """All questions, so many at a time, with their logits."""
        questions = [question for one in asked for question in one.questions]
        for start in range(0, len(questions), _MAX_LOGIT_ROWS):
            chunk = questions[start : start + _MAX_LOGIT_ROWS]
            yield self._model.logits(vectors([index for index, _ in chunk])), [question for _, question in chunk]


def _native_parts(model: LoadedModel, num_blocks: int, native: NativeSettings) -> _Parts:
    cache = NativeKvCache(model.config, num_blocks)
    decoder = NativeDecoder(
        model, native.kernels, cache, weight_type=native.weight_type, num_threads=native.num_threads,
        scratch_bytes=native.scratch_bytes,
    )  # fmt: skip
    return _Parts(decoder, decoder.forward, cache, decoder.step_weight_bytes, decoder.answers.answer)


def _torch_parts(model: LoadedModel, num_blocks: int, attention: str) -> _Parts:
    cache = KvCache(model.config, num_blocks)
    built = find_architecture(model.config.architecture).build(model)
    backend = make_attention(attention, cache)

    def forward(hidden: Tensor, positions: Tensor, rows: Sequence[AttentionRow]) -> Tensor:
        return built.forward(hidden, positions, backend.plan(rows, positions))

    return _Parts(built, forward, cache, model.step_weight_bytes)


class FollowingRunner(ModelRunner):
    """Does what another rank shares, and leaves the answers to that one: here nothing is sampled, and no result says
    anything."""

    def _answer(self, asked: Sequence[Asked], vectors: Callable[[list[int]], Tensor]) -> list[RowResult]:
        for _ in self._logits_of(asked, vectors):
            pass  # this rank's part of them is all that is wanted
        return [RowResult() for _ in asked]


def _joined(numbers: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """One after the other. A range is not looked at number by number."""
    return np.concatenate(
        [
            np.arange(one.start, one.stop, one.step) if isinstance(one, range) else np.asarray(one, np.int64)
            for one in numbers
        ]
    )


def isolate(
    rows: Sequence[_Row], check: Callable[[_Row], None], run: Callable[[Sequence[_Row]], list[RowResult]]
) -> tuple[RowResult, ...]:
    """Runs the rows that pass the check; the others get their error as result."""
    errors = errors_of(rows, check)
    good = [row for place, row in enumerate(rows) if place not in errors]
    results = iter(run(good) if good else ())
    return tuple(errors[place] if place in errors else next(results) for place in range(len(rows)))


def errors_of(rows: Sequence[_Row], check: Callable[[_Row], None]) -> dict[int, RowResult]:
    """Of the rows that do not pass the check, by place."""
    errors: dict[int, RowResult] = {}
    for place, row in enumerate(rows):
        try:
            check(row)
        except LoopwrightError as error:
            errors[place] = RowResult(error=error.info())
    return errors
