"""The seam between control and the engine. Never schedules.

Implemented by the engine, by its scripted double and by fakes in tests.
"""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from loopwright.core.batch import Batch, StepResult

StepsAhead: TypeAlias = Literal["never", "possible", "usual"]
"""Whether batches may be *ahead*: submitted while the one before runs, with rows whose tokens that one has yet to
sample (`core.batch.Batch` says how). If it is *possible*, control does so only when its configuration asks for it."""


@dataclass(frozen=True, slots=True)
class EngineShape:
    """What control plans with."""

    vocab_size: int
    max_context: int  # positions the model was made for
    block_size: int  # tokens a block
    num_blocks: int
    num_slots: int  # embed slots
    block_bytes: int = 0  # KV of a block, in all layers; 0: no memory of its own
    steps_ahead: StepsAhead = "never"
    max_step_tokens: int = 512  # tokens that a step is made for, where the configuration does not say


class Executor(Protocol):
    """Runs batches, one at a time, in the order they were submitted."""

    @property
    def shape(self) -> EngineShape: ...

    def submit(self, batch: Batch) -> Future[StepResult]:
        """Starts the batch, or has it wait for those before it, and returns at once. Futures end in the order of their
        batches. One fails only for a fault of the whole step."""
        ...

    def close(self) -> None:
        """Ends the executor's thread and frees its memory; later submits fail."""
        ...
