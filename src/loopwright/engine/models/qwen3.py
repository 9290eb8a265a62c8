"""Qwen3: no biases on query and key but a norm over each of their heads. Never batches, samples or stores KV.

Source: "Qwen3 Technical Report", section 2.
"""

from collections.abc import Iterator

from loopwright.engine.loaded_model import ModelConfig
from loopwright.engine.models.architecture import Architecture
from loopwright.engine.models.llama import build_llama, llama_layer_weights
from loopwright.engine.models.weight_layout import LayerLayout, Layout, decoder_weights
from loopwright.engine.models.weight_spec import WeightSpec


def _weights(config: ModelConfig) -> tuple[WeightSpec, ...]:
    return decoder_weights(config, _layer_weights, Layout())


def _layer_weights(layer: LayerLayout) -> Iterator[WeightSpec]:
    yield from llama_layer_weights(layer)
    yield from layer.head_norms()


QWEN3 = Architecture("qwen3", "Qwen3ForCausalLM", "qwen3", _weights, build_llama)
