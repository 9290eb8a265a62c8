"""The Llama family (1, 2, 3 and models of the same form). Never batches, samples or stores KV.

Built by the model runner.

Source: "LLaMA: Open and Efficient Foundation Language Models", section 2.2, with grouped-query attention of Llama 2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from loopwright.engine.attention import AttentionStep
from loopwright.engine.layers import gated_silu, rms_norm, rope_rotation, rotate_
from loopwright.engine.loaded_model import LoadedModel, ModelConfig
from loopwright.engine.models.weight_spec import WeightPart, WeightSpec


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor  # [hidden]
    qkv: Tensor  # [(num_heads + 2 · num_kv_heads) · head_dim, hidden]
    attention_output: Tensor  # [hidden, num_heads · head_dim]
    mlp_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 · intermediate, hidden]
    down: Tensor  # [hidden, intermediate]


class Llama:
    """A decoder over a flat batch: tokens of any number of rows, one after the other."""

    def __init__(self, model: LoadedModel) -> None:
        config, weights = model.config, model.weights
        self._config = config
        self._frequencies = model.rope_frequencies
        self._embedding = weights["embedding"]
        self._final_norm = weights["final_norm"]
        self._head = weights["embedding" if config.is_head_tied else "head"]
        names = _Layer.__slots__
        self._layers = [
            _Layer(**{name: weights[f"layers.{i}.{name}"] for name in names}) for i in range(config.num_layers)
        ]

    def embed(self, token_ids: Tensor) -> Tensor:
        return embedding(token_ids, self._embedding)

    def forward(self, hidden: Tensor, positions: Tensor, attention: AttentionStep) -> Tensor:
        config = self._config
        num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
        rotation = rope_rotation(positions, self._frequencies)
        for index, layer in enumerate(self._layers):
            normalized = rms_norm(hidden, layer.attention_norm, config.norm_epsilon)
            heads = linear(normalized, layer.qkv).view(len(hidden), -1, config.head_dim)
            rotate_(heads[:, : num_heads + num_kv_heads], rotation)
            query, key, value = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], dim=1)
            attended = attention.attend(index, query, key, value)  # [num_tokens, num_heads · head_dim]
            hidden = torch.addmm(hidden, attended, layer.attention_output.t())
            normalized = rms_norm(hidden, layer.mlp_norm, config.norm_epsilon)
            hidden = torch.addmm(hidden, gated_silu(linear(normalized, layer.gate_up)), layer.down.t())
        return hidden

    def normalize(self, hidden: Tensor) -> Tensor:
        return rms_norm(hidden, self._final_norm, self._config.norm_epsilon)

    def logits(self, normalized: Tensor) -> Tensor:
        return linear(normalized, self._head)


def llama_weights(config: ModelConfig) -> tuple[WeightSpec, ...]:
    """Every weight that `Llama` reads, with its sources in GGUF and Hugging Face files."""
    hidden, vocab = config.hidden_size, config.vocab_size
    top = [
        _matrix("embedding", hidden, WeightPart("model.embed_tokens.weight", "token_embd.weight", vocab)),
        _norm("final_norm", hidden, "model.norm.weight", "output_norm.weight"),
    ]
    if not config.is_head_tied:
        top.append(_matrix("head", hidden, WeightPart("lm_head.weight", "output.weight", vocab)))
    return (*top, *(spec for index in range(config.num_layers) for spec in _layer_weights(config, index)))


def _layer_weights(config: ModelConfig, index: int) -> list[WeightSpec]:
    hf, gguf, ours = f"model.layers.{index}.", f"blk.{index}.", f"layers.{index}."
    hidden, intermediate = config.hidden_size, config.intermediate_size
    num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
    query_rows, kv_rows = num_heads * config.head_dim, num_kv_heads * config.head_dim

    def part(hf_name: str, gguf_name: str, num_rows: int, num_rotary_heads: int = 0) -> WeightPart:
        return WeightPart(f"{hf}{hf_name}.weight", f"{gguf}{gguf_name}.weight", num_rows, num_rotary_heads)

    return [
        _norm(f"{ours}attention_norm", hidden, f"{hf}input_layernorm.weight", f"{gguf}attn_norm.weight"),
        _matrix(
            f"{ours}qkv",
            hidden,
            part("self_attn.q_proj", "attn_q", query_rows, num_heads),
            part("self_attn.k_proj", "attn_k", kv_rows, num_kv_heads),
            part("self_attn.v_proj", "attn_v", kv_rows),
        ),
        _matrix(f"{ours}attention_output", query_rows, part("self_attn.o_proj", "attn_output", hidden)),
        _norm(f"{ours}mlp_norm", hidden, f"{hf}post_attention_layernorm.weight", f"{gguf}ffn_norm.weight"),
        _matrix(
            f"{ours}gate_up",
            hidden,
            part("mlp.gate_proj", "ffn_gate", intermediate),
            part("mlp.up_proj", "ffn_up", intermediate),
        ),
        _matrix(f"{ours}down", intermediate, part("mlp.down_proj", "ffn_down", hidden)),
    ]


def _matrix(name: str, num_inputs: int, *parts: WeightPart) -> WeightSpec:
    return WeightSpec(name, (sum(part.num_rows for part in parts), num_inputs), parts)


def _norm(name: str, size: int, hf_name: str, gguf_name: str) -> WeightSpec:
    return WeightSpec(name, (size,), (WeightPart(hf_name, gguf_name, size),))
