"""A batch under way: what is known of its rows already, and what the device is still writing. Never launches anything.

Made by the runner, read on the thread that tells control, and by the runner where a row of the next batch has to know.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from loopwright.core.batch import NO_DECODE_RESULT, Batch, DecodeResult, RowResult, Sampled, StepResult
from loopwright.core.errors import ErrorInfo
from loopwright.engine.sampler import not_finite


class Reading:
    """Drawn tokens on their way to the host: outputs [3, num_rows] as in DecodeBuffers."""

    def __init__(self, outputs: Tensor) -> None:
        self._ready: torch.cuda.Event | None = None
        if not outputs.is_cuda:
            self._host = outputs.clone()
            return
        self._host = torch.empty(outputs.shape, dtype=outputs.dtype, pin_memory=True)
        self._host.copy_(outputs, non_blocking=True)
        self._ready = torch.cuda.Event()
        self._ready.record()

    def columns(self) -> tuple[list[int], list[float], dict[int, ErrorInfo]]:
        """Ids, log-probabilities, and errors by row. Waits for the device."""
        if self._ready is not None:
            self._ready.synchronize()
        numbers = self._host.numpy()
        errors: dict[int, ErrorInfo] = {}
        for row in np.flatnonzero(numbers[2]).tolist():
            error = not_finite().error
            assert error is not None
            errors[row] = error
        return numbers[0].tolist(), numbers[1].view(np.float32).tolist(), errors

    def results(self) -> list[RowResult]:
        """The same, row by row."""
        ids, logprobs, errors = self.columns()
        return [
            RowResult(error=errors[row]) if row in errors else RowResult((Sampled(ids[row], logprobs[row]),))
            for row in range(len(ids))
        ]


class Launched:
    """A batch under way. Any thread may ask it."""

    def __init__(
        self,
        batch: Batch,
        num_decodes: int,
        known: Mapping[int, RowResult],
        readings: Sequence[tuple[Reading, Sequence[int]]],
        heads: Sequence[RowResult],
        shifts: Sequence[RowResult],
    ) -> None:
        """The first `num_decodes` rows of the first reading are the batch's decode rows. Of all other rows, and of
        those of them that were asked more, `known` has the result, or a reading, by places among `all_rows`."""
        self.sampled: Tensor | None = None  # [2, rows]: ids and failures on the device
        self.tell: Callable[[Sequence[int]], None] | None = None  # is told the decode rows' ids
        self._batch, self._num_decodes, self._known, self._readings = batch, num_decodes, known, readings
        self._heads, self._shifts = heads, shifts
        self._lock = Lock()
        self._result: StepResult | None = None

    def result(self) -> StepResult:
        """Waits for the device."""
        with self._lock:
            if self._result is None:
                self._result = self._read()
            return self._result

    def row_result(self, place: int) -> RowResult:
        """Of one of the batch's `all_rows`; nothing for a row that it has not."""
        result = self.result()
        decodes = result.decodes
        num_decodes = len(decodes.token_ids)
        if place >= num_decodes:
            return result.rows[place - num_decodes] if place - num_decodes < len(result.rows) else RowResult()
        if place in decodes.errors:
            return RowResult(error=decodes.errors[place])
        return RowResult((Sampled(decodes.token_ids[place], decodes.logprobs[place]),))

    def _read(self) -> StepResult:
        decoded, found = NO_DECODE_RESULT, dict(self._known)
        num = self._num_decodes
        for reading, places in self._readings:
            if num and places[0] == 0:
                decoded = self._decoded(reading)
                if len(places) == num:
                    continue
            for place, result in zip(places, reading.results(), strict=True):
                found.setdefault(place, result)
        results = [found[place] for place in range(num, len(self._batch.decodes) + len(self._batch.rows))]
        if num < len(self._batch.decodes):  # decode rows ran as the others do
            return StepResult.of_all_rows(self._batch, results, self._heads, self._shifts)
        return StepResult(decoded, tuple(results), self._heads, self._shifts)

    def _decoded(self, reading: Reading) -> DecodeResult:
        num = self._num_decodes
        ids, logprobs, errors = reading.columns()
        ids, logprobs = ids[:num], logprobs[:num]
        errors = {row: error for row, error in errors.items() if row < num}
        for row, result in self._known.items():
            if row >= num:
                continue
            if result.error is not None:
                errors[row] = result.error
            else:
                ids[row], logprobs[row] = result.sampled[-1].token_id, result.sampled[-1].logprob
        if self.tell is not None:
            self.tell(ids)
        return DecodeResult(ids, logprobs, errors)
