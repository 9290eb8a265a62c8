"""The architectures this engine can run, by name. Never loads weights. Called by the loader and the model runner."""

from collections.abc import Mapping

from loopwright.core.errors import BadRequest
from loopwright.engine.models.architecture import Architecture
from loopwright.engine.models.gemma3 import GEMMA3
from loopwright.engine.models.llama import LLAMA
from loopwright.engine.models.mistral import MISTRAL
from loopwright.engine.models.qwen2 import QWEN2
from loopwright.engine.models.qwen3 import QWEN3
from loopwright.engine.models.qwen3_moe import QWEN3_MOE

ARCHITECTURES: Mapping[str, Architecture] = {one.name: one for one in (LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE, GEMMA3)}


def find_architecture(name: str) -> Architecture:
    """By our own name, GGUF's or config.json's; of several with one GGUF name, the first. Raises BadRequest, which
    names the known ones."""
    for architecture in ARCHITECTURES.values():
        if name in (architecture.name, architecture.hf_name, architecture.gguf_name):
            return architecture
    known = ", ".join(f"{one.name} ({one.hf_name})" for one in ARCHITECTURES.values())
    raise BadRequest(f"the architecture {name!r} cannot be run; known are {known}")
