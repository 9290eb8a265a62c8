"""A small model with random weights and one token a byte, made on the fly. Never good at anything but being exact.

Used by tests, the demo of a machine without network, and the oracle's cases: every character beyond ASCII spans several
tokens, and two layers are enough for any fault of paging, masking or position to show.
"""

import dataclasses

import torch
from torch import Tensor

from loopwright.engine.layers import make_ropes
from loopwright.engine.loaded_model import LoadedModel, ModelConfig
from loopwright.engine.models import find_architecture

BYTE_CONTROLS: tuple[str, ...] = ("<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>")
"""The control tokens, ids from 256 on."""

BYTE_TOKENS: tuple[bytes, ...] = (*(bytes([byte]) for byte in range(256)), *(b"" for _ in BYTE_CONTROLS))
"""The bytes of each token id; those of a control token are empty."""

BYTE_CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=len(BYTE_TOKENS),
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_context=4096,
    norm_epsilon=1e-5,
    rope_theta=10000.0,
    rope_scaling=None,
    is_head_tied=False,
)


def byte_model(seed: int = 0, **changes: object) -> LoadedModel:
    """The byte model of that seed; `changes` replace fields of BYTE_CONFIG, so that any architecture can be had at its
    size. Its logits have a spread of about 3."""
    config = dataclasses.replace(BYTE_CONFIG, **changes)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed)
    weights = {
        spec.name: _random(spec.name, spec.shape, generator)
        for spec in find_architecture(config.architecture).weights(config)
    }
    return LoadedModel(config, weights, make_ropes(config), quantization="F32")


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith("_bias"):
        return noise.mul_(0.3)
    if len(shape) == 1:  # a norm
        return 1 + 0.1 * noise
    spread = 3.0 if name in ("head", "embedding") else 1.0
    return noise.mul_(spread / float(shape[1]) ** 0.5)
