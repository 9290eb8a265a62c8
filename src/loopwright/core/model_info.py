"""What anyone may know of a loaded model. Never loads one. Made by compose, shown to programs and clients."""

import hashlib
from typing import Literal, TypeAlias

import msgspec

from loopwright.core.traits import Trait

Exactness: TypeAlias = Literal["reference", "deterministic", "fast"]
"""reference: equals the one-request oracle. deterministic: a row's bits do not depend on its neighbours.
fast: within a published noise floor."""


WeightDtype: TypeAlias = Literal["auto", "float32", "bfloat16", "int8", "stored", "fp8", "int4"]
"""How an engine keeps a model's weights. float32: torch, the reference. bfloat16, int8: the native kernels, or a GPU's.
stored: the native ones, each matrix as its file has it (4 bits for Q4_0 and Q4_1, 8 for other quantizations). fp8 and
int4: a GPU's. auto: bfloat16 where kernels can run, else float32."""


class ModelInfo(msgspec.Struct, frozen=True):
    """Description of a model. Token ids and sizes in tokens."""

    name: str
    architecture: str
    traits: tuple[Trait, ...]
    vocab_size: int
    max_context: int
    page_size: int
    num_pages: int
    eos_ids: tuple[int, ...]  # tokens that end a turn
    bos_id: int | None  # the token that every context starts with, if the model has such
    has_chat_template: bool
    quantization: str
    weights_sha256: str
    exactness: Exactness = "reference"
    license: str = ""
    description: str = ""
    template_sha256: str = ""  # of the chat template
    reasoning: tuple[str, str] | None = None  # the tags around what it thinks, if its template has such
    tool_format: str = "hermes"  # how it writes calls of tools: docs/tools-while-generating.md
    template_options: tuple[str, ...] = ()  # what its template reads beside messages and tools
    engine: str = ""  # what computes: its version and back-end
    version: str = ""  # changes when an answer could: quantization and weights
    max_token_bytes: int = 0  # of the longest token's text; 0 is not known
    service_id: int = 0  # which of the server's engines runs it; models of one engine share its pages

    @property
    def fingerprint(self) -> str:
        """Changes with whatever may change an answer: weights, quantization, template, engine, equality class."""
        parts = (self.weights_sha256, self.quantization, self.template_sha256, self.engine, self.exactness)
        return "fp_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
