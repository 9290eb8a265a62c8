"""Draws a token for each row of logits at once, on the device, as engine.sampler does row by row. Never waits for it.

Most rows need the 1,024 likeliest tokens or none; what those do not hold, a larger nucleus, is drawn from all by
`Operations.draw_open`, which costs nothing when there is no such row. Penalties and masks were applied before; the
definitions are those of docs/sampling.md.
"""

import importlib.util
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.calls import Sampling
from loopwright.engine.draws import draw_each, uniforms
from loopwright.engine.transfer import to_device

MAX_CANDIDATES = 1024
"""Most tokens that top_k may ask for here; more are for `processing`."""
_HAS_TRITON = importlib.util.find_spec("triton") is not None
_MAX_KNOWN = 16  # sets of rows whose columns are kept


@dataclass(frozen=True, slots=True, eq=False)
class RowSamplings:
    """The samplings of a step's rows as columns. `special` rows are not for this module."""

    special: tuple[int, ...]
    is_greedy: bool  # of all other rows, with raw log-probabilities: the likeliest token will do
    seeds: NDArray[np.uint64]
    is_wide: Tensor  # [num_rows] booleans: draws from the whole vocabulary
    has_wide: bool
    may_overflow: bool  # a nucleus, or what ties with the k-th, may have more than MAX_CANDIDATES
    temperatures: Tensor  # [num_rows, 1] float64; 1 for greedy rows, as they do not divide
    greedy: Tensor  # [num_rows] booleans, as the next
    processed: Tensor
    wants_processed: bool  # whether any row does
    top_k: Tensor  # [num_rows, 1] int64; 0 is off
    top_p: Tensor  # [num_rows, 1] float64, as the next two
    min_p: Tensor
    typical_p: Tensor  # for `processing` alone, as the next
    has_typical: bool

    @classmethod
    def of(cls, samplings: Sequence[Sampling], device: torch.device, *, is_adjusted: bool = False) -> "RowSamplings":
        """`is_adjusted` says that what makes rows special was dealt with: none is."""
        plain = [one for one in samplings if is_adjusted or not is_special(one)]
        wide = [one.temperature > 0 and not _is_narrow(one) for one in samplings]
        rows = [
            (
                one.temperature or 1.0, min(one.top_k, 2**31), one.top_p, one.min_p, one.typical_p,
                one.temperature == 0, is_wide, one.logprobs == "processed",
            )
            for one, is_wide in zip(samplings, wide, strict=True)
        ]  # fmt: skip
        columns = to_device(np.array(rows, np.float64).reshape(-1, 8).T, device)  # one copy for all
        return cls(
            special=() if is_adjusted else tuple(row for row, one in enumerate(samplings) if is_special(one)),
            is_greedy=all(one.temperature == 0 and one.logprobs == "raw" for one in plain),
            seeds=np.array([one.seed for one in samplings], np.uint64),
            is_wide=columns[6].bool(),
            has_wide=any(wide),
            may_overflow=any(one.temperature > 0 and (one.top_k or one.top_p < 1) for one in plain),
            temperatures=columns[0, :, None],
            greedy=columns[5].bool(),
            processed=columns[7].bool(),
            wants_processed=any(one.logprobs == "processed" for one in samplings),
            top_k=columns[1, :, None].long(),
            top_p=columns[2, :, None],
            min_p=columns[3, :, None],
            typical_p=columns[4, :, None],
            has_typical=any(one.typical_p < 1 for one in samplings),
        )

    def numbers(self, positions: NDArray[np.integer]) -> NDArray[np.float64]:
        """What draws are made with: [num_rows], by seed and position."""
        return uniforms(self.seeds, positions)


class SamplingColumns:
    """The columns of rows that were asked about before: the same rows come step after step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: OrderedDict[tuple[int, ...], tuple[Sequence[Sampling], RowSamplings]] = OrderedDict()
        self._last: tuple[Sequence[Sampling], RowSamplings] | None = None  # a decode group has one list for its rows

    def of(self, samplings: Sequence[Sampling]) -> RowSamplings:
        """As `RowSamplings.of`."""
        if self._last is None or self._last[0] is not samplings:
            self._last = (samplings, self._find(samplings, is_adjusted=False))
        return self._last[1]

    def of_adjusted(self, samplings: Sequence[Sampling]) -> RowSamplings:
        """Likewise, of rows whose logits are adjusted already."""
        return self._find(samplings, is_adjusted=True)

    def _find(self, samplings: Sequence[Sampling], *, is_adjusted: bool) -> RowSamplings:
        key = (is_adjusted, *map(id, samplings))  # whoever is in `_known` is not freed, so no other has its id
        if (found := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return found[1]
        columns = RowSamplings.of(samplings, self._device, is_adjusted=is_adjusted)
        self._known[key] = (list(samplings), columns)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return columns


class DrawOpen(Protocol):
    """`Operations.draw_open`."""

    def __call__(self, logits: Tensor, samplings: RowSamplings, numbers: Tensor, drawn: "Drawn") -> None: ...


def is_special(sampling: Sampling) -> bool:
    """Whether it asks for more than this module does."""
    return bool(
        sampling.has_penalties
        or sampling.logit_bias
        or sampling.allowed is not None
        or sampling.top_logprobs
        or (sampling.temperature > 0 and (sampling.typical_p < 1 or sampling.top_k >= MAX_CANDIDATES))
    )


def _is_narrow(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """[num_rows] each."""

    ids: Tensor
    totals: Tensor  # float64: the weights that were drawn from, in sum; the heaviest has 1
    is_open: Tensor  # drawn from more than the candidates


def outputs_of(logits: Tensor, ids: Tensor, logprobs: Tensor) -> Tensor:
    """As in DecodeBuffers: int32 [3, num_rows]."""
    failed = (~logits.sum(-1).isfinite()).int()  # a sum is finite only if all of its terms are
    return torch.stack([ids.int(), logprobs.view(torch.int32), failed])


def normalizers(logits: Tensor) -> Tensor:
    """What a row's logits are above its log-probabilities, float32 [num_rows]; on a GPU the same bits in any batch."""
    if logits.is_cuda and _HAS_TRITON:
        from loopwright.engine.cuda import normalizer_kernels  # noqa: PLC0415 (there may be no Triton)

        return normalizer_kernels.normalizers(logits)
    return logits.logsumexp(-1)


def draw_rows(
    logits: Tensor, samplings: RowSamplings, positions: NDArray[np.integer], draw_open: DrawOpen
) -> tuple[Tensor, Tensor]:
    """One token for each row of float32 logits [num_rows, vocab_size], to stand at `positions`: ids, and float32
    log-probabilities, [num_rows] each."""
    if samplings.is_greedy:
        best = logits.argmax(-1)
        return best, (_picked(logits, best) - normalizers(logits)).clamp(max=0.0)
    return draw_with(logits, samplings, to_device(samplings.numbers(positions), logits.device), draw_open)


def draw_with(logits: Tensor, samplings: RowSamplings, numbers: Tensor, draw_open: DrawOpen) -> tuple[Tensor, Tensor]:
    """`draw_rows` with the numbers of the draws, float64 [num_rows], in [0, 1). What is launched does not depend on
    what the tensors hold."""
    top, best = logits.max(-1, keepdim=True)  # of equal values, the first
    chosen, totals = best[:, 0], torch.ones_like(numbers)
    if samplings.may_overflow:
        values, ids = ordered_top(logits, min(MAX_CANDIDATES, logits.shape[1]))
        weights = _weights(values, top, samplings.temperatures)
        is_kept, is_open = _filtered(logits, values, weights, samplings)
        order = torch.where(is_kept, ids, logits.shape[1]).argsort(-1)  # the draw is in the order of ids
        ordered = torch.where(is_kept, weights, 0.0).gather(1, order)
        drawn = Drawn(
            ids.gather(1, order.gather(1, draw_each(ordered, numbers)[:, None]))[:, 0],
            ordered.sum(-1),
            is_open & ~samplings.greedy & ~samplings.is_wide,
        )
        if values.shape[1] < logits.shape[1]:
            draw_open(logits, samplings, numbers, drawn)
        chosen, totals = drawn.ids, drawn.totals
    if samplings.has_wide:
        all_weights = _weights(logits, top, samplings.temperatures)
        all_weights = torch.where(all_weights >= samplings.min_p, all_weights, 0.0)
        chosen = torch.where(samplings.is_wide, draw_each(all_weights, numbers), chosen)
        totals = torch.where(samplings.is_wide, all_weights.sum(-1), totals)
    chosen = torch.where(samplings.greedy, best[:, 0], chosen)
    return chosen, _logprobs(logits, chosen, samplings, top[:, 0], totals)


def ordered_top(values: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The largest values and their ids, [num_rows, size] each: falling, the lowest id first on a tie."""
    found, ids = _largest(values, size)
    ids, order = ids.sort(dim=-1)
    found, order = found.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return found, ids.gather(1, order)


def _largest(values: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """In any order. FlashInfer's is several times faster than torch's for a large vocabulary."""
    if size == values.shape[1]:
        return values, torch.arange(size, device=values.device).expand_as(values)
    if not values.is_cuda or values.dtype != torch.float32 or importlib.util.find_spec("flashinfer") is None:
        found, ids = values.topk(size, dim=-1, sorted=False)
        return found, ids
    import flashinfer  # noqa: PLC0415 (there may be none)

    found, ids = flashinfer.top_k(values, size, deterministic=True)
    return found, ids


def _weights(values: Tensor, top: Tensor, temperatures: Tensor) -> Tensor:
    return ((values.double() - top.double()) / temperatures).exp()


def _filtered(logits: Tensor, values: Tensor, weights: Tensor, samplings: RowSamplings) -> tuple[Tensor, Tensor]:
    """Which candidates [num_rows, size] are kept, and for which rows [num_rows] candidates beyond them might be."""
    size = values.shape[1]
    has_top_k = samplings.top_k > 0
    threshold = values.gather(1, (samplings.top_k - 1).clamp(0, size - 1))
    is_kept = ~has_top_k | (values >= threshold)  # all that tie with the k-th, as engine.sampler does
    kept = torch.where(is_kept, weights, 0.0)
    is_open = has_top_k & (values[:, -1:] >= threshold) & (threshold > -torch.inf)
    everything = _weights(logits, values[:, :1], samplings.temperatures).sum(-1, keepdim=True)
    totals = torch.where(has_top_k, kept.sum(-1, keepdim=True), everything)
    has_top_p = samplings.top_p < 1
    mass = kept.cumsum(-1)
    target = samplings.top_p * totals
    is_first = torch.arange(size, device=values.device) <= (mass < target).sum(-1, keepdim=True)
    is_kept = is_kept & (~has_top_p | is_first)
    is_open = is_open | (has_top_p & ~has_top_k & (mass[:, -1:] < target))
    is_kept = is_kept & (weights >= samplings.min_p)  # the heaviest has weight 1
    return is_kept, is_open[:, 0]


def _picked(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.gather(1, ids[:, None])[:, 0]


def _logprobs(logits: Tensor, chosen: Tensor, samplings: RowSamplings, top: Tensor, totals: Tensor) -> Tensor:
    """`top` are the largest logits, and `totals` the sums of the weights that were left, [num_rows] each."""
    picked = _picked(logits, chosen)
    raw = picked - normalizers(logits)
    if not samplings.wants_processed:
        return raw.clamp(max=0.0)
    processed = (picked.double() - top.double()) / samplings.temperatures[:, 0] - totals.log()
    processed = torch.where(samplings.greedy, 0.0, processed).float()
    return torch.where(samplings.processed, processed, raw).clamp(max=0.0)
