"""The runner of a rank that is not the first: it computes its part, and goes on with what the first one chooses.

Never tells anybody anything of a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopwright.core.batch import ForwardRow, RowResult
from loopwright.engine.asked import Asked
from loopwright.engine.cuda.answers import Fed
from loopwright.engine.cuda.launching import AskedRows, Other, Step
from loopwright.engine.cuda.runner import DeviceRunner


class FollowingDeviceRunner(DeviceRunner):
    """Does what another rank shares, and leaves choosing to that one: goes on with the tokens that it is told, and no
    result says anything. What is likeliest, and asks for nothing else, is nobody's choice, and not told."""

    def _choose(self, step: Step, logits: Tensor, other: Other) -> None:
        if not step.samplings.is_greedy:
            self._steps.advance(len(logits))

    def _drawn(self, vectors: Tensor, rows: Sequence[ForwardRow]) -> Tensor:
        self._model.logits(vectors)  # this rank's part of them is all that is wanted
        return torch.zeros(3, len(rows), dtype=torch.int32, device=self._device)

    def _ask(self, asked: Sequence[Asked], vectors: Callable[[list[int]], Tensor], fed: Fed | None) -> AskedRows:
        for _ in self._logits_of(asked, vectors):
            pass  # likewise
        return AskedRows(_Silent(len(asked)), torch.zeros(2, len(asked), dtype=torch.int32, device=self._device), {})


@dataclass(frozen=True, slots=True)
class _Silent:
    """Rows that are another's to answer. Implements Pending."""

    num_rows: int

    def results(self) -> list[RowResult]:
        return [RowResult()] * self.num_rows
