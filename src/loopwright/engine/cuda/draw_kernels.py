"""Draws from more tokens than were sorted, as one Triton launch: a row that needs no such draw costs a load.

The nucleus is found by bisection over the bits of its smallest logit, which ends exactly. Used by the operations; held
against `processing`, which sorts the whole vocabulary.
"""

import triton
import triton.language as tl
from torch import Tensor

from loopwright.engine.cuda.sampling import Drawn, RowSamplings

_CHUNK = 1024  # logits at once


def draw_open(logits: Tensor, samplings: RowSamplings, numbers: Tensor, drawn: Drawn) -> None:
    """As `Operations.draw_open`."""
    _draw_open[(len(logits),)](
        logits, drawn.is_open, drawn.ids, drawn.totals, numbers, samplings.temperatures, samplings.top_k,
        samplings.top_p, samplings.min_p, drawn.ids.stride(0), VOCAB=logits.shape[1], CHUNK=_CHUNK,
    )  # fmt: skip


@triton.jit
def _keys(values):
    """Integers in the order of float32 values; 0 and -0 are one. The same again gives the bits of the value."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _load(logits, start, VOCAB: tl.constexpr, CHUNK: tl.constexpr):
    column = start + tl.arange(0, CHUNK)
    return tl.load(logits + column, mask=column < VOCAB, other=-float("inf"))


@triton.jit
def _num_from(logits, low, VOCAB: tl.constexpr, CHUNK: tl.constexpr):
    """How many logits have keys from `low` on."""
    found = tl.zeros((CHUNK,), tl.int32)
    for start in range(0, VOCAB, CHUNK):
        column = start + tl.arange(0, CHUNK)
        found += tl.where((column < VOCAB) & (_keys(_load(logits, start, VOCAB, CHUNK)) >= low), 1, 0)
    return tl.sum(found, axis=0)


@triton.jit
def _mass_from(logits, low, top, temperature, VOCAB: tl.constexpr, CHUNK: tl.constexpr):
    """Their weights, in sum."""
    mass = tl.zeros((CHUNK,), tl.float64)
    for start in range(0, VOCAB, CHUNK):
        values = _load(logits, start, VOCAB, CHUNK)
        mass += tl.where(_keys(values) >= low, tl.exp((values.to(tl.float64) - top) / temperature), 0.0)
    return tl.sum(mass, axis=0)


@triton.jit
def _middle(low, high):
    """Of two keys, rounded up; their sum may be more than 32 bits hold."""
    return ((low.to(tl.int64) + high.to(tl.int64) + 1) >> 1).to(tl.int32)


@triton.jit
def _kept(values, low, num_ties, ties_before, top, temperature, min_p):
    """The weights of what is kept of a chunk, and how many of it tie with the last that is."""
    keys = _keys(values)
    is_tie = tl.where(keys == low, 1, 0)
    rank = ties_before + tl.cumsum(is_tie, axis=0) - is_tie
    weights = tl.exp((values.to(tl.float64) - top) / temperature)
    is_kept = (keys > low) | ((keys == low) & (rank < num_ties))
    return tl.where(is_kept & (weights >= min_p), weights, 0.0), tl.sum(is_tie, axis=0)


@triton.jit
def _draw_open(
    all_logits, is_open, ids, totals, numbers, temperatures, all_top_k, all_top_p, all_min_p, id_stride,
    VOCAB: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if tl.load(is_open + row).to(tl.int32) != 0:
        logits = all_logits + row * VOCAB
        temperature, top_k = tl.load(temperatures + row), tl.load(all_top_k + row)
        top_p, min_p = tl.load(all_top_p + row), tl.load(all_min_p + row)
        largest = tl.full((CHUNK,), -float("inf"), tl.float32)
        for start in range(0, VOCAB, CHUNK):
            largest = tl.maximum(largest, _load(logits, start, VOCAB, CHUNK))
        highest = tl.max(largest, axis=0)
        top = highest.to(tl.float64)
        # What top_k leaves: keys from `low` on.
        low, high = tl.full((), -2147483648, tl.int32), _keys(highest)
        if top_k > 0:
            for _ in range(32):
                middle = _middle(low, high)
                is_enough = _num_from(logits, middle, VOCAB, CHUNK) >= top_k
                low, high = tl.where(is_enough, middle, low), tl.where(is_enough, high, middle - 1)
        # Of that, the nucleus: keys above `low`, and the first `num_ties` of those that are `low`.
        num_ties = tl.full((), 2147483647, tl.int32)
        if top_p < 1.0:
            target = top_p * _mass_from(logits, low, top, temperature, VOCAB, CHUNK)
            high = _keys(highest)
            for _ in range(32):
                middle = _middle(low, high)
                is_enough = _mass_from(logits, middle, top, temperature, VOCAB, CHUNK) >= target
                low, high = tl.where(is_enough, middle, low), tl.where(is_enough, high, middle - 1)
            value = (low ^ ((low >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
            weight = tl.exp((value.to(tl.float64) - top) / temperature)
            left = target - _mass_from(logits, low + 1, top, temperature, VOCAB, CHUNK)
            num_ties = tl.maximum(tl.ceil(tl.minimum(left / weight, 2147483000.0)), 1.0).to(tl.int32)
        total = tl.full((), 0.0, tl.float64)
        ties_before = tl.full((), 0, tl.int32)
        for start in range(0, VOCAB, CHUNK):
            values = _load(logits, start, VOCAB, CHUNK)
            weights, num = _kept(values, low, num_ties, ties_before, top, temperature, min_p)
            total += tl.sum(weights, axis=0)
            ties_before += num
        wanted = tl.load(numbers + row) * total
        before = tl.full((), 0.0, tl.float64)
        ties_before = tl.full((), 0, tl.int32)
        chosen = tl.full((), 2147483647, tl.int32)
        last = tl.full((), 0, tl.int32)
        for start in range(0, VOCAB, CHUNK):
            values = _load(logits, start, VOCAB, CHUNK)
            weights, num = _kept(values, low, num_ties, ties_before, top, temperature, min_p)
            column = start + tl.arange(0, CHUNK)
            exceeds = before + tl.cumsum(weights, axis=0) > wanted
            chosen = tl.minimum(chosen, tl.min(tl.where(exceeds & (weights > 0.0), column, 2147483647), axis=0))
            last = tl.maximum(last, tl.max(tl.where(weights > 0.0, column, 0), axis=0))
            before += tl.sum(weights, axis=0)
            ties_before += num
        tl.store(ids + row * id_stride, tl.where(chosen == 2147483647, last, chosen).to(tl.int64))
        tl.store(totals + row, total)
