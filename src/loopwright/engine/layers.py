"""The arithmetic that models are made of. Never holds weights or state. Called by the models and the loader."""

import math

import torch
from torch import Tensor

from loopwright.engine.loaded_model import ModelConfig, RopeScaling


def rms_norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root-mean-square norm over the last dimension: [num_tokens, size] → the same."""
    return torch.rms_norm(hidden, weight.shape, weight, epsilon)


def gated_silu(gate_and_up: Tensor) -> Tensor:
    """silu(gate) · up, of matrices side by side: [num_tokens, 2 · size] → [num_tokens, size]."""
    gate, up = gate_and_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate).mul_(up)


def rope_frequencies(config: ModelConfig) -> Tensor:
    """Radians a position for each pair of a head, scaling applied: [head_dim / 2]."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    return _llama3_scaled(frequencies, scaling)


def rope_rotation(positions: Tensor, frequencies: Tensor) -> Tensor:
    """What each pair is multiplied with: positions [num_tokens] → complex [num_tokens, 1, head_dim / 2]."""
    angles = positions.float()[:, None, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles)


def rotate_(heads: Tensor, rotation: Tensor) -> None:
    """Turns each pair (2i, 2i + 1) of [num_tokens, num_heads, head_dim] by its angle, in place."""
    torch.view_as_complex(heads.view(*heads.shape[:-1], -1, 2)).mul_(rotation)


def _llama3_scaled(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended.

    Source: transformers' `_compute_llama3_parameters`, which follows the Llama 3.1 release."""
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = ((scaling.original_max_position / wavelengths - low) / (high - low)).clamp(0, 1)
    return (1 - share) * frequencies / scaling.factor + share * frequencies
