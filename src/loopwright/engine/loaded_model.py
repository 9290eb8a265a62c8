"""What a model is once loaded: its sizes and its float32 weights under our own names. Never reads or runs one.

Made by the loader and the byte model; read by the models, the model runner and the oracle.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched. Only `factor` counts for "linear".

    Source of "llama3": the Llama 3.1 release, as `rope_type: llama3` in config.json."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The sizes of a decoder-only transformer."""

    architecture: str  # a name of engine.models.ARCHITECTURES
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int  # positions the model was trained for
    norm_epsilon: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    is_head_tied: bool  # the head is the embedding


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory.

    `weights` are float32, a matrix is [outputs, inputs]; the architecture's `weights` lists names and shapes.
    Rows of query and key come in pairs that rotate together (element 2i with 2i + 1), as GGUF files store them.
    `rope_frequencies` [head_dim / 2] are radians a position, scaling applied. `quantization` is how most of it was
    stored."""

    config: ModelConfig
    weights: Mapping[str, Tensor]
    rope_frequencies: Tensor
    quantization: str

    @property
    def step_weight_bytes(self) -> int:
        """Bytes of weights that one step must read: an input embedding is looked up, unless the head is tied to it."""
        skipped = () if self.config.is_head_tied else ("embedding",)
        return sum(weight.nbytes for name, weight in self.weights.items() if name not in skipped)
