"""Mistral: Llama whose layers see a window of the last tokens where its config says so. Never stores KV.

GGUF files of it call themselves "llama", and load as that; the window comes with the config, not with the name.
Source: "Mistral 7B", section 2.
"""

from loopwright.engine.models.architecture import Architecture
from loopwright.engine.models.llama import build_llama, llama_weights

MISTRAL = Architecture("mistral", "MistralForCausalLM", "llama", llama_weights, build_llama)
