"""KV in bf16, laid out for the native kernels. Never knows whose it is: control gives out blocks by number.

The same operations as engine.kv_cache.KvCache, which has the float32 reference's layout.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from loopwright.core.batch import BlockCopy, KvShift
from loopwright.engine.kv_cache import BLOCK_SIZE, block_copy_places, shifted_positions, turn
from loopwright.engine.loaded_model import ModelConfig, Rope


class NativeKvCache:
    """A tensor a layer, bf16: keys [num_blocks, num_kv_heads, head_dim / 2, 16 places, 2], values [num_blocks,
    num_kv_heads, 8 pairs of places, head_dim, 2]; positions int32 [num_blocks · 16]. Zeros until written.

    A block of all layers is one piece of memory, so that blocks in use take no more than theirs: the system commits two
    megabytes at a time. `block_stride` is the number of elements from one block of a layer to the next."""

    def __init__(self, config: ModelConfig, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        heads, dim = config.num_kv_heads, config.head_dim
        blocks = _untouched_zeros(num_blocks, config.num_layers, 2, heads * dim * BLOCK_SIZE)
        self.block_stride: int = blocks.stride(0)
        self.keys = [one[:, 0].view(num_blocks, heads, dim // 2, BLOCK_SIZE, 2) for one in blocks.unbind(1)]
        self.values = [one[:, 1].view(num_blocks, heads, BLOCK_SIZE // 2, dim, 2) for one in blocks.unbind(1)]
        self.positions = torch.zeros(num_blocks * BLOCK_SIZE, dtype=torch.int32)

    @property
    def token_bytes(self) -> int:
        """What one token costs over all layers."""
        return sum(one.nbytes for one in (*self.keys, *self.values)) // (self.num_blocks * BLOCK_SIZE)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Runs all copies at once; none may write what another reads."""
        if not copies:
            return
        sources, targets = block_copy_places(copies)
        self.positions.index_copy_(0, targets, self.positions.index_select(0, sources))
        source, target = divmod_places(sources), divmod_places(targets)
        for keys, values in zip(self.keys, self.values, strict=True):
            keys[target[0], :, :, target[1]] = keys[source[0], :, :, source[1]]
            pairs = values[source[0], :, source[1] // 2, :, source[1] % 2]
            values[target[0], :, target[1] // 2, :, target[1] % 2] = pairs

    def shift(self, shift: KvShift, ropes: Sequence[Rope], max_context: int) -> None:
        """As KvCache.shift; the turn is computed in float32 and the turned key rounded to bf16 once more."""
        places, old, new = shifted_positions(shift, self.positions, max_context)
        block, offset = divmod_places(places)
        turns: dict[int, Tensor] = {}  # by rope: layers share them
        for keys, rope in zip(self.keys, ropes, strict=True):
            if id(rope) not in turns:
                turns[id(rope)] = turn(old, new, rope.frequencies)  # [size, 1, head_dim / 2]
            pairs = torch.view_as_complex(keys[block, :, :, offset].float())  # [size, num_kv_heads, head_dim / 2]
            keys[block, :, :, offset] = torch.view_as_real(pairs * turns[id(rope)]).bfloat16()
        self.positions[places] = new.int()


def divmod_places(places: Tensor) -> tuple[Tensor, Tensor]:
    """Block and offset of each place."""
    return places // BLOCK_SIZE, places % BLOCK_SIZE


def _untouched_zeros(*shape: int) -> Tensor:
    """Zeros whose pages the system commits when they are first written."""
    return torch.from_numpy(np.zeros(shape, np.int16)).view(torch.bfloat16)
