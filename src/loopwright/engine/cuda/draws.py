"""Draws for the rows of a decode step as captured graphs, since their hundred small launches take longer than the step.

The samplings of the rows are copied to where the graphs read them when they change. Used by the decode steps.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.calls import Sampling
from loopwright.engine.cuda.buffers import DecodeBuffers
from loopwright.engine.cuda.sampling import DrawOpen, RowSamplings, draw_with, outputs_of
from loopwright.engine.transfer import to_device

_COLUMNS = ("is_wide", "temperatures", "greedy", "processed", "top_k", "top_p", "min_p")
_KINDS = ((True, False), (False, True), (True, True))  # whether rows filter, and whether rows draw from everything

Capture = Callable[[Callable[[], Tensor]], Any]
"""Captures a function; what it gives has `replay`, which gives the function's result."""


class CapturedDraws:
    """For up to `max_rows` rows. `capture` is called once for each size of batch."""

    def __init__(
        self, buffers: DecodeBuffers, max_rows: int, advance: Callable[[DecodeBuffers, int], None], draw_open: DrawOpen
    ) -> None:
        device = buffers.inputs.device
        plain = RowSamplings.of([Sampling(logprobs="processed")] * max_rows, device)
        self._columns = {name: getattr(plain, name) for name in _COLUMNS}
        self._numbers = torch.zeros(max_rows, dtype=torch.float64, device=device)
        self._template, self._buffers, self._advance, self._draw_open = plain, buffers, advance, draw_open
        self._graphs: dict[tuple[int, bool, bool], Any] = {}
        self._placed: RowSamplings | None = None

    def capture(self, size: int, logits: Tensor, capture: Capture) -> None:
        """For batches of `size`, whose logits are always found at `logits`."""
        for may_overflow, has_wide in _KINDS:
            columns: dict[str, Any] = {name: one[:size] for name, one in self._columns.items()}
            samplings = replace(
                self._template, may_overflow=may_overflow, has_wide=has_wide, is_greedy=False, **columns
            )  # fmt: skip

            def run(samplings: RowSamplings = samplings) -> Tensor:
                drawn = draw_with(logits, samplings, self._numbers[:size], self._draw_open)
                self._buffers.outputs[:, :size] = outputs_of(logits, *drawn)
                self._buffers.outputs[2, :size] |= self._buffers.failed[:size]
                self._advance(self._buffers, size)
                return self._buffers.outputs

            self._graphs[size, may_overflow, has_wide] = capture(run)

    def draw(self, size: int, samplings: RowSamplings, positions: NDArray[np.integer]) -> bool:
        """Writes what is drawn to the outputs and makes it the next step's inputs. False if nothing was captured for
        this size."""
        graph = self._graphs.get((size, samplings.may_overflow, samplings.has_wide or not samplings.may_overflow))
        if graph is None:
            return False
        num_rows = len(positions)
        if self._placed is not samplings:
            for name, column in self._columns.items():
                column[:num_rows] = getattr(samplings, name)
            self._columns["greedy"][num_rows:] = True  # rows that nobody looks at filter nothing
            self._placed = samplings
        self._numbers[:num_rows] = to_device(samplings.numbers(positions), self._numbers.device)
        graph.replay()
        return True
