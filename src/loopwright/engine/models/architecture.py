"""What an architecture has to say of itself: its names, its weights, how it is built. Never loads or runs one.

Filled by one file for each architecture, listed in `models`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from loopwright.engine.attention import AttentionStep
from loopwright.engine.loaded_model import LoadedModel, ModelConfig
from loopwright.engine.models.weight_spec import WeightSpec


class Model(Protocol):
    """A model that can run a flat batch of tokens."""

    def embed(self, token_ids: Tensor) -> Tensor:
        """[num_tokens] → [num_tokens, hidden_size]."""
        ...

    def forward(self, hidden: Tensor, positions: Tensor, attention: AttentionStep) -> Tensor:
        """Runs all layers: [num_tokens, hidden_size] → the same. `hidden` may be overwritten."""
        ...

    def normalize(self, hidden: Tensor) -> Tensor:
        """The final norm; its output is what the head reads and what output slots hold."""
        ...

    def logits(self, normalized: Tensor) -> Tensor:
        """[num_tokens, hidden_size] → [num_tokens, vocab_size]."""
        ...


@dataclass(frozen=True, slots=True)
class Architecture:
    """A name of our own, the class name in config.json, `general.architecture` in GGUF, its layout and its builder."""

    name: str
    hf_name: str
    gguf_name: str
    weights: Callable[[ModelConfig], tuple[WeightSpec, ...]]
    build: Callable[[LoadedModel], Model]
