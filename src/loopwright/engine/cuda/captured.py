"""A function that was captured as a CUDA graph, with what it gives. Never captures. Used by whoever does."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import torch

FoundT = TypeVar("FoundT")


@dataclass(frozen=True, slots=True, eq=False)
class Captured(Generic[FoundT]):
    """`found` is the very same after every replay; its tensors have new numbers."""

    graph: "torch.cuda.CUDAGraph"
    found: FoundT

    def replay(self) -> FoundT:
        """On the current stream, without waiting."""
        self.graph.replay()
        return self.found
