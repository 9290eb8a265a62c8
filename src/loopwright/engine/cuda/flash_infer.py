"""Attention by FlashInfer's kernels: fa3 for prompts where it has a kernel, else fa2.

Prompts without a prefix are read where their product left them: that is faster than by pages. Never imported without
FlashInfer; `choice` says whether it is there. Masks and windows are for the kernel of our own: FlashInfer's masks are
by place, and planning one waits for the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import flashinfer
import numpy as np
import torch
from torch import Tensor

from loopwright.engine.attention import AttentionRow
from loopwright.engine.cuda.attention import PlannedRows
from loopwright.engine.cuda.attention_plan import PageLists
from loopwright.engine.cuda.cache import DeviceKvCache
from loopwright.engine.cuda.tile_attention import TileAttention
from loopwright.engine.kv_cache import BLOCK_SIZE
from loopwright.engine.loaded_model import ModelConfig
from loopwright.engine.transfer import to_device

_WORKSPACE_BYTES = 512 << 20
_FA3_HEAD_DIM = 128


class FlashInferAttention:
    """Implements cuda.attention.PagedAttention."""

    name = "flashinfer"

    def __init__(self, cache: DeviceKvCache, config: ModelConfig) -> None:
        self._cache = cache
        self._scale = config.head_dim**-0.5
        self._dtype = cache.layers[0].dtype
        self._heads = (config.num_heads, config.num_kv_heads, config.head_dim)
        workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=cache.device)
        backend = "fa3" if config.head_dim == _FA3_HEAD_DIM else "fa2"
        self._paged: Any = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=backend)
        self._ragged: Any = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend=backend)
        self._planned = torch.cuda.Event()
        self._tiles = TileAttention(cache, config.num_heads)

    def plan(self, rows: Sequence[AttentionRow], positions: Tensor) -> PlannedRows:
        windows = self._cache.windows
        if all(window is not None for window in windows) or all(row.mask is not None for row in rows):
            return self._tiles.plan(rows, positions)
        starts = np.cumsum([0, *(row.num_tokens for row in rows)])
        parts: list[tuple[Tensor | None, PlannedRows]] = []
        for has_mask in (False, True):
            members = [number for number, row in enumerate(rows) if (row.mask is not None) == has_mask]
            if not members:
                continue
            index = np.concatenate([np.arange(starts[one], starts[one + 1]) for one in members])
            tokens = to_device(index, self._cache.device)
            chosen = [rows[one] for one in members]
            planned = self._tiles.plan(chosen, positions[tokens]) if has_mask else self._prefill(chosen)
            parts.append((tokens if len(members) < len(rows) else None, planned))
        seeing_all = _Parts(parts)
        if all(window is None for window in windows):
            return seeing_all
        return _ByWindow(windows, seeing_all, self._tiles.plan(rows, positions))

    def _prefill(self, rows: Sequence[AttentionRow]) -> "_Paged | _Ragged":
        """Of rows that see all that comes before."""
        lists = PageLists.of_rows(rows)
        options = {"causal": True, "sm_scale": self._scale, "q_data_type": self._dtype, "kv_data_type": self._dtype}
        self._planned.synchronize()
        planned: _Paged | _Ragged
        if any(row.kv_len for row in rows):
            self._paged.plan(
                lists.token_starts,
                lists.block_starts,
                lists.blocks,
                lists.last_lens,
                *self._heads,
                BLOCK_SIZE,
                **options,
            )
            planned = _Paged(self._paged, self._cache)
        else:
            self._ragged.plan(lists.token_starts, lists.token_starts, *self._heads, **options)
            planned = _Ragged(self._ragged)
        self._planned.record()
        return planned


@dataclass(frozen=True, slots=True)
class _Paged:
    """Implements PlannedRows."""

    wrapper: Any
    cache: DeviceKvCache

    @property
    def takes_own(self) -> bool:
        return False

    def attend(self, layer: int, query: Tensor, own: Tensor) -> Tensor:
        # FlashInfer's own output begins as zeros, for tokens that see nothing; here all see something.
        found: Tensor = self.wrapper.run(query, self.cache.layers[layer], out=torch.empty_like(query))
        return found.flatten(1)


@dataclass(frozen=True, slots=True)
class _Ragged:
    """Implements PlannedRows, of rows without a prefix."""

    wrapper: Any

    @property
    def takes_own(self) -> bool:
        return True

    def attend(self, layer: int, query: Tensor, own: Tensor) -> Tensor:
        keys, values = own.chunk(2, dim=1)
        found: Tensor = self.wrapper.run(query, keys, values, out=torch.empty_like(query))
        return found.flatten(1)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Some tokens of the batch in one way, None being all of it, and some in another. Implements PlannedRows."""

    parts: Sequence[tuple[Tensor | None, PlannedRows]]

    @property
    def takes_own(self) -> bool:
        return any(planned.takes_own for _, planned in self.parts)

    def attend(self, layer: int, query: Tensor, own: Tensor) -> Tensor:
        if len(self.parts) == 1:
            return self.parts[0][1].attend(layer, query, own)
        output = torch.empty(len(query), query.shape[1] * query.shape[2], dtype=query.dtype, device=query.device)
        for tokens, planned in self.parts:
            output[tokens] = planned.attend(layer, query[tokens], own[tokens])
        return output


@dataclass(frozen=True, slots=True)
class _ByWindow:
    """Layers with a window in one way and those without in another. Implements PlannedRows."""

    windows: Sequence[int | None]
    seeing_all: PlannedRows
    windowed: PlannedRows

    @property
    def takes_own(self) -> bool:
        return self.seeing_all.takes_own

    def attend(self, layer: int, query: Tensor, own: Tensor) -> Tensor:
        planned = self.seeing_all if self.windows[layer] is None else self.windowed
        return planned.attend(layer, query, own)
