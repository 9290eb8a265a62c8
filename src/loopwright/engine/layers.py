"""The arithmetic that models are made of. Never holds weights or state. Called by the models and the loader."""

import math

import torch
from torch import Tensor

from loopwright.engine.loaded_model import ModelConfig, Rope, RopeScaling


def rms_norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root-mean-square norm over the last dimension: [num_tokens, size] → the same."""
    return torch.rms_norm(hidden, weight.shape, weight, epsilon)


def gated_silu(gate_and_up: Tensor) -> Tensor:
    """silu(gate) · up, of matrices side by side: [num_tokens, 2 · size] → [num_tokens, size]."""
    gate, up = gate_and_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate).mul_(up)


def gated_gelu(gate_and_up: Tensor) -> Tensor:
    """gelu(gate) · up with the tanh approximation of gelu, shapes as in `gated_silu`."""
    gate, up = gate_and_up.chunk(2, dim=-1)
    return torch.nn.functional.gelu(gate, approximate="tanh").mul_(up)


def make_ropes(config: ModelConfig) -> tuple[Rope, ...]:
    """The rotary embedding of each layer, shared by layers that rotate alike."""
    rope = _scaled_rope(_frequencies(config.rope_theta, config.head_dim), config)
    local = rope if config.local_rope_theta is None else Rope(_frequencies(config.local_rope_theta, config.head_dim))
    return tuple(rope if config.window(layer) is None else local for layer in range(config.num_layers))


def rope_rotation(positions: Tensor, rope: Rope) -> Tensor:
    """What each pair is multiplied with: positions [num_tokens] → complex [num_tokens, 1, head_dim / 2]."""
    angles = positions.float()[:, None, None] * rope.frequencies
    return torch.polar(torch.full_like(angles, rope.magnitude), angles)


def rotate_(heads: Tensor, rotation: Tensor) -> None:
    """Turns each pair (2i, 2i + 1) of [num_tokens, num_heads, head_dim] by its angle, in place."""
    torch.view_as_complex(heads.view(*heads.shape[:-1], -1, 2)).mul_(rotation)


def _frequencies(theta: float, head_dim: int) -> Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return 1.0 / (theta**exponents)


def _scaled_rope(frequencies: Tensor, config: ModelConfig) -> Rope:
    scaling = config.rope_scaling
    if scaling is None:
        return Rope(frequencies)
    match scaling.kind:
        case "linear":
            return Rope(frequencies / scaling.factor)
        case "llama3":
            return Rope(_llama3_scaled(frequencies, scaling))
        case "yarn":
            return Rope(_yarn_scaled(frequencies, scaling, config.rope_theta), scaling.attention_factor)


def _llama3_scaled(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended.

    Source: transformers' `_compute_llama3_parameters`, which follows the Llama 3.1 release."""
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = ((scaling.original_max_position / wavelengths - low) / (high - low)).clamp(0, 1)
    return (1 - share) * frequencies / scaling.factor + share * frequencies


def _yarn_scaled(frequencies: Tensor, scaling: RopeScaling, theta: float) -> Tensor:
    """Pairs of low index turn often and are kept, those of high index are stretched, those between blended by index.

    Source: YaRN, section 3.2 and appendix A.2; the bounds are rounded outwards as its authors' code does."""
    num_pairs = len(frequencies)

    def index_of(num_turns: float) -> float:
        """The pair that turns `num_turns` times over the original length; not whole."""
        return num_pairs * math.log(scaling.original_max_position / (num_turns * 2 * math.pi)) / math.log(theta)

    low = max(math.floor(index_of(scaling.beta_fast)), 0)
    high = min(math.ceil(index_of(scaling.beta_slow)), 2 * num_pairs - 1)
    stretched = ((torch.arange(num_pairs) - low) / max(high - low, 0.001)).clamp(0, 1)
    return stretched * frequencies / scaling.factor + (1 - stretched) * frequencies
