"""Turns a seed, a position and weights into one index. Never knows logits or what the weights mean.

Called by the sampler and by traced samplers, so that both draw alike.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MASK_64 = (1 << 64) - 1
_CHUNK = 512  # ids that are summed together


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


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """`uniform` of each seed and position."""
    with np.errstate(over="ignore"):
        steps = (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        states = _mix_all(_mix_all(seeds) + steps)
    return (states >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw_each(weights: Tensor, numbers: Tensor) -> Tensor:
    """`draw` for each row of weights [num_rows, num_ids], with numbers [num_rows]: int64 [num_rows]. A row without
    weight gives any index. On a GPU sums are taken in two levels, since one running sum would keep it waiting."""
    if not weights.is_cuda or weights.shape[1] <= _CHUNK:
        return _draw_in_order(weights, numbers[:, None] * weights.cumsum(-1)[:, -1:])[:, 0]
    num_rows, num_ids = weights.shape
    chunks = torch.nn.functional.pad(weights, (0, -num_ids % _CHUNK)).view(num_rows, -1, _CHUNK)
    sums = chunks.sum(-1)
    before = sums.cumsum(-1)
    target = numbers[:, None] * before[:, -1:]
    chunk = _draw_in_order(sums, target)
    left = target - (before - sums).gather(1, chunk)
    inner = chunks.gather(1, chunk[:, :, None].expand(-1, -1, _CHUNK))[:, 0]
    return (chunk * _CHUNK + _draw_in_order(inner, left))[:, 0].clamp(max=num_ids - 1)


def _draw_in_order(weights: Tensor, targets: Tensor) -> Tensor:
    """The first index of each row whose running sum exceeds the target [num_rows, 1], or the last that has weight."""
    cumulative = weights.cumsum(-1)
    found = torch.searchsorted(cumulative, targets, right=True)
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    return torch.where(found < weights.shape[1], found, last).clamp(max=weights.shape[1] - 1)


def _mix(state: int) -> int:
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return state ^ (state >> 31)


def _mix_all(states: NDArray[np.uint64]) -> NDArray[np.uint64]:
    states = (states ^ (states >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    states = (states ^ (states >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return states ^ (states >> np.uint64(31))
