"""Attention of rows of one token as Triton kernels: nothing to plan on the host, so a graph holds it for any lengths.

Equal to SdpaAttention.decode up to rounding. A row's places are cut into parts of equal length, one program each, and
put together by a second launch; how many parts follows from the size of the batch, so that the device is full.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopwright.engine.kv_cache import BLOCK_SIZE

_LOG2E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class DecodeTiling:
    """How the work is cut."""

    places: int = 64  # of one round of a program
    num_warps: int = 2
    num_stages: int = 3
    programs: int = 528  # that fill the device
    max_parts: int = 32


TILING = DecodeTiling()
LONG_HEADS = DecodeTiling(places=32, num_stages=2)
"""For heads of 128 and more, if a row is in one part. Both are the best of some dozen, measured on one H200."""


def num_parts(num_rows: int, num_kv_heads: int, max_blocks: int, tiling: DecodeTiling = TILING) -> int:
    """A power of two, so that few kernels are compiled."""
    wanted = max(1, min(tiling.programs // (num_rows * num_kv_heads), tiling.max_parts, max_blocks))
    return 1 << (wanted.bit_length() - 1)


def attend_paged(query: Tensor, kv: Tensor, table: Tensor, lens: Tensor, tiling: DecodeTiling | None = None) -> Tensor:
    """query [num_rows, num_heads, head_dim], kv [num_blocks, 2, 16, num_kv_heads, head_dim], table [num_rows,
    max_blocks], lens [num_rows] → [num_rows, num_heads · head_dim]."""
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = kv.shape[3]
    group = num_heads // num_kv_heads
    parts = num_parts(num_rows, num_kv_heads, table.shape[1], tiling or TILING)
    tiling = tiling or (LONG_HEADS if parts == 1 and head_dim >= 128 else TILING)
    out = torch.empty(num_rows, num_heads * head_dim, dtype=query.dtype, device=query.device)
    some = out if parts == 1 else torch.empty(
        num_rows, parts, num_heads, head_dim, dtype=torch.float32, device=query.device
    )  # fmt: skip
    seen = torch.empty(num_rows, parts, num_heads, 2, dtype=torch.float32, device=query.device)
    _attend_part[(num_rows, num_kv_heads, parts)](
        query, kv, table, lens, some, seen, num_heads, num_kv_heads, table.stride(0), head_dim**-0.5 * _LOG2E,
        GROUP=group, ROWS=max(16, triton.next_power_of_2(group)), D=head_dim, DP=triton.next_power_of_2(head_dim),
        SIZE=BLOCK_SIZE, PLACES=tiling.places, PARTS=parts, num_warps=tiling.num_warps, num_stages=tiling.num_stages,
    )  # fmt: skip
    if parts > 1:
        _join_parts[(num_rows, num_heads)](
            some, seen, out, num_heads, D=head_dim, DP=triton.next_power_of_2(head_dim), PARTS=parts, num_warps=1
        )
    return out


@triton.jit
def _attend_part(
    query, kv, table, lens, some, seen, num_heads, num_kv_heads, table_stride, scale,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, SIZE: tl.constexpr,
    PLACES: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    length = tl.load(lens + row)
    share = (tl.cdiv(length, PARTS) + PLACES - 1) // PLACES * PLACES
    start = part * share
    end = tl.minimum(start + share, length)
    column = tl.arange(0, DP)
    member = tl.arange(0, ROWS)
    is_query = (member < GROUP)[:, None] & (column < D)[None, :]
    head = kv_head * GROUP + member
    queries = tl.load(query + (row * num_heads + head)[:, None] * D + column[None, :], mask=is_query, other=0.0)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DP], tl.float32)
    for first in range(start, end, PLACES):
        place = first + tl.arange(0, PLACES)
        is_here = place < end
        block = tl.load(table + row * table_stride + place // SIZE, mask=is_here, other=0).to(tl.int64)
        at = ((block * 2 * SIZE + place % SIZE) * num_kv_heads + kv_head) * D
        is_loaded = is_here[:, None] & (column < D)[None, :]
        keys = tl.load(kv + at[:, None] + column[None, :], mask=is_loaded, other=0.0)
        scores = tl.dot(queries, tl.trans(keys)) * scale
        scores = tl.where(is_here[None, :], scores, -float("inf"))
        values = tl.load(kv + SIZE * num_kv_heads * D + at[:, None] + column[None, :], mask=is_loaded, other=0.0)
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weights, axis=1)
        sums = sums * shrink[:, None] + tl.dot(weights.to(values.dtype), values)
        top = new_top
    if PARTS == 1:
        at = (row * num_heads + head)[:, None] * D + column[None, :]
        tl.store(some + at, (sums / total[:, None]).to(some.dtype.element_ty), mask=is_query)
    else:
        which = (row * PARTS + part) * num_heads + head
        tl.store(some + which[:, None] * D + column[None, :], sums, mask=is_query)
        tl.store(seen + which * 2, top, mask=member < GROUP)
        tl.store(seen + which * 2 + 1, total, mask=member < GROUP)


@triton.jit
def _join_parts(some, seen, out, num_heads, D: tl.constexpr, DP: tl.constexpr, PARTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    part = tl.arange(0, PARTS)
    column = tl.arange(0, DP)
    which = (row * PARTS + part) * num_heads + head
    tops = tl.load(seen + which * 2)
    top = tl.max(tops, axis=0)
    shares = tl.where(tops == -float("inf"), 0.0, tl.exp2(tops - top))
    total = tl.sum(tl.load(seen + which * 2 + 1) * shares, axis=0)
    sums = tl.load(some + which[:, None] * D + column[None, :], mask=(column < D)[None, :], other=0.0)
    joined = tl.sum(sums * shares[:, None], axis=0) / total
    tl.store(out + (row * num_heads + head) * D + column, joined.to(out.dtype.element_ty), mask=column < D)
