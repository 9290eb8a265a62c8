"""The tensors that a decode step reads and writes in place, so that a graph finds them again. Never fills them.

Made by the decode steps; written by their uploads and by the operations at both ends of a step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from loopwright.engine.kv_cache import BLOCK_SIZE


@dataclass(frozen=True, slots=True, eq=False)
class DecodeBuffers:
    """State of up to `max_rows` rows of one token each, all int32, on the device.

    A row that is not in use has `advance` 0, KV length 0, and the scratch block at the front of its table: it computes,
    and nobody looks at it. One that failed, with logits that are not finite, fails in the steps after that too."""

    table: Tensor  # [max_rows, max_blocks] block ids
    inputs: Tensor  # [5, max_rows]: ids, positions, KV lengths before the step, by how much these grow, 1 if it failed
    lens: Tensor  # [max_rows] KV lengths with the step's own token; written at the beginning of a step
    outputs: Tensor  # [3, max_rows]: sampled ids, log-probabilities (bits of float32), 1 if the row failed

    @classmethod
    def make(cls, max_rows: int, max_blocks: int, scratch_block: int, device: torch.device) -> "DecodeBuffers":
        return cls(
            torch.full((max_rows, max_blocks), scratch_block, dtype=torch.int32, device=device),
            torch.zeros((5, max_rows), dtype=torch.int32, device=device),
            torch.ones(max_rows, dtype=torch.int32, device=device),
            torch.zeros((3, max_rows), dtype=torch.int32, device=device),
        )

    @property
    def ids(self) -> Tensor:
        return self.inputs[0]

    @property
    def positions(self) -> Tensor:
        return self.inputs[1]

    @property
    def kv_lens(self) -> Tensor:
        return self.inputs[2]

    @property
    def advance(self) -> Tensor:
        return self.inputs[3]

    @property
    def failed(self) -> Tensor:
        return self.inputs[4]


def places_of(table: Tensor, kv_lens: Tensor) -> Tensor:
    """Where the next token of each row goes: [num_rows]."""
    blocks = table.gather(1, (kv_lens // BLOCK_SIZE).long()[:, None])[:, 0]
    return blocks * BLOCK_SIZE + kv_lens % BLOCK_SIZE
