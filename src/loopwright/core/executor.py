"""The seam between control and the engine. Never schedules.

Implemented by the engine, by its scripted double and by fakes in tests.
"""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from loopwright.core.batch import Batch, StepResult


@dataclass(frozen=True, slots=True)
class EngineShape:
    """The sizes control plans with."""

    vocab_size: int
    max_context: int  # positions the model was made for
    block_size: int  # tokens a block
    num_blocks: int
    num_slots: int  # embed slots
    block_bytes: int = 0  # KV of a block, in all layers; 0: no memory of its own


class Executor(Protocol):
    """Runs batches, one at a time, in the order they were submitted."""

    @property
    def shape(self) -> EngineShape: ...

    def submit(self, batch: Batch) -> Future[StepResult]:
        """Starts the batch and returns at once. The future fails only for a fault of the whole step."""
        ...

    def close(self) -> None:
        """Ends the executor's thread and frees its memory; later submits fail."""
        ...
