"""The decoder that every architecture here is a variant of. Never batches, samples or stores KV.

An architecture's file says which weights there are and what a layer does; the loop over layers, attention's projections
and the gated MLP are the same. Built by the architectures, run by the model runner.

Source: "LLaMA: Open and Efficient Foundation Language Models", section 2.2, with grouped-query attention of Llama 2.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from loopwright.engine.attention import AttentionStep
from loopwright.engine.layers import gated_silu, rms_norm, rope_rotation, rotate_
from loopwright.engine.loaded_model import LoadedModel, Ranks


class Layer(Protocol):
    """One layer over a flat batch: tokens of any number of rows, one after the other."""

    def __call__(self, hidden: Tensor, rotation: Tensor, attention: AttentionStep) -> Tensor:
        """[num_tokens, hidden_size] → the same."""
        ...


class Decoder:
    """Embedding, layers, final norm and head. Implements models.architecture.Model."""

    def __init__(
        self, model: LoadedModel, make_layer: Callable[[LoadedModel, int], Layer], *, embedding_scale: float = 1.0
    ) -> None:
        config, weights = model.config, model.weights
        self._epsilon = config.norm_epsilon
        self._ropes = model.ropes
        self._embedding = weights["embedding"]
        self._embedding_scale = embedding_scale
        self._final_norm = weights["final_norm"]
        self._head = model.own_rows(self._embedding) if config.is_head_tied else weights["head"]
        self._ranks = model.ranks
        self._layers = [make_layer(model, index) for index in range(config.num_layers)]

    def embed(self, token_ids: Tensor) -> Tensor:
        vectors = embedding(token_ids, self._embedding)
        return vectors if self._embedding_scale == 1 else vectors.mul_(self._embedding_scale)

    def forward(self, hidden: Tensor, positions: Tensor, attention: AttentionStep) -> Tensor:
        rotations = {rope: rope_rotation(positions, rope) for rope in dict.fromkeys(self._ropes)}
        for layer, rope in zip(self._layers, self._ropes, strict=True):
            hidden = layer(hidden, rotations[rope], attention)
        return hidden

    def normalize(self, hidden: Tensor) -> Tensor:
        return rms_norm(hidden, self._final_norm, self._epsilon)

    def logits(self, normalized: Tensor) -> Tensor:
        return self._ranks.side_by_side(linear(normalized, self._head))


class PreNormLayer:
    """hidden + attention(norm(hidden)), then the same with the MLP."""

    def __init__(self, model: LoadedModel, index: int, mlp: Callable[[Tensor], Tensor] | None = None) -> None:
        prefix = f"layers.{index}."
        self._epsilon = model.config.norm_epsilon
        self._attention_norm = model.weights[f"{prefix}attention_norm"]
        self._attention = SelfAttention(model, index)
        self._mlp_norm = model.weights[f"{prefix}mlp_norm"]
        self._mlp = mlp or GatedMlp(model, prefix)

    def __call__(self, hidden: Tensor, rotation: Tensor, attention: AttentionStep) -> Tensor:
        normalized = rms_norm(hidden, self._attention_norm, self._epsilon)
        hidden = self._attention(normalized, rotation, attention).add_(hidden)
        normalized = rms_norm(hidden, self._mlp_norm, self._epsilon)
        return self._mlp(normalized).add_(hidden)


class SelfAttention:
    """Projections, head norms where the model has them, rotation, attention over the cache, the output projection."""

    def __init__(self, model: LoadedModel, index: int) -> None:
        config, weights, prefix = model.config, model.weights, f"layers.{index}."
        self._index, self._epsilon, self._head_dim = index, config.norm_epsilon, config.head_dim
        self._ranks = model.ranks
        self._split = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        self._qkv = weights[f"{prefix}qkv"]  # [(num_heads + 2 · num_kv_heads) · head_dim, hidden]
        self._qkv_bias = weights.get(f"{prefix}qkv_bias")
        self._query_norm = weights.get(f"{prefix}query_norm")  # [head_dim]
        self._key_norm = weights.get(f"{prefix}key_norm")
        self._output = weights[f"{prefix}attention_output"]  # [hidden, num_heads · head_dim]
        self._output_bias = weights.get(f"{prefix}attention_output_bias")
        # Back-ends scale scores by head_dim ** -0.5; what a model wants beyond that is put on the query.
        self._query_scale = 1.0 if config.score_scale is None else config.score_scale * config.head_dim**0.5

    def __call__(self, normalized: Tensor, rotation: Tensor, attention: AttentionStep) -> Tensor:
        heads = linear(normalized, self._qkv, self._qkv_bias).view(len(normalized), -1, self._head_dim)
        query, key, value = torch.split(heads, self._split, dim=1)
        if self._query_norm is not None and self._key_norm is not None:
            query = rms_norm(query, self._query_norm, self._epsilon)
            key = rms_norm(key, self._key_norm, self._epsilon)
            rotate_(query, rotation)
            rotate_(key, rotation)
        else:
            rotate_(heads[:, : self._split[0] + self._split[1]], rotation)  # both at once
        if self._query_scale != 1:
            query = query * self._query_scale
        attended = attention.attend(self._index, query, key, value)  # [num_tokens, num_heads · head_dim]
        return self._ranks.add_up(linear(attended, self._output, self._output_bias))


class GatedMlp:
    """down(gate(x) · up(x)); `gated` is the activation over gate and up side by side, `ranks` who adds to the result:
    the model's, if nothing else is said."""

    def __init__(
        self, model: LoadedModel, prefix: str, gated: Callable[[Tensor], Tensor] = gated_silu,
        ranks: Ranks | None = None,
    ) -> None:  # fmt: skip
        self._gated, self._ranks = gated, ranks or model.ranks
        self._gate_up = model.weights[f"{prefix}gate_up"]  # [2 · intermediate, hidden]
        self._down = model.weights[f"{prefix}down"]  # [hidden, intermediate]

    def __call__(self, normalized: Tensor) -> Tensor:
        return self._ranks.add_up(linear(self._gated(linear(normalized, self._gate_up)), self._down))
