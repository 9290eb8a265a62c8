"""Attention of rows of any number of tokens by the Triton kernel: what FlashInfer has no kernel for, or all of it.

Never computes: it cuts rows into tiles and says what each token sees. With fixed parts a token gets the same bits
whoever is beside it. Used by the parts and by the FlashInfer back-end.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.engine.attention import AttentionRow, seen_places
from loopwright.engine.cuda.attention_kernels import FIXED, Tiling, attend, reach, tiling_for, windowed
from loopwright.engine.cuda.cache import DeviceKvCache
from loopwright.engine.kv_cache import BLOCK_SIZE
from loopwright.engine.transfer import to_device

_WORD = 64  # places
_MAX_PARTED_TOKENS = 1024  # of one launch: what parts give takes megabytes for each


class TileAttention:
    """Implements cuda.attention.PagedAttention."""

    name = "triton"

    def __init__(self, cache: DeviceKvCache, num_heads: int, *, is_deterministic: bool = False) -> None:
        self._cache, self._group = cache, num_heads // cache.layers[0].shape[3]
        self._is_deterministic = is_deterministic

    def plan(self, rows: Sequence[AttentionRow], positions: Tensor) -> "TileRows":
        return TileRows(self._cache, rows, self._tiling(rows), self._group)

    def _tiling(self, rows: Sequence[AttentionRow]) -> Tiling:
        if self._is_deterministic:
            return FIXED
        num_rows, head_dim = max(row.num_tokens for row in rows) * self._group, self._cache.layers[0].shape[4]
        return tiling_for(num_rows, head_dim, has_mask=any(row.mask is not None for row in rows))


class TileRows:
    """Implements PlannedRows. Masks are bits of the tokens that have one; windows are by position."""

    takes_own = False

    def __init__(self, cache: DeviceKvCache, rows: Sequence[AttentionRow], tiling: Tiling, group: int) -> None:
        self._cache, self._tiling = cache, tiling
        width = max(len(_used_blocks(row)) for row in rows)
        table = np.zeros((len(rows), width), np.int32)
        for number, row in enumerate(rows):
            blocks = _used_blocks(row)
            table[number, : len(blocks)] = blocks
        self._table = to_device(table, cache.device)
        num_shared = max(1, tiling.rows // group)
        found = launches(rows, num_shared, tiling)
        self._launches = [(tokens, to_device(tiles, cache.device)) for tokens, tiles in found]
        self._mask = _words(rows, cache.device)
        self._reaches = {
            window: [reach(self._table, tiles, cache.positions, window, num_shared) for _, tiles in self._launches]
            for window in dict.fromkeys(cache.windows)
            if window is not None
        }

    def attend(self, layer: int, query: Tensor, own: Tensor) -> Tensor:
        kv, query = self._cache.layers[layer], query.contiguous()
        window = self._cache.windows[layer]
        reaches = [None] * len(self._launches) if window is None else self._reaches[window]
        tiling = self._tiling if window is None else windowed(self._tiling, query.shape[2])
        parts = [
            attend(
                query[tokens], kv, self._table, tiles, tiling, reach=one,
                mask=None if self._mask is None else (self._mask[0], self._mask[1][tokens]),
            )
            for (tokens, tiles), one in zip(self._launches, reaches, strict=True)
        ]  # fmt: skip
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def launches(rows: Sequence[AttentionRow], num_shared: int, tiling: Tiling) -> list[tuple[slice, NDArray[np.int32]]]:
    """Which tokens each launch has, and its tiles [num_tiles, 4] of up to `num_shared` tokens as the kernel takes them,
    first tokens counted from the launch's first. Tokens of a tile have the same parts, where these are fixed."""
    span = tiling.max_parts * tiling.places if tiling.has_fixed_parts else 1 << 62
    max_tokens = _MAX_PARTED_TOKENS if tiling.has_fixed_parts else 1 << 62
    found: list[tuple[slice, NDArray[np.int32]]] = []
    tiles: list[tuple[int, int, int, int]] = []
    begin = token = 0
    for number, row in enumerate(rows):
        length, end = row.kv_len + 1, row.kv_len + row.num_tokens
        while length <= end:
            last_alike = -(-length // span) * span
            count = min(num_shared, end - length + 1, last_alike - length + 1)
            if token - begin + count > max_tokens:
                found.append((slice(begin, token), np.array(tiles, np.int32)))
                tiles, begin = [], token
            tiles.append((number, token - begin, count, length))
            token += count
            length += count
    return [*found, (slice(begin, token), np.array(tiles, np.int32))]


def _used_blocks(row: AttentionRow) -> Sequence[int]:
    return row.block_ids[: -(-(row.kv_len + row.num_tokens) // BLOCK_SIZE)]


def _words(rows: Sequence[AttentionRow], device: torch.device) -> tuple[Tensor, Tensor] | None:
    """What tokens of rows with masks see, as the kernel takes it; None if there is no such row."""
    if all(row.mask is None for row in rows):
        return None
    # How many words each token has: none without a mask.
    sizes = np.repeat(
        [0 if row.mask is None else -(-(row.kv_len + row.num_tokens) // _WORD) for row in rows],
        [row.num_tokens for row in rows],
    )
    masks = [one for row in rows for one in row.mask or ()]
    seen = seen_places(masks, _WORD * sizes[sizes > 0])
    starts = np.where(sizes > 0, np.cumsum(sizes) - sizes, -1)
    return to_device(np.packbits(seen, bitorder="little").view("<i8"), device), to_device(starts, device)
