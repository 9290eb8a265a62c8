"""Owns the KV tensors and the embed slots. Never knows whose they are: control gives out blocks and slots by number.

Called by the model runner (copies, shifts, embeds) and the attention back-ends (reads and writes).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from loopwright.core.batch import BlockCopy, KvShift
from loopwright.core.errors import BadRequest, ContextTooLong
from loopwright.engine.loaded_model import ModelConfig, Rope
from loopwright.engine.transfer import to_device

BLOCK_SIZE = 16  # tokens a block


def kv_bytes_per_token(config: ModelConfig) -> int:
    """Of keys and values of all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * torch.float32.itemsize


class KvCache:
    """Keys and values of every layer. A place is block_id · BLOCK_SIZE + offset.

    One tensor a layer, [num_blocks · BLOCK_SIZE, num_kv_heads, head_dim]. A place never written reads as zeros, so that
    nothing of an earlier process shows. `positions` [num_blocks · BLOCK_SIZE] (int32) are those of the tokens whose KV
    the places hold: what a window hides depends on them, and they may have gaps. `windows` has one for each layer, as
    ModelConfig.window says."""

    def __init__(self, config: ModelConfig, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.windows = tuple(config.window(layer) for layer in range(config.num_layers))
        shape = (num_blocks * BLOCK_SIZE, config.num_kv_heads, config.head_dim)
        self.keys = [_untouched_zeros(shape) for _ in range(config.num_layers)]
        self.values = [_untouched_zeros(shape) for _ in range(config.num_layers)]
        self.positions = torch.zeros(shape[0], dtype=torch.int32)

    @property
    def token_bytes(self) -> int:
        """What one token costs over all layers."""
        return sum(one.nbytes for one in (*self.keys, *self.values)) // (self.num_blocks * BLOCK_SIZE)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Runs all copies at once; none may write what another reads."""
        if not copies:
            return
        sources, targets = block_copy_places(copies)
        for tensor in (*self.keys, *self.values, self.positions):
            tensor.index_copy_(0, targets, tensor.index_select(0, sources))

    def shift(self, shift: KvShift, ropes: Sequence[Rope], max_context: int) -> None:
        """Turns the keys of places to positions `delta` higher.

        A pair turns by the difference of its angles at the two positions, both in float32 as the model computes them:
        a shifted key is what the model would have computed there, but for rounding. Attention factors of the rope are
        in the key already. Raises BadRequest or ContextTooLong, before anything moved, if a position would leave the
        context."""
        places, old, new = shifted_positions(shift, self.positions, max_context)
        turns: dict[int, Tensor] = {}  # by rope: layers share them
        for keys, rope in zip(self.keys, ropes, strict=True):
            if id(rope) not in turns:
                turns[id(rope)] = turn(old, new, rope.frequencies)
            pairs = torch.view_as_complex(
                keys[places].view(len(places), keys.shape[1], -1, 2)
            )  # [size, num_kv_heads, head_dim / 2]
            keys[places] = torch.view_as_real(pairs * turns[id(rope)]).flatten(-2)
        self.positions[places] = new.int()


class EmbedStore:
    """Slots of one vector and its position each: vectors [num_slots, hidden_size], positions [num_slots]."""

    def __init__(self, config: ModelConfig, num_slots: int, device: torch.device | None = None) -> None:
        self.num_slots = num_slots
        self.vectors = _untouched_zeros((num_slots, config.hidden_size)).to(device)
        self.positions = torch.zeros(num_slots, dtype=torch.int64, device=device)

    def write(self, slots: Sequence[int], vectors: Tensor, positions: Tensor) -> None:
        index = to_device(np.array(slots, np.int64), vectors.device)
        self.vectors.index_copy_(0, index, vectors)
        self.positions.index_copy_(0, index, positions)


def _untouched_zeros(shape: tuple[int, ...]) -> Tensor:
    """Zeros whose pages the system commits when they are first written; torch.zeros would touch them all at once."""
    return torch.from_numpy(np.zeros(shape, np.float32))


def block_copy_places(copies: Sequence[BlockCopy]) -> tuple[Tensor, Tensor]:
    """The places that copies read and those that they write."""
    sources = torch.cat([_places(one.source, one.source_offset, one.size) for one in copies])
    return sources, torch.cat([_places(one.target, one.target_offset, one.size) for one in copies])


def shifted_positions(shift: KvShift, positions: Tensor, max_context: int) -> tuple[Tensor, Tensor, Tensor]:
    """The places of a shift, their positions before it and after. Raises as KvCache.shift does."""
    blocks = torch.tensor(shift.block_ids, dtype=torch.int64)
    index = torch.arange(shift.start, shift.start + shift.size)
    places = blocks[index // BLOCK_SIZE] * BLOCK_SIZE + index % BLOCK_SIZE
    old = positions[places].long()
    new = old + shift.delta
    _check_positions(int(new.min()), int(new.max()), shift.delta, max_context)
    return places, old, new


def turn(old: Tensor, new: Tensor, frequencies: Tensor) -> Tensor:
    """What takes a pair from one position to another: positions [size] → complex64 [size, 1, head_dim / 2]."""
    angles = (new.float()[:, None] * frequencies).double() - (old.float()[:, None] * frequencies).double()
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)[:, None]


def _check_positions(lowest: int, highest: int, delta: int, max_context: int) -> None:
    if lowest < 0:
        raise BadRequest(f"delta: {delta} moves a token to position {lowest}", field="delta")
    if highest >= max_context:
        raise ContextTooLong(
            f"delta: {delta} moves a token to position {highest}, which needs a context of {highest + 1} tokens; the "
            f"model's is {max_context}",
            field="delta",
        )


def _places(block_id: int, offset: int, size: int) -> Tensor:
    return torch.arange(size) + (block_id * BLOCK_SIZE + offset)
