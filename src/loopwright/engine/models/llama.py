"""Llama 1, 2, 3, 3.x and models of the same form, such as SmolLM2. Never batches, samples or stores KV.

Source: "The Llama 3 Herd of Models", section 3.2; a config may add biases to attention's projections.
"""

from collections.abc import Iterator

from loopwright.engine.loaded_model import LoadedModel, ModelConfig
from loopwright.engine.models.architecture import Architecture
from loopwright.engine.models.decoder import Decoder, PreNormLayer
from loopwright.engine.models.weight_layout import LayerLayout, Layout, decoder_weights
from loopwright.engine.models.weight_spec import WeightSpec

_LAYOUT = Layout(has_paired_gguf=True)


def build_llama(model: LoadedModel) -> Decoder:
    return Decoder(model, PreNormLayer)


def llama_weights(config: ModelConfig) -> tuple[WeightSpec, ...]:
    """Every weight of a Llama, with its sources in both formats."""
    return decoder_weights(config, llama_layer_weights, _LAYOUT)


def llama_layer_weights(layer: LayerLayout) -> Iterator[WeightSpec]:
    yield layer.norm("attention_norm", "input_layernorm", "attn_norm")
    yield from layer.attention()
    yield layer.norm("mlp_norm", "post_attention_layernorm", "ffn_norm")
    yield from layer.gated_mlp()


LLAMA = Architecture("llama", "LlamaForCausalLM", "llama", llama_weights, build_llama)
