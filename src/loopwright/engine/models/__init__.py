"""The architectures this engine can run, by name. Never loads weights. Called by the loader and the model runner."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from loopwright.core.errors import BadRequest
from loopwright.engine.attention import AttentionStep
from loopwright.engine.loaded_model import LoadedModel, ModelConfig
from loopwright.engine.models.llama import Llama, llama_weights
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
    """A name of our own (GGUF's), the class name in config.json, and how to lay out and build it."""

    name: str
    hf_name: str
    weights: Callable[[ModelConfig], tuple[WeightSpec, ...]]
    build: Callable[[LoadedModel], Model]


ARCHITECTURES: Mapping[str, Architecture] = {
    one.name: one
    for one in (Architecture("llama", "LlamaForCausalLM", llama_weights, Llama),)
}  # fmt: skip


def find_architecture(name: str) -> Architecture:
    """By our own name or by config.json's. Raises BadRequest, which names the known ones."""
    for architecture in ARCHITECTURES.values():
        if name in (architecture.name, architecture.hf_name):
            return architecture
    known = ", ".join(f"{one.name} ({one.hf_name})" for one in ARCHITECTURES.values())
    raise BadRequest(f"the architecture {name!r} cannot be run; known are {known}")
