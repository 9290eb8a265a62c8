"""Attention of rows of any number of tokens as Triton kernels that give a token the same bits whoever is beside it.

A token's places are cut into eight parts, by how many it may see and nothing else; parts are put together in order.
Tokens of a row that follow one another share a program, if their parts are the same: it only reads keys once for all.
"""

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from loopwright.engine.attention import AttentionRow
from loopwright.engine.cuda.attention import visible
from loopwright.engine.cuda.cache import DeviceKvCache
from loopwright.engine.kv_cache import BLOCK_SIZE

PARTS = 8
_PLACES = 64  # of one round of a program
_ROWS = 32  # of one program: tokens times query heads of a KV head
_MAX_TOKENS = 1024  # of one launch: what parts give takes megabytes for each
_LOG2E = 1.4426950408889634


def attend_singles(query: Tensor, kv: Tensor, table: Tensor, lens: Tensor) -> Tensor:
    """Rows of one token, as Operations.attend has it."""
    return _attend(query, kv, table, lens, None, None)


class TokenAttention:
    """Implements cuda.attention.PagedAttention."""

    name = "triton"

    def __init__(self, cache: DeviceKvCache, num_heads: int) -> None:
        self._cache, self._group = cache, num_heads // cache.layers[0].shape[3]

    def plan(self, rows: Sequence[AttentionRow], positions: Tensor) -> "TokenRows":
        return TokenRows(self._cache, self._group, rows, positions)


class TokenRows:
    """Implements cuda.attention.PlannedRows. Masks and windows are of windows by position, one byte for each place."""

    def __init__(
        self, cache: DeviceKvCache, group: int, rows: Sequence[AttentionRow], positions: Tensor
    ) -> None:  # fmt: skip
        self._cache = cache
        width = max(len(_used_blocks(row)) for row in rows)
        table = np.zeros((len(rows), width), np.int32)
        for number, row in enumerate(rows):
            blocks = _used_blocks(row)
            table[number, : len(blocks)] = blocks
        self._table = torch.from_numpy(table).to(cache.device)
        self._launches = [
            (tokens, torch.from_numpy(tiles).to(cache.device)) for tokens, tiles in launches(rows, tile_tokens(group))
        ]
        self._seen = {
            window: _flat_mask(rows, cache, positions, window)
            for window in set(cache.windows)
            if window is not None or any(row.mask is not None for row in rows)
        }

    def attend(self, layer: int, query: Tensor) -> Tensor:
        kv, seen = self._cache.layers[layer], self._seen.get(self._cache.windows[layer])
        parts = [
            _attend(query[tokens], kv, self._table, None, tiles, None if seen is None else (seen[0], seen[1][tokens]))
            for tokens, tiles in self._launches
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def tile_tokens(group: int) -> int:
    """How many tokens share a program at most."""
    return max(1, _ROWS // group)


def launches(rows: Sequence[AttentionRow], num_shared: int) -> list[tuple[slice, np.ndarray]]:
    """Which tokens each launch has, and its tiles [num_tiles, 4]: the row, the first token, counted from the launch's
    first, how many there are, and how many places the first sees."""
    found: list[tuple[slice, np.ndarray]] = []
    tiles: list[tuple[int, int, int, int]] = []
    begin = token = 0
    for number, row in enumerate(rows):
        length, end = row.kv_len + 1, row.kv_len + row.num_tokens
        while length <= end:
            last_alike = -(-length // (PARTS * _PLACES)) * PARTS * _PLACES
            count = min(num_shared, end - length + 1, last_alike - length + 1)
            if token - begin + count > _MAX_TOKENS:
                found.append((slice(begin, token), np.array(tiles, np.int32)))
                tiles, begin = [], token
            tiles.append((number, token - begin, count, length))
            token += count
            length += count
    return [*found, (slice(begin, token), np.array(tiles, np.int32))]


def _used_blocks(row: AttentionRow) -> Sequence[int]:
    return row.block_ids[: -(-(row.kv_len + row.num_tokens) // BLOCK_SIZE)]


def _flat_mask(
    rows: Sequence[AttentionRow], cache: DeviceKvCache, positions: Tensor, window: int | None
) -> tuple[Tensor, Tensor]:
    """What all tokens see, a byte for each place, and where each token's begins."""
    seen = visible(rows, cache.positions, positions, window)
    widths = np.concatenate([np.full(row.num_tokens, row.kv_len + row.num_tokens) for row in rows])
    starts = np.concatenate([[0], np.cumsum(widths)[:-1]])
    return torch.cat([one.flatten() for one in seen]).to(torch.uint8), torch.from_numpy(starts).to(cache.device)


def _attend(
    query: Tensor, kv: Tensor, table: Tensor, lens: Tensor | None, tiles: Tensor | None,
    mask: tuple[Tensor, Tensor] | None,
) -> Tensor:  # fmt: skip
    """With `lens` [num_tokens] a tile is a token of the row of that number; else `tiles` as `launches` has them."""
    query = query.contiguous()
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = kv.shape[3]
    group = num_heads // num_kv_heads
    padded = triton.next_power_of_2(head_dim)
    out = torch.empty(num_tokens, num_heads * head_dim, dtype=query.dtype, device=query.device)
    some = torch.empty(num_tokens, PARTS, num_heads, head_dim, dtype=torch.float32, device=query.device)
    seen = torch.empty(num_tokens, PARTS, num_heads, 2, dtype=torch.float32, device=query.device)
    num_tiles = num_tokens if tiles is None else len(tiles)
    bits, starts = (None, None) if mask is None else mask
    _attend_tile[(num_tiles, num_kv_heads, PARTS)](
        query, kv, table, lens, tiles, bits, starts, some, seen, num_heads, num_kv_heads, table.stride(0),
        head_dim**-0.5 * _LOG2E, GROUP=group, ROWS=max(_ROWS, triton.next_power_of_2(group)), D=head_dim, DP=padded,
        SIZE=BLOCK_SIZE, PLACES=_PLACES, PARTS=PARTS, IS_SINGLE=tiles is None, HAS_MASK=mask is not None,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    _join[(num_tokens, num_heads)](some, seen, out, num_heads, D=head_dim, DP=padded, PARTS=PARTS, num_warps=1)
    return out


@triton.jit
def _attend_tile(
    query, kv, table, lens, tiles, bits, starts, some, seen, num_heads, num_kv_heads, table_stride, scale,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, SIZE: tl.constexpr,
    PLACES: tl.constexpr, PARTS: tl.constexpr, IS_SINGLE: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    if IS_SINGLE:
        row, first, count, length = tile, tile, 1, tl.load(lens + tile)
    else:
        row = tl.load(tiles + tile * 4).to(tl.int64)
        first = tl.load(tiles + tile * 4 + 1).to(tl.int64)
        count = tl.load(tiles + tile * 4 + 2)
        length = tl.load(tiles + tile * 4 + 3)
    share = (tl.cdiv(length, PARTS) + PLACES - 1) // PLACES * PLACES  # the same for all tokens of the tile
    start = part * share
    end = tl.minimum(start + share, length + count - 1)
    column = tl.arange(0, DP)
    member = tl.arange(0, ROWS)
    token = first + member // GROUP
    head = kv_head * GROUP + member % GROUP
    is_member = member < count * GROUP
    own_end = length + member // GROUP
    is_query = is_member[:, None] & (column < D)[None, :]
    queries = tl.load(query + (token * num_heads + head)[:, None] * D + column[None, :], mask=is_query, other=0.0)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DP], tl.float32)
    for begin in range(start, end, PLACES):
        place = begin + tl.arange(0, PLACES)
        is_here = place < end
        block = tl.load(table + row * table_stride + place // SIZE, mask=is_here, other=0).to(tl.int64)
        at = ((block * 2 * SIZE + place % SIZE) * num_kv_heads + kv_head) * D
        is_loaded = is_here[:, None] & (column < D)[None, :]
        keys = tl.load(kv + at[:, None] + column[None, :], mask=is_loaded, other=0.0)
        is_seen = is_here[None, :] & (place[None, :] < own_end[:, None])
        if HAS_MASK:
            at_mask = tl.load(starts + token, mask=is_member, other=0)[:, None] + place[None, :]
            is_seen = is_seen & (tl.load(bits + at_mask, mask=is_seen & is_member[:, None], other=0) != 0)
        scores = tl.where(is_seen, tl.dot(queries, tl.trans(keys)) * scale, -float("inf"))
        values = tl.load(kv + SIZE * num_kv_heads * D + at[:, None] + column[None, :], mask=is_loaded, other=0.0)
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        base = tl.where(new_top == -float("inf"), 0.0, new_top)  # nothing is seen yet
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weights, axis=1)
        sums = sums * shrink[:, None] + tl.dot(weights.to(values.dtype), values)
        top = new_top
    which = (token * PARTS + part) * num_heads + head
    tl.store(seen + which * 2, top, mask=is_member)
    tl.store(seen + which * 2 + 1, total, mask=is_member)
    if start < end:
        tl.store(some + which[:, None] * D + column[None, :], sums, mask=is_query)


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
