"""Says how a weight of ours is put together from the tensors of a file. Never reads one.

Filled by the architectures through `weight_layout`, read by the loader and the writer of test files.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Where one format keeps a part of ours, and how it differs there.

    `num_halved_heads` > 0 marks rows of that many heads, where the two halves of a rotary pair lie head_dim / 2 rows
    apart; ours lie side by side. `offset` is what has to be added. `expert` (number, count) marks one of the equal
    slices of a tensor that holds all experts."""

    name: str
    num_halved_heads: int = 0
    offset: float = 0.0
    expert: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class WeightPart:
    """How many rows of ours a part fills, and its place in a Hugging Face folder and in a GGUF file."""

    num_rows: int
    hf: StoredPart
    gguf: StoredPart


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One weight of ours: the parts lie one below the other."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[WeightPart, ...]
