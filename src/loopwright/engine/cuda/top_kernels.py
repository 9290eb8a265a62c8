"""The likeliest tokens of many rows in order, as four Triton launches, of which one reads all scores.

`_look` has the highest of each group of neighbours. The groups with the highest of those have all that is asked for, so
`_choose` picks them, `_gather` takes from them what is no lower than the last group's highest, and these few are put in
order: alone by `_ordered`, or as what rows are told of by `_told`. Never sorts a vocabulary, and never guesses. Used by
the operations for up to `MAX_TOP`; held against `sampling.ordered_top`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopwright.engine.cuda.buffers import DecodeBuffers
from loopwright.engine.cuda.normalizer_kernels import CHUNK, GROUP, JOIN_WARPS, look, sum_up
from loopwright.engine.cuda.score_kernels import LARGEST, LOWEST, keys_of, turned

MAX_TOP = 256
_ROOM = 512  # scores that are put in order: those asked for, and as many that may be in their groups
_NOBODY = tl.constexpr(-9223372036854775808)


def ordered_top(values: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """As `Operations.top`."""
    entries = _highest(values, size, None)
    found = torch.empty(len(values), size, dtype=torch.float32, device=values.device)
    ids = torch.empty(len(values), size, dtype=torch.int64, device=values.device)
    _ordered[(len(values),)](entries, found, ids, size, ROOM=_ROOM, num_warps=8)
    return found, ids


def listed(buffers: DecodeBuffers, logits: Tensor, size: int, *, is_end: bool) -> Tensor:
    """As `Operations.listed`."""
    num_rows, vocab_size = logits.shape
    num_parts = triton.cdiv(vocab_size, CHUNK)
    weighed = torch.empty(num_rows, num_parts, 3, dtype=torch.float32, device=logits.device)
    entries = _highest(logits, size, weighed)
    packed = torch.empty(num_rows, 2 * size + 4, dtype=torch.int32, device=logits.device)
    _told[(num_rows,)](
        entries, weighed, packed, buffers.outputs, buffers.inputs, size, num_parts, buffers.inputs.stride(0),
        PARTS=triton.next_power_of_2(num_parts), ROOM=_ROOM, IS_END=is_end, num_warps=JOIN_WARPS,
    )  # fmt: skip
    return packed


def _highest(values: Tensor, size: int, weighed: Tensor | None) -> Tensor:
    """The `size` highest of each row and at most `_ROOM` in all, in any order, as int64 [num_rows, _ROOM]."""
    num_rows, vocab_size = values.shape
    num_parts, width = triton.cdiv(vocab_size, CHUNK), MAX_TOP  # for any size, so that nothing is compiled later
    num_groups = num_parts * (CHUNK // GROUP)
    tops = torch.empty(num_rows, num_groups, dtype=torch.int32, device=values.device)
    groups = torch.empty(num_rows, width + 1, dtype=torch.int32, device=values.device)
    entries = torch.empty(num_rows, _ROOM, dtype=torch.int64, device=values.device)
    look[(num_rows, num_parts)](
        values, weighed, tops, values.stride(0), vocab_size, num_parts, CHUNK=CHUNK, GROUP=GROUP
    )
    _choose[(num_rows,)](
        tops, groups, num_groups, size, NUM=max(width, triton.next_power_of_2(num_groups)), WIDTH=width, num_warps=8
    )
    _gather[(num_rows,)](
        values, groups, entries, values.stride(0), vocab_size, size, WIDTH=width, GROUP=GROUP, ROOM=_ROOM, num_warps=8
    )
    return entries


@triton.jit(do_not_specialize=["num_groups", "size"])
def _choose(tops, groups, num_groups, size, NUM: tl.constexpr, WIDTH: tl.constexpr):
    """Of each row the `size` groups with the highest tops, the first of those that tie, in any order; behind them, the
    lowest of these tops. Nobody precedes all of a group's scores but scores of the groups before it."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, NUM)
    keys = tl.load(tops + row * num_groups + place, mask=place < num_groups, other=LOWEST)
    low, high = tl.full((), LOWEST, tl.int64), tl.full((), LARGEST, tl.int64)
    for _ in range(32):
        middle = (low + high + 1) >> 1
        is_enough = tl.sum((keys >= middle.to(tl.int32)).to(tl.int32), axis=0) >= size
        low, high = tl.where(is_enough, middle, low), tl.where(is_enough, high, middle - 1)
    last = low.to(tl.int32)
    is_above, is_tie = keys > last, keys == last
    counted = tl.cumsum(is_above.to(tl.int32) + (is_tie.to(tl.int32) << 16), axis=0)  # two sums in one
    num_above = tl.sum(is_above.to(tl.int32), axis=0)
    at = tl.where(is_above, counted & 0xFFFF, num_above + (counted >> 16)) - 1
    tl.store(groups + row * (WIDTH + 1) + at, place, mask=is_above | (is_tie & (at < size)))
    tl.store(groups + row * (WIDTH + 1) + WIDTH, last)


@triton.jit(do_not_specialize=["size"])
def _gather(
    values, groups, entries, stride, vocab_size, size, WIDTH: tl.constexpr, GROUP: tl.constexpr, ROOM: tl.constexpr
):  # fmt: skip
    """An entry has a key in its upper half, and in the lower one the id, turned round: of equal keys the first is the
    largest. Where more scores than there is room for tie with the last group's highest, as many as are asked for."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, WIDTH * GROUP)
    is_chosen = place // GROUP < size
    group = tl.load(groups + row * (WIDTH + 1) + place // GROUP, mask=is_chosen, other=0)
    column = group * GROUP + place % GROUP
    mask = is_chosen & (column < vocab_size)
    keys = keys_of(tl.load(values + row * stride + column, mask=mask, other=-float("inf"))).to(tl.int64)
    own = tl.where(mask, (keys << 32) | (2147483647 - column), _NOBODY)
    least = tl.load(groups + row * (WIDTH + 1) + WIDTH).to(tl.int64) << 32
    num = tl.sum((mask & (own >= least)).to(tl.int32), axis=0)
    if num > ROOM:
        most = tl.max(own, axis=0)
        for _ in range(64):
            middle = (least | most) - ((least ^ most) >> 1)  # rounded up
            is_enough = tl.sum((own >= middle).to(tl.int32), axis=0) >= size
            least, most = tl.where(is_enough, middle, least), tl.where(is_enough, most, middle - 1)
        num = tl.sum((mask & (own >= least)).to(tl.int32), axis=0)
    is_in = mask & (own >= least)
    at = tl.cumsum(is_in.to(tl.int32), axis=0) - 1
    tl.store(entries + row * ROOM + at, own, mask=is_in)
    rest = tl.arange(0, ROOM)
    tl.store(entries + row * ROOM + rest, tl.full((ROOM,), _NOBODY, tl.int64), mask=rest >= num)


@triton.jit
def _ranked(entries, row, ROOM: tl.constexpr):
    """Entries of a row, how many are above each, and of each its score and its id."""
    own = tl.load(entries + row * ROOM + tl.arange(0, ROOM))
    rank = tl.zeros((ROOM,), tl.int32)
    for start in range(0, ROOM, 16):
        others = tl.load(entries + row * ROOM + start + tl.arange(0, 16))
        rank += tl.sum((others[None, :] > own[:, None]).to(tl.int32), axis=1)
    value = turned((own >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
    return own, rank, value, 2147483647 - (own & 0xFFFFFFFF)


@triton.jit(do_not_specialize=["size"])
def _ordered(entries, found, ids, size, ROOM: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    own, rank, value, token = _ranked(entries, row, ROOM)
    mask = (own != _NOBODY) & (rank < size)
    tl.store(found + row * size + rank, value, mask=mask)
    tl.store(ids + row * size + rank, token, mask=mask)


@triton.jit(do_not_specialize=["size", "num_parts"])
def _told(
    entries, weighed, packed, outputs, inputs, size, num_parts, stride, PARTS: tl.constexpr, ROOM: tl.constexpr,
    IS_END: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    own, rank, value, token = _ranked(entries, row, ROOM)
    mask = (own != _NOBODY) & (rank < size)
    normalizer, is_bad = sum_up(weighed, row, num_parts, PARTS)
    logprob = (value.to(tl.float64) - normalizer.to(tl.float64)).to(tl.float32)
    covered = tl.sum(tl.where(mask, tl.exp(logprob.to(tl.float64)), 0.0), axis=0)
    num_finite = tl.sum((mask & (tl.abs(logprob) < float("inf"))).to(tl.int32), axis=0)
    at = packed + row * (2 * size + 4)
    tl.store(at + rank, token.to(tl.int32), mask=mask)
    tl.store(at + size + rank, logprob.to(tl.int32, bitcast=True), mask=mask)
    bits = covered.to(tl.int64, bitcast=True)
    tl.store(at + 2 * size, bits.to(tl.int32))
    tl.store(at + 2 * size + 1, (bits >> 32).to(tl.int32))
    tl.store(at + 2 * size + 2, num_finite)
    if IS_END:
        has_failed = tl.load(inputs + 4 * stride + row) | is_bad
        chosen = tl.sum(tl.where(mask & (rank == 0), token, 0), axis=0).to(tl.int32)
        best = tl.max(tl.where(mask & (rank == 0), logprob, -float("inf")), axis=0)
        tl.store(outputs + row, tl.where(has_failed > 0, 0, chosen))
        tl.store(outputs + stride + row, tl.minimum(best, 0.0).to(tl.int32, bitcast=True))
        tl.store(outputs + 2 * stride + row, has_failed)
        growth = tl.load(inputs + 3 * stride + row)
        tl.store(inputs + row, tl.where(has_failed > 0, 0, chosen))
        tl.store(inputs + stride + row, tl.load(inputs + stride + row) + growth)
        tl.store(inputs + 2 * stride + row, tl.load(inputs + 2 * stride + row) + growth)
        tl.store(inputs + 4 * stride + row, has_failed)
        tl.store(at + 2 * size + 3, has_failed)
    else:
        tl.store(at + 2 * size + 3, tl.load(outputs + 2 * stride + row))
