"""A batch under way: what is known of its rows already, and what the device is still writing. Never launches anything.

Made by the runner, read on the thread that tells control.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from loopwright.core.batch import NO_DECODE_RESULT, Batch, DecodeResult, RowResult, Sampled, StepResult
from loopwright.core.errors import ErrorInfo
from loopwright.engine.asked import Asked
from loopwright.engine.cuda.decode_asks import DecodeAnswers
from loopwright.engine.sampler import not_finite
from loopwright.engine.transfer import HostCopies

if TYPE_CHECKING:
    from loopwright.core.samplers import SamplerState


class Pending(Protocol):
    """Rows whose results are on their way to the host."""

    def results(self) -> list[RowResult]:
        """Waits for the device."""
        ...


class Reading:
    """Drawn tokens: outputs [3, num_rows] as in DecodeBuffers. Implements Pending."""

    def __init__(self, outputs: Tensor) -> None:
        self._copies = HostCopies()
        self._landed = self._copies.take(outputs)
        self._copies.sent()

    def columns(self) -> "Columns":
        """Waits for the device."""
        self._copies.wait()
        numbers = self._landed()
        errors: dict[int, ErrorInfo] = {}
        for row in np.flatnonzero(numbers[2]).tolist():
            error = not_finite().error
            assert error is not None
            errors[row] = error
        return Columns(numbers[0].tolist(), numbers[1].view(np.float32).tolist(), errors)

    def results(self) -> list[RowResult]:
        """The same, row by row."""
        columns = self.columns()
        return [columns.result(row) for row in range(len(columns.ids))]


class Columns(NamedTuple):
    """What was drawn for each row, and errors by row."""

    ids: list[int]
    logprobs: list[float]
    errors: dict[int, ErrorInfo]

    def result(self, row: int) -> RowResult:
        if row in self.errors:
            return RowResult(error=self.errors[row])
        return RowResult((Sampled(self.ids[row], self.logprobs[row]),))


class Assembled:
    """Rows that asked several questions each, in the order in which `answers` have them. Implements Pending."""

    def __init__(self, asked: Sequence[Asked], answers: Sequence[Pending]) -> None:
        self._asked, self._answers = asked, answers

    def results(self) -> list[RowResult]:
        """One for each row."""
        found: Iterator[RowResult] = iter([one for answers in self._answers for one in answers.results()])
        return [one.assemble(found) for one in self._asked]


Part = tuple[Pending, Sequence[int]]
"""Results on their way, and the places of the rows that they are of."""


class Launched:
    """A batch under way. Any thread may ask it."""

    def __init__(
        self, batch: Batch, num_decodes: int, known: Mapping[int, RowResult],
        step: tuple[Reading | None, Sequence[int], DecodeAnswers | None] | None, parts: Sequence[Part],
        heads: tuple[Mapping[int, RowResult], Sequence[Part]], shifts: Sequence[RowResult],
    ) -> None:  # fmt: skip
        """`known` and `parts` have the results of rows by their places among `all_rows`; `step` those of the decode
        step that have no other, the batch's `num_decodes` decode rows first, with what these asked for, which may be
        all that came of them. `heads` likewise, by place among them."""
        self.sampled: Tensor | None = None  # [2, rows]: ids and failures on the device
        self.states: Mapping[int, SamplerState] = {}  # what samplers leave to the next token, by place
        self.decoded = None if step is None or step[2] is None else step[2].states  # likewise, of the decode rows
        self.tell: Callable[[Sequence[int]], None] | None = None  # is told the decode rows' ids
        self._batch, self._num_decodes, self._known, self._step, self._parts = batch, num_decodes, known, step, parts
        self._heads, self._shifts = heads, shifts
        self._lock = Lock()
        self._result: StepResult | None = None

    def state_of(self, place: int) -> "SamplerState | None":
        """What the sampler of a row left, if it has one."""
        if self.decoded is not None and place < len(self.decoded):
            found: SamplerState | None = self.decoded[place]
            return found
        return self.states.get(place)

    def result(self) -> StepResult:
        """Waits for the device."""
        with self._lock:
            if self._result is None:
                self._result = self._read()
            return self._result

    def _read(self) -> StepResult:
        num, batch = self._num_decodes, self._batch
        found = _collected(self._known, self._parts)
        decoded = NO_DECODE_RESULT
        if self._step is not None:
            reading, places, answers = self._step
            columns = reading.columns() if reading is not None else Columns([0] * num, [0.0] * num, {})
            if num:
                decoded = self._decoded(columns, answers)
            for row in range(num, len(places)):
                if places[row] not in found:
                    found[places[row]] = columns.result(row)
        rows = [found[place] for place in range(num, len(batch.decodes) + len(batch.rows))]
        heads_found = _collected(*self._heads)
        heads = [heads_found[place] for place in range(len(batch.heads))]
        if num < len(batch.decodes):  # decode rows ran as the others do
            return StepResult.of_all_rows(batch, rows, heads, self._shifts)
        return StepResult(decoded, tuple(rows), heads, self._shifts)

    def _decoded(self, columns: Columns, answers: DecodeAnswers | None) -> DecodeResult:
        num = self._num_decodes
        errors = {row: error for row, error in columns.errors.items() if row < num}
        result = DecodeResult(columns.ids[:num], columns.logprobs[:num], errors)
        if answers is not None:
            result = answers.result(self._batch.decodes, columns.ids[:num], columns.logprobs[:num], errors)
        if self.tell is not None:
            self.tell(result.token_ids)
        return result


def _collected(known: Mapping[int, RowResult], parts: Sequence[Part]) -> dict[int, RowResult]:
    found = dict(known)
    for pending, places in parts:
        found.update(zip(places, pending.results(), strict=True))
    return found
