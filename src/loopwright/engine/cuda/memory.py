"""How much KV there is room for beside a model's weights, and what to say when there is none. Never allocates.

Called by the executor before anything is put on the device. Figures are in bytes.
"""

from dataclasses import dataclass
from math import prod

import torch

from loopwright.core.errors import Unavailable
from loopwright.engine.kv_cache import BLOCK_SIZE
from loopwright.engine.loaded_model import ModelConfig
from loopwright.engine.models import find_architecture

_WORKSPACES = 1 << 30  # FlashInfer's, cuBLAS's, and what the CUDA context takes
_SHARE = 0.95  # of what is left, for KV
_MIN_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What goes where on a device."""

    weight_bytes: int
    step_bytes: int  # of the largest step: activations, logits, graphs
    block_bytes: int
    free_bytes: int

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        dtype: torch.dtype,
        *,
        max_rows: int,
        max_tokens: int,
        free_bytes: int,
        num_ranks: int = 1,
    ) -> "MemoryPlan":
        """`max_tokens` and `max_rows` are those of a step. Of several ranks, `config` is one's own."""
        specs = find_architecture(config.architecture).weights(config)
        weights = sum(prod(spec.shape) // (num_ranks if spec.name == "head" else 1) for spec in specs)
        token = 4 * (4 * config.hidden_size + 3 * config.intermediate_size + 3 * config.num_heads * config.head_dim)
        logits = (4 * 3 + 8 * 6) * config.vocab_size * max(max_rows, 64)  # and float64 weights to draw from
        if num_ranks > 1:
            logits += 8 * config.vocab_size * max(max_rows, 64)  # all ranks', as they come and side by side
        kv = 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
        return cls(weights * dtype.itemsize, max_tokens * token + logits + _WORKSPACES, kv * BLOCK_SIZE, free_bytes)

    def num_blocks(self, wanted: int = 0) -> int:
        """As many blocks as fit, or `wanted`, which is 0 for that. Raises Unavailable if they do not."""
        left = self.free_bytes - self.weight_bytes - self.step_bytes
        fitting = max(0, int(left * _SHARE)) // self.block_bytes
        if fitting < max(wanted, _MIN_BLOCKS):
            needed = max(wanted, _MIN_BLOCKS) * self.block_bytes
            raise Unavailable(
                f"the model does not fit the device: weights {_gb(self.weight_bytes)}, a step {_gb(self.step_bytes)} "
                f"and {max(wanted, _MIN_BLOCKS)} blocks of KV {_gb(needed)} are more than the {_gb(self.free_bytes)} "
                "free",
                hint="a smaller model, fewer blocks (engine.num_blocks), or a device that nobody else uses",
                field="engine.num_blocks" if wanted else "",
            )
        return wanted or fitting


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
