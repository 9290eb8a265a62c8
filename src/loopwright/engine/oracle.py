"""The naive loop that answers are held against: one request, the whole sequence again for every token, dense attention.

Shares nothing with the model runner, the attention back-ends, the layers or the sampler; only the weights are the same.
Called by tests and by `bench`. Slow on purpose: what can be read in one go is easy to trust.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.calls import Sampling
from loopwright.engine.loaded_model import LoadedModel


@dataclass(frozen=True, slots=True)
class Generated:
    """Sampled tokens, a stop token included, and their raw log-probabilities."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


class Oracle:
    """A Llama in float32, one sequence at a time."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model

    @torch.inference_mode()
    def generate(
        self,
        token_ids: Sequence[int],
        sampling: Sampling = Sampling(),  # noqa: B008 — frozen
        max_tokens: int = 16,
        stop_tokens: Sequence[int] = (),
        positions: Sequence[int] | None = None,
    ) -> Generated:
        """Continues `token_ids` until a stop token or `max_tokens`. New tokens stand one position after the last."""
        tokens = list(token_ids)
        places = list(range(len(tokens))) if positions is None else list(positions)
        logprobs: list[float] = []
        while len(logprobs) < max_tokens:
            logits = self.logits(tokens, places)[-1].double().numpy()
            places.append(places[-1] + 1)
            tokens.append(_choose(logits, sampling, places[-1]))
            logprobs.append(float(logits[tokens[-1]] - np.logaddexp.reduce(logits)))
            if tokens[-1] in stop_tokens:
                break
        return Generated(tuple(tokens[len(token_ids) :]), tuple(logprobs))

    @torch.inference_mode()
    def logits(
        self, token_ids: Sequence[int], positions: Sequence[int] | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """[num_tokens] → [num_tokens, vocab_size]. `mask` [num_tokens, num_tokens] says what each token sees;
        None is causal."""
        config, weights = self._model.config, self._model.weights
        angles = torch.tensor(range(len(token_ids)) if positions is None else positions).float()
        angles = torch.outer(angles, self._model.rope_frequencies)  # [num_tokens, head_dim / 2]
        if mask is None:
            mask = torch.ones(len(token_ids), len(token_ids), dtype=torch.bool).tril()
        hidden = weights["embedding"][torch.tensor(token_ids)]
        for index in range(config.num_layers):
            layer = {name: weights[f"layers.{index}.{name}"] for name in _LAYER_NAMES}
            hidden = hidden + self._attention(self._norm(hidden, layer["attention_norm"]), layer, angles, mask)
            gate, up = (self._norm(hidden, layer["mlp_norm"]) @ layer["gate_up"].T).chunk(2, dim=-1)
            hidden = hidden + (gate * torch.sigmoid(gate) * up) @ layer["down"].T
        head = weights["embedding" if config.is_head_tied else "head"]
        return self._norm(hidden, weights["final_norm"]) @ head.T

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        mean_square = (hidden * hidden).mean(dim=-1, keepdim=True)
        return hidden / torch.sqrt(mean_square + self._model.config.norm_epsilon) * weight

    def _attention(self, hidden: Tensor, layer: dict[str, Tensor], angles: Tensor, mask: Tensor) -> Tensor:
        config = self._model.config
        num_shared = config.num_heads // config.num_kv_heads
        heads = (hidden @ layer["qkv"].T).view(len(hidden), -1, config.head_dim).transpose(0, 1)
        query = _rotated(heads[: config.num_heads], angles)  # [num_heads, num_tokens, head_dim]
        key = _rotated(heads[config.num_heads : config.num_heads + config.num_kv_heads], angles)
        value = heads[config.num_heads + config.num_kv_heads :]
        key, value = (tensor.repeat_interleave(num_shared, dim=0) for tensor in (key, value))
        scores = query @ key.transpose(1, 2) / math.sqrt(config.head_dim)
        weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
        return (weights @ value).transpose(0, 1).reshape(len(hidden), -1) @ layer["attention_output"].T


_LAYER_NAMES = ("attention_norm", "qkv", "attention_output", "mlp_norm", "gate_up", "down")


def _rotated(heads: Tensor, angles: Tensor) -> Tensor:
    even, odd = heads[..., 0::2], heads[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


def _choose(logits: NDArray[np.float64], sampling: Sampling, position: int) -> int:
    logits = logits.copy()
    for token_id, bias in sampling.logit_bias.items():
        logits[token_id] += bias
    if sampling.allowed is not None:
        forbidden = sorted(set(range(len(logits))) - set(sampling.allowed))
        logits[forbidden] = -np.inf
    if sampling.temperature == 0:
        return int(logits.argmax())
    weights = np.exp((logits - logits.max()) / sampling.temperature)
    if 0 < sampling.top_k < len(weights):
        weights[weights < np.sort(weights)[-sampling.top_k]] = 0
    if sampling.top_p < 1:
        order = np.argsort(-weights, kind="stable")
        mass_before = np.cumsum(weights[order]) - weights[order]
        weights[order[mass_before >= sampling.top_p * weights.sum()]] = 0
    weights[weights < sampling.min_p * weights.max()] = 0
    cumulative = np.cumsum(weights)
    return int(np.argmax(cumulative > _uniform(sampling.seed, position) * cumulative[-1]))


def _uniform(seed: int, position: int) -> float:
    """SplitMix64's output function over the seed, then over that plus position + 1 Weyl steps."""
    state = seed
    for step in (0, position + 1):
        state = (state + step * 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        state = state ^ state >> 31
    return (state >> 11) / 2**53
