"""Turns a seed, a position and weights into one index. Never knows logits or what the weights mean.

Called by the sampler and by traced samplers, so that both draw alike.
"""

import torch
from torch import Tensor

_MASK_64 = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), the same for the same seed and position, whatever was drawn before.

    The output function of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014), once
    over the seed and once over that plus a Weyl step for each position; the upper 53 bits."""
    state = (_mix(seed & _MASK_64) + (position + 1) * 0x9E3779B97F4A7C15) & _MASK_64
    return (_mix(state) >> 11) * 2.0**-53


def draw(weights: Tensor, number: float) -> int:
    """Inverse transform sampling: the first index whose cumulative weight exceeds number · total (float64)."""
    cumulative = weights.cumsum(0)
    total = float(cumulative[-1])
    index = int(torch.searchsorted(cumulative, number * total, right=True))
    if index < len(weights):
        return index
    return int(torch.searchsorted(cumulative, total))  # number · total rounded up to total: the last that has weight


def _mix(state: int) -> int:
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return state ^ (state >> 31)
