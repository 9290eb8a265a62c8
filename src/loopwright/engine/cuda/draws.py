"""Draws for the rows of a decode step as captured graphs, since their launches one by one take longer than the step.

The samplings of the rows are copied to where the graphs read them when they change. Used by the decode steps.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.calls import Sampling
from loopwright.engine.cuda.buffers import DecodeBuffers
from loopwright.engine.cuda.operations import Operations
from loopwright.engine.cuda.row_adjustments import AdjustmentTables
from loopwright.engine.cuda.sampling import RowSamplings
from loopwright.engine.transfer import to_device

_COLUMNS = ("temperatures", "greedy", "processed", "top_k", "top_p", "min_p", "typical_p")

Capture = Callable[[Callable[[], Tensor]], Any]
"""Captures a function; what it gives has `replay`, which gives the function's result."""


class _Kind(NamedTuple):
    """What a step's rows ask for, any of them."""

    has_filters: bool
    is_adjusted: bool


class CapturedDraws:
    """For up to `max_rows` rows. `capture` is called once for each size of batch."""

    def __init__(self, buffers: DecodeBuffers, max_rows: int, operations: Operations) -> None:
        device = buffers.inputs.device
        plain = RowSamplings.of([Sampling(logprobs="processed")] * max_rows, device)
        self._columns = {name: getattr(plain, name) for name in _COLUMNS}
        self._numbers = torch.zeros(max_rows, dtype=torch.float64, device=device)
        self._template, self._buffers, self._operations = plain, buffers, operations
        self._graphs: dict[tuple[int, _Kind], Any] = {}
        self._placed: RowSamplings | None = None

    def capture(self, size: int, logits: Tensor, tables: AdjustmentTables, capture: Capture) -> None:
        """For batches of `size`, whose logits are always found at `logits`."""
        columns: dict[str, Any] = {name: one[:size] for name, one in self._columns.items()}
        for one in product((False, True), repeat=2):
            kind = _Kind(*one)
            has = kind.has_filters
            samplings = replace(self._template, has_top_k=has, has_top_p=has, has_typical=has, **columns)

            def run(
                samplings: RowSamplings = samplings, own: AdjustmentTables | None = tables if kind.is_adjusted else None
            ) -> Tensor:
                return drawn(self._operations, self._buffers, logits, samplings, self._numbers[:size], own)

            self._graphs[size, kind] = capture(run)

    def draw(self, size: int, samplings: RowSamplings, positions: NDArray[np.integer]) -> bool:
        """Writes what is drawn to the outputs and makes it the next step's inputs. False if nothing was captured for
        this size."""
        kind = _Kind(samplings.has_filters, bool(samplings.adjusted))
        graph = self._graphs.get((size, kind))
        if graph is None:
            return False
        num_rows = len(positions)
        if self._placed is not samplings:
            for name, column in self._columns.items():
                column[:num_rows] = getattr(samplings, name)
            self._columns["greedy"][num_rows:] = True  # rows that nobody looks at
            self._columns["top_k"][num_rows:] = 0
            self._columns["top_p"][num_rows:] = 1.0
            self._columns["typical_p"][num_rows:] = 1.0
            self._placed = samplings
        self._numbers[:num_rows] = to_device(samplings.numbers(positions), self._numbers.device)
        graph.replay()
        return True


def drawn(
    operations: Operations, buffers: DecodeBuffers, logits: Tensor, samplings: RowSamplings, numbers: Tensor,
    tables: AdjustmentTables | None,
) -> Tensor:  # fmt: skip
    """Draws for the first rows of the buffers, with `tables` if any is adjusted: the outputs, which are the next
    inputs."""
    num_rows = len(logits)
    scores = logits if tables is None else operations.adjust(logits, tables)
    outputs = operations.draw(logits, scores, samplings, numbers)
    buffers.outputs[:, :num_rows] = outputs
    buffers.outputs[2, :num_rows] |= buffers.failed[:num_rows]
    if tables is not None:
        operations.note(tables, outputs[0])
    operations.advance(buffers, num_rows)
    return buffers.outputs
