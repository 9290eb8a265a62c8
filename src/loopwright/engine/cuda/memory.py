"""How much KV there is room for beside a model's weights, and what to say when there is none. Never allocates.

Called by the executor before anything is put on the device. Figures are in bytes.
"""

from dataclasses import dataclass
from math import prod

import torch

from loopwright.core.errors import Unavailable
from loopwright.engine.cuda.matrices import KindOf, kinds, matrix_bytes
from loopwright.engine.cuda.row_adjustments import LINE_BYTES
from loopwright.engine.kv_cache import BLOCK_SIZE
from loopwright.engine.loaded_model import ModelConfig
from loopwright.engine.models import find_architecture

_WORKSPACES = 1 << 30  # FlashInfer's, cuBLAS's, and what the CUDA context takes
_SHARE = 0.95  # of what is left, for KV
_MIN_BLOCKS = 16
_MIN_STEP_TOKENS, _MAX_STEP_TOKENS = 2048, 32768
_STEP_SHARE = 1 / 12  # of what the weights leave, for the activations of a step


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What goes where on a device."""

    weight_bytes: int
    step_bytes: int  # of the largest step: activations, logits, graphs
    block_bytes: int
    free_bytes: int

    @classmethod
    def of(
        cls, config: ModelConfig, dtype: torch.dtype, kind_of: KindOf | None = None, *, max_rows: int, max_tokens: int,
        free_bytes: int, num_ranks: int = 1,
    ) -> "MemoryPlan":  # fmt: skip
        """`max_tokens` and `max_rows` are those of a step; `kind_of` as DeviceParts takes it. Of several ranks,
        `config` is one's own."""
        weights, largest = _weight_bytes(config, dtype, kind_of or kinds("auto"), num_ranks)
        logits = (4 * 3 + 8 * 5) * config.vocab_size * max(max_rows, 64)  # and float64 weights, where these are sorted
        if num_ranks > 1:
            logits += 8 * config.vocab_size * max(max_rows, 64)  # all ranks', as they come and side by side
        logits += LINE_BYTES * config.vocab_size * max_rows
        kv = 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
        step = max_tokens * _token_bytes(config) + logits + largest + _WORKSPACES
        return cls(weights, step, kv * BLOCK_SIZE, free_bytes)

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


def step_tokens(
    config: ModelConfig, dtype: torch.dtype, kind_of: KindOf | None = None, *, max_rows: int, free_bytes: int,
    num_ranks: int = 1,
) -> int:  # fmt: skip
    """How many tokens a step should have room for, where nobody says: the largest power of two up to 32,768 whose
    activations take a twelfth of what the weights leave, and 2,048 at least. Prompts that come together then have their
    first tokens together, if nobody decodes: after that, control cuts them to what those who do can bear."""
    left = (free_bytes - _weight_bytes(config, dtype, kind_of or kinds("auto"), num_ranks)[0]) * _STEP_SHARE
    tokens = _MAX_STEP_TOKENS
    while tokens > _MIN_STEP_TOKENS and tokens * _token_bytes(config) > left:
        tokens //= 2
    return max(tokens, 2 * max_rows)


def _token_bytes(config: ModelConfig) -> int:
    """Of the activations of one token."""
    mlp = 3 * config.intermediate_size
    if config.experts is not None:  # what each chosen expert has inside and gives
        mlp = config.experts.num_chosen * (config.experts.intermediate_size + config.hidden_size)
    return 4 * (4 * config.hidden_size + mlp + 3 * config.num_heads * config.head_dim)


def _weight_bytes(config: ModelConfig, dtype: torch.dtype, kind_of: KindOf, num_ranks: int) -> tuple[int, int]:
    """All weights of a rank, and what making the largest of those of fewer bits numbers again takes."""
    total = largest = 0
    shapes = {spec.name: spec.shape for spec in find_architecture(config.architecture).weights(config)}
    if config.is_head_tied and kind_of("head") != "plain":
        shapes["head"] = shapes["embedding"]
    if "head" in shapes:
        shapes["head"] = (shapes["head"][0] // num_ranks, *shapes["head"][1:])
    for name, shape in shapes.items():
        kind = "plain" if len(shape) == 1 or name == "embedding" else kind_of(name)
        total += prod(shape) * dtype.itemsize if kind == "plain" else matrix_bytes(kind, shape[0], shape[1], dtype)
        largest = max(largest, 0 if kind == "plain" else prod(shape) * dtype.itemsize)
    return total, largest


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
