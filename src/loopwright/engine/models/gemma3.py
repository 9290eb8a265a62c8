"""Gemma 3, its text part: a norm before and after each block, head norms, scaled embeddings. Never stores KV.

Most layers see a window and rotate by a base of their own; which ones is in the config.
Source: "Gemma 3 Technical Report", section 2, and its reference implementation.
"""

from collections.abc import Iterator

from torch import Tensor

from loopwright.engine.attention import AttentionStep
from loopwright.engine.layers import gated_gelu, rms_norm
from loopwright.engine.loaded_model import LoadedModel, ModelConfig
from loopwright.engine.models.architecture import Architecture
from loopwright.engine.models.decoder import Decoder, GatedMlp, SelfAttention
from loopwright.engine.models.weight_layout import LayerLayout, Layout, decoder_weights
from loopwright.engine.models.weight_spec import WeightSpec

_NORMS = {
    "attention_norm": ("input_layernorm", "attn_norm"),
    "attention_post_norm": ("post_attention_layernorm", "post_attention_norm"),
    "mlp_norm": ("pre_feedforward_layernorm", "ffn_norm"),
    "mlp_post_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
}


class Gemma3Layer:
    """hidden + norm(attention(norm(hidden))), then the same with the MLP."""

    def __init__(self, model: LoadedModel, index: int) -> None:
        prefix = f"layers.{index}."
        self._epsilon = model.config.norm_epsilon
        self._norms = [model.weights[prefix + name] for name in _NORMS]
        self._attention = SelfAttention(model, index)
        self._mlp = GatedMlp(model, prefix, gated_gelu)

    def __call__(self, hidden: Tensor, rotation: Tensor, attention: AttentionStep) -> Tensor:
        before_attention, after_attention, before_mlp, after_mlp = self._norms
        attended = self._attention(rms_norm(hidden, before_attention, self._epsilon), rotation, attention)
        hidden = rms_norm(attended, after_attention, self._epsilon).add_(hidden)
        computed = self._mlp(rms_norm(hidden, before_mlp, self._epsilon))
        return rms_norm(computed, after_mlp, self._epsilon).add_(hidden)


def _build(model: LoadedModel) -> Decoder:
    return Decoder(model, Gemma3Layer, embedding_scale=model.config.hidden_size**0.5)


def _weights(config: ModelConfig) -> tuple[WeightSpec, ...]:
    return decoder_weights(config, _layer_weights, Layout(hf_norm_offset=1.0))


def _layer_weights(layer: LayerLayout) -> Iterator[WeightSpec]:
    for name, (hf_name, gguf_name) in _NORMS.items():
        yield layer.norm(name, hf_name, gguf_name)
    yield from layer.attention()
    yield from layer.head_norms()
    yield from layer.gated_mlp()


GEMMA3 = Architecture("gemma3", "Gemma3ForCausalLM", "gemma3", _weights, _build)
