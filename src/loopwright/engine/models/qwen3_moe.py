"""Qwen3-MoE: Qwen3 with a mixture of experts in place of each MLP. Never batches, samples or stores KV.

Source: "Qwen3 Technical Report", section 2: softmax over all experts, the best few run, no shared expert.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import linear

from loopwright.engine.loaded_model import ALONE, Experts, LoadedModel, ModelConfig
from loopwright.engine.models.architecture import Architecture
from loopwright.engine.models.decoder import Decoder, GatedMlp, PreNormLayer
from loopwright.engine.models.weight_layout import LayerLayout, Layout, decoder_weights
from loopwright.engine.models.weight_spec import WeightSpec


class MixtureOfExperts:
    """Each token runs through its own few experts; an expert runs once, over all tokens that chose it."""

    def __init__(self, model: LoadedModel, prefix: str) -> None:
        self._sizes = _sizes(model.config)
        self._router = model.weights[f"{prefix}router"]  # [num_experts, hidden]
        self._ranks = model.ranks
        self._experts = [
            GatedMlp(model, f"{prefix}experts.{number}.", ranks=ALONE) for number in range(self._sizes.num_experts)
        ]  # fmt: skip

    def __call__(self, normalized: Tensor) -> Tensor:
        probabilities = linear(normalized, self._router).softmax(dim=-1)
        shares, chosen = probabilities.topk(self._sizes.num_chosen, dim=-1)  # [num_tokens, num_chosen]
        if self._sizes.is_normalized:
            shares = shares / shares.sum(dim=-1, keepdim=True)
        output = torch.zeros_like(normalized)
        for number in sorted(set(chosen.flatten().tolist())):  # in order: neighbours must not change a token's sum
            tokens, places = torch.where(chosen == number)
            output.index_add_(0, tokens, self._experts[number](normalized[tokens]) * shares[tokens, places, None])
        return self._ranks.add_up(output)


def _build(model: LoadedModel) -> Decoder:
    return Decoder(
        model, lambda model, index: PreNormLayer(model, index, MixtureOfExperts(model, f"layers.{index}."))
    )  # fmt: skip


def _weights(config: ModelConfig) -> tuple[WeightSpec, ...]:
    return decoder_weights(config, _layer_weights, Layout())


def _layer_weights(layer: LayerLayout) -> Iterator[WeightSpec]:
    sizes = _sizes(layer.config)
    yield layer.norm("attention_norm", "input_layernorm", "attn_norm")
    yield from layer.attention()
    yield from layer.head_norms()
    yield layer.norm("mlp_norm", "post_attention_layernorm", "ffn_norm")
    yield layer.matrix("router", layer.config.hidden_size, (sizes.num_experts, "mlp.gate", "ffn_gate_inp"))
    for number in range(sizes.num_experts):
        yield from layer.expert_mlp(number, sizes.num_experts, sizes.intermediate_size)


def _sizes(config: ModelConfig) -> Experts:
    assert config.experts is not None, "the config readers give this architecture its experts"
    return config.experts


QWEN3_MOE = Architecture("qwen3moe", "Qwen3MoeForCausalLM", "qwen3moe", _weights, _build)
