"""KV on a device, paged as FlashInfer reads it. Never knows whose it is: control gives out blocks by number.

The same operations as engine.kv_cache.KvCache, which has the float32 reference's layout.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from loopwright.core.batch import BlockCopy, KvShift
from loopwright.engine.kv_cache import BLOCK_SIZE, block_copy_places, shifted_positions, turn
from loopwright.engine.loaded_model import ModelConfig, Rope
from loopwright.engine.transfer import placed


class DeviceKvCache:
    """`layers`: a tensor a layer, [num_blocks + 1, 2 (keys, values), 16, num_kv_heads, head_dim]; `positions` int32
    [places], those of the tokens whose KV the places hold. Zeros until written. The last block is for rows that only
    fill up a graph's batch."""

    def __init__(self, config: ModelConfig, num_blocks: int, device: torch.device, dtype: torch.dtype) -> None:
        self.num_blocks = num_blocks
        self.device = device
        self.windows = tuple(config.window(layer) for layer in range(config.num_layers))
        shape = (num_blocks + 1, 2, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
        self.layers = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]
        self.positions = torch.zeros((num_blocks + 1) * BLOCK_SIZE, dtype=torch.int32, device=device)

    @property
    def scratch_block(self) -> int:
        return self.num_blocks

    @property
    def token_bytes(self) -> int:
        """What one token costs over all layers."""
        return sum(one[0].nbytes for one in self.layers) // BLOCK_SIZE

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Runs all copies at once; none may write what another reads."""
        if not copies:
            return
        sources, targets = (placed(one, self.device) for one in block_copy_places(copies))
        self.positions.index_copy_(0, targets, self.positions.index_select(0, sources))
        source, target = (divmod_places(one) for one in (sources, targets))
        for kv in self.layers:
            kv[target[0], :, target[1]] = kv[source[0], :, source[1]]

    def shift(self, shift: KvShift, ropes: Sequence[Rope], max_context: int) -> None:
        """As KvCache.shift; the turn is computed in float32 and the turned key rounded to the cache's dtype again."""
        places, old, new = shifted_positions(shift, self.positions, max_context)
        block, offset = divmod_places(places.to(self.device))
        turns: dict[int, Tensor] = {}  # by rope: layers share them
        for kv, rope in zip(self.layers, ropes, strict=True):
            if id(rope) not in turns:
                turns[id(rope)] = turn(old, new, rope.frequencies)  # [size, 1, head_dim / 2]
            keys = kv[block, 0, offset].float()  # [size, num_kv_heads, head_dim]
            pairs = torch.view_as_complex(keys.view(*keys.shape[:2], -1, 2)) * turns[id(rope)]
            kv[block, 0, offset] = torch.view_as_real(pairs).flatten(-2).to(kv.dtype)
        self.positions[places.to(self.device)] = new.int()


def divmod_places(places: Tensor) -> tuple[Tensor, Tensor]:
    """Block and offset of each place."""
    return places // BLOCK_SIZE, places % BLOCK_SIZE
