"""Qwen2 and Qwen2.5: Llama with biases on query, key and value. Never batches, samples or stores KV.

Source: "Qwen2 Technical Report", section 2.2.1.
"""

from loopwright.engine.loaded_model import ModelConfig
from loopwright.engine.models.architecture import Architecture
from loopwright.engine.models.llama import build_llama, llama_layer_weights
from loopwright.engine.models.weight_layout import Layout, decoder_weights
from loopwright.engine.models.weight_spec import WeightSpec


def _weights(config: ModelConfig) -> tuple[WeightSpec, ...]:
    return decoder_weights(config, llama_layer_weights, Layout())


QWEN2 = Architecture("qwen2", "Qwen2ForCausalLM", "qwen2", _weights, build_llama)
