"""Attention over paged KV as one Triton kernel: of rows of one token, of prompts, with masks, with windows by position.

Equal to SdpaAttention up to rounding. Everything that a launch needs lies on the device, so a graph holds it for any
lengths. A tile is some tokens of a row that follow one another; its places are cut into parts, one program each, that a
second launch puts together.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopwright.engine.cuda.operations import Reach
from loopwright.engine.kv_cache import BLOCK_SIZE

_LOG2E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the work is cut."""

    rows: int  # of one program: tokens times query heads of a KV head
    places: int  # of one round of a program
    num_warps: int
    num_stages: int
    programs: int = 528  # that fill the device
    max_parts: int = 32
    has_fixed_parts: bool = False  # `max_parts` for every token, by how many places it may see and nothing else

    def num_parts(self, num_tiles: int, num_kv_heads: int, max_blocks: int) -> int:
        """A power of two, so that few kernels are compiled."""
        if self.has_fixed_parts:
            return self.max_parts
        wanted = max(1, min(self.programs // (num_tiles * num_kv_heads), self.max_parts, max_blocks))
        return 1 << (wanted.bit_length() - 1)


SINGLES = Tiling(rows=16, places=64, num_warps=2, num_stages=3)
SINGLES_OF_LONG_HEADS = Tiling(rows=16, places=32, num_warps=2, num_stages=2)
"""Of rows of one token; the latter for heads of 128, if a row is in one part. Both are the best of some dozen, measured
on one H200."""
SINGLES_OF_LONGER_HEADS = Tiling(rows=16, places=32, num_warps=4, num_stages=2)
FIXED = Tiling(rows=32, places=64, num_warps=4, num_stages=2, max_parts=8, has_fixed_parts=True)
"""Of all rows, where a token's bits may not depend on who is beside it."""
SHORT = Tiling(rows=32, places=64, num_warps=4, num_stages=2)
LONG = Tiling(rows=128, places=64, num_warps=8, num_stages=2, programs=264)
LONG_OF_LONG_HEADS = Tiling(rows=128, places=128, num_warps=8, num_stages=2, programs=264)
LONG_WITH_WINDOW = Tiling(rows=128, places=32, num_warps=8, num_stages=3, programs=264)
"""Of rows of several tokens; LONG is the best of five, measured on one H200 at heads of 128 and 256, with windows. The
next is the best of seven for heads of 128, and the last of three for heads of 256 in layers with a window."""


def long_tiling(head_dim: int, *, has_mask: bool = False) -> Tiling:
    """A mask's word is of the places of a round."""
    return LONG_OF_LONG_HEADS if head_dim == 128 and not has_mask else LONG


def singles_tiling(num_rows: int, num_kv_heads: int, head_dim: int, max_blocks: int) -> Tiling:
    if head_dim > 128:
        return SINGLES_OF_LONGER_HEADS
    is_whole = SINGLES.num_parts(num_rows, num_kv_heads, max_blocks) == 1
    return SINGLES_OF_LONG_HEADS if is_whole and head_dim >= 128 else SINGLES


def windowed(tiling: Tiling, head_dim: int) -> Tiling:
    """In a layer with a window, for the same tiles of tokens: three loops take more registers than two."""
    if tiling in (LONG, LONG_OF_LONG_HEADS):
        return LONG_WITH_WINDOW if head_dim > 128 else LONG
    return tiling


def tiling_for(num_rows: int, head_dim: int, *, has_mask: bool) -> Tiling:
    """For rows of several tokens, the longest of which has `num_rows` for each KV head."""
    return SHORT if num_rows <= SHORT.rows else long_tiling(head_dim, has_mask=has_mask)


def reach(table: Tensor, tiles: Tensor, positions: Tensor, window: int, num_tokens: int = 1) -> Reach:
    """Finds the first place that any token of each tile sees, and that from which on all of them see all. `tiles` as
    `attend` takes them, of at most `num_tokens` tokens; `positions` [places] are the cache's, with those of the tiles'
    own tokens."""
    first = torch.empty(2, len(tiles), dtype=torch.int32, device=table.device)
    _first_seen[(len(tiles),)](
        table, tiles, positions, first, table.stride(0), window, TOKENS=max(2, triton.next_power_of_2(num_tokens)),
        SIZE=BLOCK_SIZE, PLACES=2048, IS_SINGLE=tiles.ndim == 1,
    )  # fmt: skip
    return Reach(window, positions, first)


def attend(
    query: Tensor, kv: Tensor, table: Tensor, tiles: Tensor, tiling: Tiling, *,
    mask: tuple[Tensor, Tensor] | None = None, reach: Reach | None = None,
) -> Tensor:  # fmt: skip
    """query [num_tokens, num_heads, head_dim], kv [num_blocks, 2, 16, num_kv_heads, head_dim], table [num_rows,
    max_blocks] → [num_tokens, num_heads · head_dim].

    `tiles` int32 are [num_rows], lengths with the new token, where each row has one; else [num_tiles, 4]: a row, its
    first token among all, how many tokens, and how many places the first may see. `mask` are the bits of the
    places that a token sees, 64 in a word, and at which word each token's begin, -1 for one that sees all before it."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, padded = kv.shape[3], triton.next_power_of_2(head_dim)
    parts = tiling.num_parts(len(tiles), num_kv_heads, table.shape[1])
    out = torch.empty(num_tokens, num_heads * head_dim, dtype=query.dtype, device=query.device)
    some, seen = out, None
    if parts > 1:
        some = torch.empty(num_tokens, parts, num_heads, head_dim, dtype=torch.float32, device=query.device)
        seen = torch.empty(num_tokens, parts, num_heads, 2, dtype=torch.float32, device=query.device)
    bits, starts = (None, None) if mask is None else mask
    window, positions, first = (0, None, None) if reach is None else (reach.window, reach.positions, reach.first)
    group = num_heads // num_kv_heads
    # Fixed parts have one form: in another the compiler may fuse what it does not here.
    is_cut = tiles.ndim == 2 and mask is None and not tiling.has_fixed_parts
    _attend[(len(tiles), num_kv_heads, parts)](
        query, kv, table, tiles, bits, starts, positions, first, some, seen, num_heads, num_kv_heads, table.stride(0),
        window, head_dim**-0.5 * _LOG2E, GROUP=group, ROWS=max(tiling.rows, triton.next_power_of_2(group)), D=head_dim,
        DP=padded, SIZE=BLOCK_SIZE, PLACES=tiling.places, PARTS=parts, IS_SINGLE=tiles.ndim == 1,
        IS_FIXED=tiling.has_fixed_parts, HAS_MASK=mask is not None, HAS_WINDOW=reach is not None, IS_CUT=is_cut,
        num_warps=tiling.num_warps, num_stages=tiling.num_stages,
    )  # fmt: skip
    if parts > 1:
        _join[(num_tokens, num_heads)](some, seen, out, num_heads, D=head_dim, DP=padded, PARTS=parts, num_warps=1)
    return out


@triton.jit
def _tile(tiles, number, IS_SINGLE: tl.constexpr):
    """The row, the first token, how many tokens, and how many places the first may see."""
    if IS_SINGLE:
        row, first, count, length = number, number, 1, tl.load(tiles + number)
    else:
        row = tl.load(tiles + number * 4).to(tl.int64)
        first = tl.load(tiles + number * 4 + 1).to(tl.int64)
        count = tl.load(tiles + number * 4 + 2)
        length = tl.load(tiles + number * 4 + 3)
    return row, first, count, length


@triton.jit
def _blocks(blocks, place, is_here, SIZE: tl.constexpr):
    """The block of each of a row's places."""
    return tl.load(blocks + place // SIZE, mask=is_here, other=0).to(tl.int64)


@triton.jit
def _first_seen(
    table, tiles, positions, first_places, table_stride, window, TOKENS: tl.constexpr, SIZE: tl.constexpr,
    PLACES: tl.constexpr, IS_SINGLE: tl.constexpr,
):  # fmt: skip
    """Positions may have gaps and go back, so all are looked at: of a layer's KV that is a thousandth."""
    number = tl.program_id(0).to(tl.int64)
    row, _, count, length = _tile(tiles, number, IS_SINGLE)
    blocks = table + row * table_stride
    token = tl.arange(0, TOKENS)
    is_token = token < count
    own_place = length - 1 + token
    at = _blocks(blocks, own_place, is_token, SIZE) * SIZE + own_place % SIZE
    own = tl.load(positions + at, mask=is_token, other=0)
    oldest = tl.min(tl.where(is_token, own, 2147483647), axis=0) - window
    newest = tl.max(tl.where(is_token, own, -2147483648), axis=0) - window
    end = length + count - 1
    found = end
    hidden = tl.zeros([], tl.int32)
    for begin in range(0, end, PLACES):
        place = begin + tl.arange(0, PLACES)
        is_here = place < end
        position = tl.load(
            positions + _blocks(blocks, place, is_here, SIZE) * SIZE + place % SIZE, mask=is_here, other=0
        )
        found = tl.minimum(found, tl.min(tl.where(is_here & (position > oldest), place, end), axis=0))
        hidden = tl.maximum(hidden, tl.max(tl.where(is_here & (position <= newest), place + 1, 0), axis=0))
    tl.store(first_places + number, found)
    tl.store(first_places + tl.num_programs(0) + number, hidden)


@triton.jit
def _attend(
    query, kv, table, tiles, bits, starts, positions, first_places, some, seen, num_heads, num_kv_heads, table_stride,
    window, scale, GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, SIZE: tl.constexpr,
    PLACES: tl.constexpr, PARTS: tl.constexpr, IS_SINGLE: tl.constexpr, IS_FIXED: tl.constexpr, HAS_MASK: tl.constexpr,
    HAS_WINDOW: tl.constexpr, IS_CUT: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64)
    if not IS_SINGLE:
        number = tl.num_programs(0) - 1 - number  # those that see most begin first
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    row, first, count, length = _tile(tiles, number, IS_SINGLE)
    start, end = _span(first_places, number, length, count, part, PLACES, PARTS, IS_FIXED, HAS_WINDOW)
    blocks = table + row * table_stride
    column = tl.arange(0, DP)
    member = tl.arange(0, ROWS)
    token = first + member // GROUP
    head = kv_head * GROUP + member % GROUP
    is_member = member < count * GROUP
    own_end = length + member // GROUP
    is_query = is_member[:, None] & (column < D)[None, :]
    queries = tl.load(query + (token * num_heads + head)[:, None] * D + column[None, :], mask=is_query, other=0.0)
    own = own_end
    own_bits = own_end
    if HAS_WINDOW:
        own_block = _blocks(blocks, own_end - 1, is_member, SIZE)
        own = tl.load(positions + own_block * SIZE + (own_end - 1) % SIZE, mask=is_member, other=0)
    if HAS_MASK:
        own_bits = tl.load(starts + token, mask=is_member, other=-1)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DP], tl.float32)
    begin = start
    if IS_CUT:  # what all tokens of the tile see needs no comparing
        if HAS_WINDOW:
            hidden = tl.load(first_places + tl.num_programs(0) + number)
            begin = tl.minimum(end, start + tl.cdiv(tl.maximum(hidden - start, 0), PLACES) * PLACES)
            top, total, sums = _rounds(
                queries, kv, blocks, bits, positions, start, begin, end, kv_head, num_kv_heads, own_end, own, own_bits,
                window, scale, top, total, sums, D, DP, SIZE, PLACES, IS_SINGLE, HAS_MASK, HAS_WINDOW,
            )  # fmt: skip
        full = begin + tl.maximum(tl.minimum(end, length) - begin, 0) // PLACES * PLACES
        for at_place in range(begin, full, PLACES):
            place = at_place + tl.arange(0, PLACES)
            block = tl.load(blocks + place // SIZE).to(tl.int64)
            at = ((block * 2 * SIZE + place % SIZE) * num_kv_heads + kv_head) * D
            keys = tl.load(kv + at[:, None] + column[None, :], mask=(column < D)[None, :], other=0.0)
            scores = tl.dot(queries, tl.trans(keys)) * scale
            values = tl.load(
                kv + SIZE * num_kv_heads * D + at[:, None] + column[None, :], mask=(column < D)[None, :], other=0.0
            )
            top, total, sums = _with_round(scores, values, top, total, sums, HAS_WINDOW)
        begin = full
    top, total, sums = _rounds(
        queries, kv, blocks, bits, positions, begin, end, end, kv_head, num_kv_heads, own_end, own, own_bits, window,
        scale, top, total, sums, D, DP, SIZE, PLACES, IS_SINGLE, HAS_MASK, HAS_WINDOW,
    )  # fmt: skip
    _store(
        some, seen, top, total, sums, token, head, is_member, column, part, num_heads, start < end, D, PARTS
    )  # fmt: skip


@triton.jit
def _rounds(
    queries, kv, blocks, bits, positions, begin, stop, end, kv_head, num_kv_heads, own_end, own, own_bits, window,
    scale, top, total, sums, D: tl.constexpr, DP: tl.constexpr, SIZE: tl.constexpr, PLACES: tl.constexpr,
    IS_SINGLE: tl.constexpr, HAS_MASK: tl.constexpr, HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """The softmax's sums with the places from `begin` to `stop`, as far as each token sees them."""
    column = tl.arange(0, DP)
    for at_place in range(begin, stop, PLACES):
        place = at_place + tl.arange(0, PLACES)
        is_here = place < end
        block = _blocks(blocks, place, is_here, SIZE)
        at = ((block * 2 * SIZE + place % SIZE) * num_kv_heads + kv_head) * D
        is_loaded = is_here[:, None] & (column < D)[None, :]
        keys = tl.load(kv + at[:, None] + column[None, :], mask=is_loaded, other=0.0)
        scores = tl.dot(queries, tl.trans(keys)) * scale
        is_seen = is_here[None, :]
        if not IS_SINGLE:
            is_seen = is_seen & (place[None, :] < own_end[:, None])
        if HAS_WINDOW:
            position = tl.load(positions + block * SIZE + place % SIZE, mask=is_here, other=0)
            is_seen = is_seen & (own[:, None] - position[None, :] < window)
        if HAS_MASK:
            word = tl.load(bits + own_bits + at_place // 64, mask=own_bits >= 0, other=-1)
            is_seen = is_seen & (((word[:, None] >> (place % 64)[None, :]) & 1) != 0)
        scores = tl.where(is_seen, scores, -float("inf"))
        values = tl.load(kv + SIZE * num_kv_heads * D + at[:, None] + column[None, :], mask=is_loaded, other=0.0)
        top, total, sums = _with_round(scores, values, top, total, sums, HAS_WINDOW or HAS_MASK or not IS_SINGLE)
    return top, total, sums


@triton.jit
def _span(
    first_places, number, length, count, part, PLACES: tl.constexpr, PARTS: tl.constexpr, IS_FIXED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """Where a part of a tile's places starts and ends."""
    last = length + count - 1
    begin = 0
    if HAS_WINDOW:
        begin = tl.load(first_places + number) // PLACES * PLACES
    if IS_FIXED:  # by what the token may see without a window: rounds that it hides change no bit
        share = (tl.cdiv(length, PARTS) + PLACES - 1) // PLACES * PLACES  # the same for all tokens of the tile
        start = part * share
        end = tl.minimum(start + share, last)
        if HAS_WINDOW:
            start = tl.maximum(start, begin)
    else:
        share = (tl.cdiv(last - begin, PARTS) + PLACES - 1) // PLACES * PLACES
        start = begin + part * share
        end = tl.minimum(start + share, last)
    return start, end


@triton.jit
def _with_round(scores, values, top, total, sums, MAY_SEE_NOTHING: tl.constexpr):
    """The softmax's sums with one more round."""
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    base = new_top
    if MAY_SEE_NOTHING:
        base = tl.where(new_top == -float("inf"), 0.0, new_top)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(top - base)
    total = total * shrink + tl.sum(weights, axis=1)
    return new_top, total, sums * shrink[:, None] + tl.dot(weights.to(values.dtype), values)


@triton.jit
def _store(
    some, seen, top, total, sums, token, head, is_member, column, part, num_heads, is_used, D: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """The result of a tile that is in one part, else what `_join` needs of a part."""
    mask = is_member[:, None] & (column < D)[None, :]
    if PARTS == 1:
        total = tl.where(total == 0, 1.0, total)  # a token that sees nothing gets zeros
        at = (token * num_heads + head)[:, None] * D + column[None, :]
        tl.store(some + at, (sums / total[:, None]).to(some.dtype.element_ty), mask=mask)
    else:
        which = (token * PARTS + part) * num_heads + head
        tl.store(seen + which * 2, top, mask=is_member)
        tl.store(seen + which * 2 + 1, total, mask=is_member)
        if is_used:
            tl.store(some + which[:, None] * D + column[None, :], sums, mask=mask)


@triton.jit
def _join(some, seen, out, num_heads, D: tl.constexpr, DP: tl.constexpr, PARTS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    part = tl.arange(0, PARTS)
    column = tl.arange(0, DP)
    which = (token * PARTS + part) * num_heads + head
    tops = tl.load(seen + which * 2)
    is_used = tops != -float("inf")
    top = tl.max(tl.where(is_used, tops, -float("inf")), axis=0)
    shares = tl.where(is_used, tl.exp2(tops - top), 0.0)
    total = tl.sum(tl.load(seen + which * 2 + 1) * shares, axis=0)
    sums = tl.load(
        some + which[:, None] * D + column[None, :], mask=is_used[:, None] & (column < D)[None, :], other=0.0
    )  # fmt: skip
    joined = tl.sum(sums * shares[:, None], axis=0)
    joined = tl.where(total == 0, 0.0, joined / total)  # a token that sees nothing gets zeros
    tl.store(out + (token * num_heads + head) * D + column, joined.to(out.dtype.element_ty), mask=column < D)
