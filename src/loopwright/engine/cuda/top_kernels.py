"""The likeliest tokens of many rows in order, as three Triton launches: of each part of a row, of all parts, sorted.

Never sorts a vocabulary. Used by the operations for up to `MAX_TOP`; held against `sampling.ordered_top`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopwright.engine.cuda.score_kernels import LOWEST, keys_of, turned

MAX_TOP = 256
_CHUNK = 4096  # values of one program
_MIN_WIDTH = 32  # that kernels are compiled for
_NOBODY = tl.constexpr(-9223372036854775808)


def ordered_top(values: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """As `Operations.top`."""
    num_rows, vocab_size = values.shape
    parts, width = triton.cdiv(vocab_size, _CHUNK), max(_MIN_WIDTH, triton.next_power_of_2(size))
    best = torch.empty(num_rows, parts, width, dtype=torch.int64, device=values.device)
    _of_parts[(num_rows, parts)](
        values, best, values.stride(0), vocab_size, parts, size, WIDTH=width, CHUNK=_CHUNK, num_warps=8
    )
    if parts > 1:
        all_best = torch.empty(num_rows, width, dtype=torch.int64, device=values.device)
        _of_rows[(num_rows,)](
            best, all_best, parts * width, size, NUM=triton.next_power_of_2(parts * width), WIDTH=width, num_warps=8
        )
        best = all_best
    found = torch.empty(num_rows, size, dtype=torch.float32, device=values.device)
    ids = torch.empty(num_rows, size, dtype=torch.int64, device=values.device)
    _sorted[(num_rows,)](best, found, ids, size, WIDTH=width, num_warps=4)
    return found, ids


@triton.jit
def _place_best(target, entries, keys, is_here, size, WIDTH: tl.constexpr):
    """Writes the entries with the `size` largest keys, the first of those that tie, to WIDTH places, in any order;
    where there are fewer, what is smaller than all."""
    low, high = tl.full((), LOWEST, tl.int64), tl.full((), 2147483647, tl.int64)
    for _ in range(32):
        middle = (low + high + 1) >> 1
        is_enough = tl.sum((is_here & (keys >= middle)).to(tl.int32), axis=0) >= size
        low, high = tl.where(is_enough, middle, low), tl.where(is_enough, high, middle - 1)
    is_above, is_tie = is_here & (keys > low), is_here & (keys == low)
    above, ties = tl.cumsum(is_above.to(tl.int32), axis=0), tl.cumsum(is_tie.to(tl.int32), axis=0)
    num_above = tl.sum(is_above.to(tl.int32), axis=0)
    place = tl.where(is_above, above, num_above + ties) - 1
    tl.store(target + place, entries, mask=is_above | (is_tie & (place < size)))
    num = tl.minimum(num_above + tl.sum(is_tie.to(tl.int32), axis=0), size)
    rest = tl.arange(0, WIDTH)
    tl.store(target + rest, tl.full((WIDTH,), _NOBODY, tl.int64), mask=rest >= num)


@triton.jit(do_not_specialize=["parts", "size"])
def _of_parts(values, best, stride, vocab_size, parts, size, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """An entry has a key in its upper half, and in the lower one the id, turned round: of equal keys the first is the
    largest."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    column = part * CHUNK + tl.arange(0, CHUNK)
    mask = column < vocab_size
    keys = keys_of(tl.load(values + row * stride + column, mask=mask, other=-float("inf"))).to(tl.int64)
    _place_best(best + (row * parts + part) * WIDTH, (keys << 32) | (2147483647 - column), keys, mask, size, WIDTH)


@triton.jit(do_not_specialize=["num", "size"])
def _of_rows(best, all_best, num, size, NUM: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, NUM)
    entries = tl.load(best + row * num + place, mask=place < num, other=_NOBODY)
    _place_best(all_best + row * WIDTH, entries, entries >> 32, entries != _NOBODY, size, WIDTH)


@triton.jit(do_not_specialize=["size"])
def _sorted(best, found, ids, size, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, WIDTH)
    entries = tl.sort(tl.load(best + row * WIDTH + place), descending=True)
    keys = (entries >> 32).to(tl.int32)
    mask = place < size
    tl.store(found + row * size + place, turned(keys).to(tl.float32, bitcast=True), mask=mask)
    tl.store(ids + row * size + place, 2147483647 - (entries & 0xFFFFFFFF), mask=mask)
