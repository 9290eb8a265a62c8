"""Attention over paged KV on one device: the protocol, and "sdpa", its reference, which runs anywhere.

Never writes KV and never rotates. A step of rows is planned once and asked in each layer. Rows of one token have an
operation of their own, which needs no plan.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from loopwright.engine.attention import AttentionRow, seen_places
from loopwright.engine.cuda.cache import DeviceKvCache
from loopwright.engine.kv_cache import BLOCK_SIZE
from loopwright.engine.transfer import to_device


class PlannedRows(Protocol):
    """One step's rows."""

    @property
    def takes_own(self) -> bool:
        """Whether `attend` looks at `own`."""
        ...

    def attend(self, layer: int, query: Tensor, own: Tensor) -> Tensor:
        """query [num_tokens, num_heads, head_dim] → [num_tokens, num_heads · head_dim]. The rows' own keys and values
        are in the cache by then. If asked for, `own` [num_tokens, 2 · num_kv_heads, head_dim] has them as they are
        there, keys first."""
        ...


class PagedAttention(Protocol):
    """A way to compute attention. All match "sdpa"."""

    name: str

    def plan(self, rows: Sequence[AttentionRow], positions: Tensor) -> PlannedRows:
        """`positions` [num_tokens] are those of all rows' new tokens; the cache has them already."""
        ...


class SdpaAttention:
    """Implements PagedAttention with torch's own, row by row: slow, and simple enough to trust."""

    name = "sdpa"

    def __init__(self, cache: DeviceKvCache) -> None:
        self._cache = cache

    def plan(self, rows: Sequence[AttentionRow], positions: Tensor) -> "SdpaRows":
        return SdpaRows(self._cache, rows, positions)


class SdpaRows:
    """Implements PlannedRows."""

    takes_own = False

    def __init__(self, cache: DeviceKvCache, rows: Sequence[AttentionRow], positions: Tensor) -> None:
        self._cache = cache
        self._rows = [(row.num_tokens, used_places(row, cache.device)) for row in rows]
        windows = set(cache.windows)
        self._seen: dict[int | None, list[Tensor]] = {
            window: [one.to(cache.device) for one in visible(rows, cache.positions, positions, window)]
            for window in windows
        }

    def attend(self, layer: int, query: Tensor, own: Tensor) -> Tensor:
        kv = self._cache.layers[layer]
        outputs = []
        start = 0
        for (num_tokens, places), is_seen in zip(self._rows, self._seen[self._cache.windows[layer]], strict=True):
            block, offset = places // BLOCK_SIZE, places % BLOCK_SIZE
            key, value = (kv[block, one, offset].transpose(0, 1) for one in (0, 1))
            num_shared = query.shape[1] // len(key)
            is_bad = ~key.isfinite().all(-1).all(0)  # [places]; NaN spreads through a mask, and must not
            attended = scaled_dot_product_attention(
                query[start : start + num_tokens].transpose(0, 1),
                key.masked_fill(is_bad[:, None], 0.0).repeat_interleave(num_shared, 0),
                value.repeat_interleave(num_shared, 0),
                attn_mask=is_seen,
            )
            # A token that sees nothing gets zeros.
            attended = attended.masked_fill(~is_seen.any(-1, keepdim=True), 0.0)
            attended = attended.masked_fill((is_seen & is_bad).any(-1, keepdim=True), torch.nan)
            outputs.append(attended.transpose(0, 1).flatten(1))
            start += num_tokens
        return torch.cat(outputs)


def used_places(row: AttentionRow, device: torch.device) -> Tensor:
    """Where the row's KV is, with its new tokens': [kv_len + num_tokens]."""
    num_places = row.kv_len + row.num_tokens
    blocks = np.asarray(row.block_ids[: -(-num_places // BLOCK_SIZE)], np.int64)
    places = (blocks[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).reshape(-1)[:num_places]
    return to_device(places, device)


def new_places(rows: Sequence[AttentionRow]) -> NDArray[np.int64]:
    """Where the KV of all new tokens goes: [num_tokens]."""
    found, within = [], np.arange(BLOCK_SIZE)
    for row in rows:
        first, offset = divmod(row.kv_len, BLOCK_SIZE)
        end = offset + row.num_tokens
        blocks = np.asarray(row.block_ids[first : first - (-end // BLOCK_SIZE)], np.int64)
        found.append((blocks[:, None] * BLOCK_SIZE + within).reshape(-1)[offset:end])
    return np.concatenate(found)


def shown(row: AttentionRow) -> NDArray[np.bool_]:
    """What the row's mask shows its tokens, or all that comes before: [num_tokens, kv_len + num_tokens]."""
    num_places = row.kv_len + row.num_tokens
    if row.mask is None:
        return np.arange(num_places) <= np.arange(row.kv_len, num_places)[:, None]
    return seen_places(row.mask, np.full(row.num_tokens, num_places)).reshape(row.num_tokens, num_places)


def visible(rows: Sequence[AttentionRow], all_positions: Tensor, positions: Tensor, window: int | None) -> list[Tensor]:
    """What each row's tokens see, as booleans [num_tokens, kv_len + num_tokens]: its mask, or all that comes before,
    and in a layer with a window only keys whose position is less than that before the token's."""
    found = []
    start = 0
    for row in rows:
        is_seen = to_device(shown(row), positions.device)
        if window is not None:
            keys = all_positions[used_places(row, positions.device)]
            is_seen &= positions[start : start + row.num_tokens, None] - keys < window
        found.append(is_seen)
        start += row.num_tokens
    return found
