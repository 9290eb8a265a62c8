"""Says how a weight of ours is put together from the tensors of a file. Never reads one.

Filled by models, read by the loader.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WeightPart:
    """One tensor of a file, and how many rows of ours it fills.

    `num_rotary_heads` > 0 marks a query or key: a Hugging Face file keeps the two halves of a pair head_dim / 2 rows
    apart, ours and GGUF's keep them side by side."""

    hf_name: str
    gguf_name: str
    num_rows: int
    num_rotary_heads: int = 0


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One weight of ours: the parts lie one below the other."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[WeightPart, ...]
