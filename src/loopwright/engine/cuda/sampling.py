"""Draws a token for each row of logits at once, on the device, as engine.sampler does row by row. Never asks a program.

What it cannot do (penalties, lists of allowed tokens, typical_p, very large top_k) is said once for each set of rows;
the runner takes those rows to engine.sampler. The definitions are those of docs/sampling.md.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.calls import Sampling
from loopwright.engine.draws import draw_each, uniforms

MAX_CANDIDATES = 1024
"""Most tokens that top_k may ask for here; a nucleus that is larger goes to engine.sampler."""


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
    processed: Tensor | None  # None: no row wants such log-probabilities
    top_k: Tensor  # [num_rows, 1] int64; 0 is off
    top_p: Tensor  # [num_rows, 1] float64
    min_p: Tensor

    @classmethod
    def of(cls, samplings: Sequence[Sampling], device: torch.device) -> "RowSamplings":
        def column(name: str, dtype: torch.dtype) -> Tensor:
            return torch.tensor([[getattr(one, name)] for one in samplings], dtype=dtype).to(device)

        is_greedy = [one.temperature == 0 for one in samplings]
        special = tuple(row for row, one in enumerate(samplings) if is_special(one))
        plain = [one for one in samplings if not is_special(one)]
        wide = [one.temperature > 0 and not _is_narrow(one) for one in samplings]
        return cls(
            special=special,
            is_greedy=all(one.temperature == 0 and one.logprobs == "raw" for one in plain),
            seeds=np.array([one.seed for one in samplings], np.uint64),
            is_wide=torch.tensor(wide).to(device),
            has_wide=any(wide),
            may_overflow=any(one.temperature > 0 and (one.top_k or one.top_p < 1) for one in plain),
            temperatures=torch.tensor([[one.temperature or 1.0] for one in samplings], dtype=torch.float64).to(device),
            greedy=torch.tensor(is_greedy).to(device),
            processed=_processed(samplings, device),
            top_k=column("top_k", torch.int64).clamp(max=MAX_CANDIDATES),
            top_p=column("top_p", torch.float64),
            min_p=column("min_p", torch.float64),
        )

    def numbers(self, positions: NDArray[np.integer]) -> NDArray[np.float64]:
        """What draws are made with: [num_rows], by seed and position."""
        return uniforms(self.seeds, positions)

    def with_special(self, rows: Sequence[int]) -> "RowSamplings":
        """The same, with more special rows."""
        return replace(self, special=tuple(sorted({*self.special, *rows})))


def is_special(sampling: Sampling) -> bool:
    """Whether only engine.sampler can do it."""
    return bool(
        sampling.has_penalties
        or sampling.logit_bias
        or sampling.allowed is not None
        or sampling.top_logprobs
        or (sampling.temperature > 0 and (sampling.typical_p < 1 or sampling.top_k >= MAX_CANDIDATES))
    )


def _processed(samplings: Sequence[Sampling], device: torch.device) -> Tensor | None:
    wanted = [one.logprobs == "processed" for one in samplings]
    return torch.tensor(wanted).to(device) if any(wanted) else None


def _is_narrow(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """[num_rows] each: ids, float32 log-probabilities, and whether this module could not do the row after all."""

    ids: Tensor
    logprobs: Tensor
    is_open: Tensor
    may_be_open: bool

    def outputs(self, logits: Tensor) -> Tensor:
        """As in DecodeBuffers: int32 [3, num_rows]."""
        failed = (~logits.sum(-1).isfinite()).int()  # a sum is finite only if all of its terms are
        return torch.stack([self.ids.int(), self.logprobs.view(torch.int32), failed])

    def open_rows(self) -> list[int]:
        """The rows that are open. Waits for the device, if there may be any."""
        return self.is_open.nonzero()[:, 0].tolist() if self.may_be_open else []


def draw_rows(logits: Tensor, samplings: RowSamplings, positions: NDArray[np.integer]) -> Drawn:
    """One token for each row of float32 logits [num_rows, vocab_size], to stand at `positions`."""
    if samplings.is_greedy:
        best = logits.argmax(-1)
        nothing = torch.zeros_like(samplings.greedy)
        return Drawn(best, _logprobs(logits, best, samplings, None), nothing, may_be_open=False)
    return draw_with(logits, samplings, torch.from_numpy(samplings.numbers(positions)).to(logits.device))


def draw_with(logits: Tensor, samplings: RowSamplings, numbers: Tensor) -> Drawn:
    """`draw_rows` with the numbers of the draws, float64 [num_rows], in [0, 1). What is launched does not depend on
    what the tensors hold."""
    top, best = logits.max(-1, keepdim=True)  # of equal values, the first
    chosen, totals = best[:, 0], torch.ones_like(numbers)
    is_open = torch.zeros_like(samplings.greedy)
    if samplings.may_overflow:
        values, ids = ordered_top(logits, min(MAX_CANDIDATES, logits.shape[1]))
        weights = _weights(values, top, samplings.temperatures)
        is_kept, is_open = _filtered(logits, values, weights, samplings)
        order = torch.where(is_kept, ids, logits.shape[1]).argsort(-1)  # the draw is in the order of ids
        ordered = torch.where(is_kept, weights, 0.0).gather(1, order)
        chosen = ids.gather(1, order.gather(1, draw_each(ordered, numbers)[:, None]))[:, 0]
        totals = ordered.sum(-1)
    if samplings.has_wide:
        all_weights = _weights(logits, top, samplings.temperatures)
        all_weights = torch.where(all_weights >= samplings.min_p, all_weights, 0.0)
        chosen = torch.where(samplings.is_wide, draw_each(all_weights, numbers), chosen)
        totals = torch.where(samplings.is_wide, all_weights.sum(-1), totals)
    chosen = torch.where(samplings.greedy, best[:, 0], chosen)
    logprobs = _logprobs(logits, chosen, samplings, (top[:, 0], totals))
    is_open = is_open & ~samplings.greedy & ~samplings.is_wide
    return Drawn(chosen, logprobs, is_open, samplings.may_overflow)


def ordered_top(logits: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The largest logits and their ids, [num_rows, size] each: falling, the lowest id first on a tie."""
    values, ids = _largest(logits, size)
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _largest(logits: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """In any order. FlashInfer's is several times faster than torch's for a large vocabulary."""
    if not logits.is_cuda or size == logits.shape[1] or importlib.util.find_spec("flashinfer") is None:
        values, ids = logits.topk(size, dim=-1, sorted=False)
        return values, ids
    import flashinfer  # noqa: PLC0415 (there may be none)

    values, ids = flashinfer.top_k(logits, size, deterministic=True)
    return values, ids


def _weights(values: Tensor, top: Tensor, temperatures: Tensor) -> Tensor:
    return ((values.double() - top.double()) / temperatures).exp()


def _filtered(logits: Tensor, values: Tensor, weights: Tensor, samplings: RowSamplings) -> tuple[Tensor, Tensor]:
    """Which candidates [num_rows, size] are kept, and for which rows candidates beyond them might be."""
    size, is_whole = values.shape[1], values.shape[1] == logits.shape[1]
    has_top_k = samplings.top_k > 0
    threshold = values.gather(1, (samplings.top_k - 1).clamp(0, size - 1))
    is_kept = ~has_top_k | (values >= threshold)  # all that tie with the k-th, as engine.sampler does
    kept = torch.where(is_kept, weights, 0.0)
    totals = kept.sum(-1, keepdim=True)
    is_open = has_top_k & (values[:, -1:] >= threshold) & (threshold > -torch.inf)
    has_top_p = samplings.top_p < 1
    if samplings.may_overflow:
        everything = _weights(logits, values[:, :1], samplings.temperatures).sum(-1, keepdim=True)
        totals = torch.where(has_top_k, totals, everything)
    mass = kept.cumsum(-1)
    target = samplings.top_p * totals
    is_first = torch.arange(size, device=values.device) <= (mass < target).sum(-1, keepdim=True)
    is_kept = is_kept & (~has_top_p | is_first)
    is_open = is_open | (has_top_p & ~has_top_k & (mass[:, -1:] < target))
    is_kept = is_kept & (weights >= samplings.min_p)  # the heaviest has weight 1
    return is_kept, (is_open & (not is_whole))[:, 0]


def _logprobs(
    logits: Tensor, chosen: Tensor, samplings: RowSamplings, drawn_from: tuple[Tensor, Tensor] | None
) -> Tensor:
    """`drawn_from` are the largest logit of each row, and the sum of the weights that were left."""
    picked = logits.gather(1, chosen[:, None])[:, 0]
    raw = picked - logits.logsumexp(-1)
    if samplings.processed is None or drawn_from is None:
        return raw.clamp(max=0.0)
    top, totals = drawn_from
    processed = (picked.double() - top.double()) / samplings.temperatures[:, 0] - totals.log()
    processed = torch.where(samplings.greedy, 0.0, processed).float()
    return torch.where(samplings.processed, processed, raw).clamp(max=0.0)
