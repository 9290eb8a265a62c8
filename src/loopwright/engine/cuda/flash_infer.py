"""Attention by FlashInfer's kernels: fa3 for prompts where it has a kernel, else fa2; masks in fa2.

Never imported without FlashInfer; `choice` says whether it is there. Masks and windows are custom masks.
"""

from collections.abc import Sequence
from typing import Any

import flashinfer
import numpy as np
import torch
from torch import Tensor

from loopwright.engine.attention import AttentionRow
from loopwright.engine.cuda.attention import visible
from loopwright.engine.cuda.attention_plan import PageLists
from loopwright.engine.cuda.cache import DeviceKvCache
from loopwright.engine.kv_cache import BLOCK_SIZE
from loopwright.engine.loaded_model import ModelConfig
from loopwright.engine.transfer import to_device

_WORKSPACE_BYTES = 512 << 20
_FA3_HEAD_DIM = 128


class FlashInferAttention:
    """Implements cuda.attention.PagedAttention."""

    name = "flashinfer"

    def __init__(self, cache: DeviceKvCache, config: ModelConfig) -> None:
        self._cache, self._config = cache, config
        self._scale = config.head_dim**-0.5
        self._dtype = cache.layers[0].dtype
        self._heads = (config.num_heads, config.num_kv_heads, config.head_dim, BLOCK_SIZE)
        self._workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=cache.device)
        self._prefills: dict[tuple[str, bool, int | None], Any] = {}
        self._planned = torch.cuda.Event()

    def plan(self, rows: Sequence[AttentionRow], positions: Tensor) -> "_FlashInferRows":
        return _FlashInferRows(self, self._cache, rows, positions)

    def prefill(self, lists: PageLists, mask: Tensor | None, window: int | None) -> Any:  # noqa: ANN401 (FlashInfer has no types)
        """A planned wrapper for rows that see all that comes before, or what `mask`, flat over all rows, says."""
        is_causal = mask is None
        backend = "fa3" if is_causal and self._config.head_dim == _FA3_HEAD_DIM else "fa2"
        key = (backend, is_causal, window)
        if key not in self._prefills:  # pinned memory of eight megabytes each
            made = flashinfer.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD", backend=backend)
            self._prefills[key] = made
        wrapper = self._prefills[key]
        self._planned.synchronize()
        placed = lists if is_causal else lists.to(self._cache.device)
        wrapper.plan(
            placed.token_starts, placed.block_starts, placed.blocks, placed.last_lens, *self._heads,
            causal=is_causal, custom_mask=mask, sm_scale=self._scale,
            q_data_type=self._dtype, kv_data_type=self._dtype,
        )  # fmt: skip
        self._planned.record()
        return wrapper


class _FlashInferRows:
    """Implements cuda.attention.PlannedRows: a wrapper for the rows without masks and one for those with, by window."""

    def __init__(
        self, attention: FlashInferAttention, cache: DeviceKvCache, rows: Sequence[AttentionRow], positions: Tensor
    ) -> None:
        self._windows = cache.windows
        starts = np.cumsum([0, *(row.num_tokens for row in rows)])
        # Tokens of the batch, None for all of it; whether they have a mask; the wrapper.
        self._parts: dict[int | None, list[tuple[Tensor | None, bool, Any]]] = {}
        for window in dict.fromkeys(cache.windows):
            masked = [i for i, row in enumerate(rows) if row.mask is not None or window is not None]
            plain = [i for i, row in enumerate(rows) if row.mask is None and window is None]
            parts: list[tuple[Tensor | None, bool, Any]] = []
            for members, has_mask in ((plain, False), (masked, True)):
                if not members:
                    continue
                chosen = [rows[i] for i in members]
                index = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in members])
                tokens = to_device(index, cache.device)
                mask = None
                if has_mask:
                    seen = visible(chosen, cache.positions, positions[tokens], window)
                    mask = torch.cat([one.flatten() for one in seen])
                wrapper = attention.prefill(PageLists.of_rows(chosen), mask, window)
                parts.append((tokens if len(members) < len(rows) else None, has_mask, wrapper))
            self._parts[window] = parts
        self._layers = cache.layers

    def attend(self, layer: int, query: Tensor) -> Tensor:
        parts = self._parts[self._windows[layer]]
        kv = self._layers[layer]
        if len(parts) == 1:
            return _run(parts[0][2], query, kv, has_mask=parts[0][1])
        output = torch.empty(len(query), query.shape[1] * query.shape[2], dtype=query.dtype, device=query.device)
        for tokens, has_mask, wrapper in parts:
            output[tokens] = _run(wrapper, query[tokens], kv, has_mask=has_mask)
        return output


def _run(wrapper: Any, query: Tensor, kv: Tensor, *, has_mask: bool) -> Tensor:  # noqa: ANN401 (FlashInfer has no types)
    """FlashInfer's own output begins as zeros, for tokens that see nothing; without a mask all see something."""
    found: Tensor = wrapper.run(query, kv, out=None if has_mask else torch.empty_like(query))
    return found.flatten(1)
