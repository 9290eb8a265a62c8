"""Runs batches on a device: rows of one token as decode steps, everything else as the model runner does.

Never starts a thread. `launch` returns when the work is under way, and what came of it is read later; a row that asks
for more than a plain token (distributions, grammars, samplers of programs) is answered before `launch` returns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from loopwright.core.batch import (
    NO_DECODE_RESULT,
    NO_DECODES,
    Batch,
    DecodeResult,
    DecodeRows,
    ForwardRow,
    RowResult,
    Sampled,
    StepResult,
)
from loopwright.core.calls import Sampling
from loopwright.core.errors import ErrorInfo, LoopwrightError
from loopwright.engine.carried import fed
from loopwright.engine.cuda.parts import DeviceParts
from loopwright.engine.cuda.sampling import RowSamplings, draw_rows, is_special
from loopwright.engine.cuda.steps import DecodeSteps, Report
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.model_runner import Asked, ModelRunner, isolate
from loopwright.engine.row_checks import check_head, check_row, check_step
from loopwright.engine.sampler import answer, not_finite


class DeviceRunner(ModelRunner):
    """A model with its memory on a device. `run` and `launch` must be called under torch.inference_mode."""

    def __init__(self, model: LoadedModel, parts: DeviceParts, *, num_slots: int, max_rows: int) -> None:
        """`max_rows` is how many rows of one token a step has at most."""
        super().__init__(model, num_blocks=parts.cache.num_blocks, num_slots=num_slots, device=parts.decoder)
        self._can_step = not any(parts.cache.windows)
        max_blocks = min(-(-model.config.max_context // self.shape.block_size), self.shape.num_blocks)
        self._steps = DecodeSteps(
            parts.decoder, parts.attention, parts.operations, max_rows=max_rows, max_blocks=max_blocks
        )
        self._operations = parts.operations
        self._before: Launched | None = None  # the batch before, unless it failed
        self._samplings: tuple[Sequence[Sampling], RowSamplings] | None = None  # of the decode rows that ran last

    def capture(self, report: Report) -> None:
        """Makes the graphs; once, before the first step."""
        if self._can_step:
            self._steps.capture(report)

    def run(self, batch: Batch) -> StepResult:
        return self.launch(batch).result()

    def launch(self, batch: Batch) -> "Launched":
        """As `run`, but what the device still does is waited for by `Launched.result`."""
        before, self._before = self._before, None
        check_step(batch, self.shape)
        self._cache.copy(batch.copies)
        shifts = tuple(self._shift(shift) for shift in batch.shifts)
        self._embed(batch.embeds)
        decodes, rows = batch.decodes, batch.rows
        if not self._can_step or len(decodes) > self._steps.max_rows:
            decodes, rows = NO_DECODES, batch.all_rows
        single = [place for place, row in enumerate(rows) if self._can_step and self._is_single(row)]
        single = single[: self._steps.max_rows - len(decodes)]
        step = self._launch_step(decodes, [rows[place] for place in single], before)
        chosen = set(single)
        others = [place for place in range(len(rows)) if place not in chosen]
        results: list[RowResult] = [RowResult()] * len(rows)
        fed_rows = [_fed(rows[place], before) for place in others]
        answered = isolate(fed_rows, lambda row: check_row(row, self.shape), self._run_rows)
        for place, result in zip(others, answered, strict=True):
            results[place] = result
        heads = isolate(batch.heads, lambda head: check_head(head, self.shape), self._run_heads)
        launched = Launched(batch, step, single, results, heads, shifts)
        launched.sampled = self._sampled(launched, others)
        self._before = launched
        return launched

    def _sampled(self, launched: "Launched", others: Sequence[int]) -> Tensor:
        """What the next batch's rows may have as their source: [2, rows], ids and failures, on the device."""
        step, num_decodes = launched.step, launched.num_decodes
        outputs = self._steps.buffers.outputs[::2]
        if step is not None and not others:
            return outputs[:, : step.num_rows]
        known = np.zeros((2, num_decodes + len(launched.results)), np.int32)
        for place in others:
            result = launched.results[place]
            token = result.token_id
            known[:, num_decodes + place] = (0, 1) if token is None or result.error is not None else (token, 0)
        sampled = self._steps.to_device(known)
        if step is not None:
            places = [*range(num_decodes), *(num_decodes + place for place in launched.single)]
            sampled[:, self._numbers(places)] = outputs[:, : step.num_rows]
        return sampled

    def _is_single(self, row: ForwardRow) -> bool:
        if len(row.token_ids) != 1 or row.mask is not None or row.output_slots or row.input_slots:
            return False
        try:
            check_row(row, self.shape)
        except LoopwrightError:
            return False  # the model runner says what is wrong with it
        return True

    def _launch_step(
        self, decodes: DecodeRows, singles: Sequence[ForwardRow], before: "Launched | None"
    ) -> "_Step | None":
        num_rows = len(decodes) + len(singles)
        if not num_rows:
            return None
        tables = self._steps.tables
        try:
            logits = self._steps.forward(decodes, singles, None if before is None else before.sampled)
            samplings = self._columns(decodes, singles)
            is_open = self._sample(logits, samplings)
            places = sorted({*samplings.special, *is_open})
            asked = self._answer_some(decodes, singles, places, logits, before)
            self._note(asked)
        except BaseException:
            tables.forget()
            raise
        tables.sampled(None)
        tell = None if singles else tables.sampled
        return _Step(len(decodes), num_rows, asked, _to_host(self._steps.buffers.outputs[:, :num_rows]), tell)

    def _note(self, asked: dict[int, RowResult]) -> None:
        """Puts what was answered here where the device's own tokens are."""
        if not asked:
            return
        found = [(0, 1) if one.error is not None else (one.token_id or 0, 0) for one in asked.values()]
        sent = self._steps.to_device(np.array([list(asked), *zip(*found, strict=True)], np.int64))
        rows, numbers = sent[0], sent[1:].int()
        self._steps.buffers.outputs[::2].index_copy_(1, rows, numbers)
        self._steps.buffers.inputs[::4].index_copy_(1, rows, numbers)

    def _columns(self, decodes: DecodeRows, singles: Sequence[ForwardRow]) -> RowSamplings:
        """The samplings of all rows; a row of the others that asks for more, or for nothing, is special."""
        if not singles:
            if self._samplings is None or self._samplings[0] is not decodes.samplings:
                self._samplings = (decodes.samplings, RowSamplings.of(decodes.samplings, self._device))
            return self._samplings[1]
        own = [_GREEDY if _asks_more(row) else row.sampling or _GREEDY for row in singles]
        found = RowSamplings.of([*decodes.samplings, *own], self._device)
        more = [len(decodes) + place for place, row in enumerate(singles) if _asks_more(row)]
        return found.with_special(more)

    def _sample(self, logits: Tensor, samplings: RowSamplings) -> list[int]:
        """Writes what is drawn to the outputs, which are the next step's inputs. Which rows it could not do."""
        buffers, num_rows = self._steps.buffers, len(logits)
        if samplings.is_greedy:
            self._operations.end_greedy(buffers, num_rows, logits)
            return []
        drawn = draw_rows(logits, samplings, self._steps.tables.positions[:num_rows])
        buffers.outputs[0, :num_rows] = drawn.ids.int()
        buffers.outputs[1, :num_rows] = drawn.logprobs.view(torch.int32)
        buffers.outputs[2, :num_rows] = (~logits.sum(-1).isfinite()).int() | buffers.failed[:num_rows]
        self._operations.advance(buffers, num_rows)
        return drawn.is_open.nonzero()[:, 0].tolist() if samplings.may_overflow else []

    def _answer_some(
        self,
        decodes: DecodeRows,
        singles: Sequence[ForwardRow],
        places: Sequence[int],
        logits: Tensor,
        before: "Launched | None",
    ) -> dict[int, RowResult]:
        """The rows at `places` as engine.sampler answers them, by place."""
        if not places:
            return {}
        decoding = decodes.rows() if places[0] < len(decodes) else [None] * len(decodes)
        rows = [*decoding, *singles]
        chosen = [_fed(row, before) for place in places if (row := rows[place]) is not None]

        def answer_all(rows: Sequence[tuple[int, ForwardRow]]) -> list[RowResult]:
            asked = [(place, Asked.of_row(row, 1)) for place, row in rows]
            questions = [(place, question) for place, one in asked for _, question in one.questions]
            found = iter(answer(logits[[place for place, _ in questions]], [one for _, one in questions]))
            return [one.assemble(found) for _, one in asked]

        found = isolate(list(zip(places, chosen, strict=True)), lambda one: check_row(one[1], self.shape), answer_all)
        return dict(zip(places, found, strict=True))


def _fed(row: ForwardRow, before: "Launched | None") -> ForwardRow:
    """A row with the token that its source sampled, for which this waits."""
    if row.source < 0:
        return row
    return fed(row, RowResult() if before is None else before.row_result(row.source))


_GREEDY = Sampling()


def _asks_more(row: ForwardRow) -> bool:
    return bool(
        row.sampling is None or row.distributions or row.sampler is not None or row.allowed_bits is not None
        or is_special(row.sampling)
    )  # fmt: skip


@dataclass(slots=True, eq=False)
class _Step:
    """A decode step under way. `host` [3, num_rows] is written by the device until `ready`."""

    num_decodes: int
    num_rows: int
    asked: dict[int, RowResult]  # what is known of rows already
    outputs: "tuple[Tensor, torch.cuda.Event | None]"
    tell: Callable[[Sequence[int]], None] | None  # what the decode rows' next token ids are, if the device has them

    def results(self) -> tuple[DecodeResult, list[RowResult]]:
        """Of the decode rows, and of the others. Waits for the device."""
        host, ready = self.outputs
        if ready is not None:
            ready.synchronize()
        numbers = host.numpy()
        ids: list[int] = numbers[0].tolist()
        logprobs: list[float] = numbers[1].view(np.float32).tolist()
        errors = {row: failed for row in np.flatnonzero(numbers[2]).tolist() if (failed := not_finite().error)}
        for row, answered in self.asked.items():
            errors.pop(row, None)
            if answered.error is not None:
                errors[row] = answered.error
            elif answered.sampled:
                ids[row], logprobs[row] = answered.sampled[-1].token_id, answered.sampled[-1].logprob
        num = self.num_decodes
        decoded = DecodeResult(ids[:num], logprobs[:num], {row: one for row, one in errors.items() if row < num})
        if self.tell is not None:
            self.tell(decoded.token_ids)
        return decoded, [self._single(row, ids, logprobs, errors) for row in range(num, self.num_rows)]

    def _single(
        self, row: int, ids: Sequence[int], logprobs: Sequence[float], errors: dict[int, ErrorInfo]
    ) -> RowResult:
        if row in self.asked:
            return self.asked[row]
        if row in errors:
            return RowResult(error=errors[row])
        return RowResult((Sampled(ids[row], logprobs[row]),))


class Launched:
    """A batch under way. Any thread may ask it."""

    def __init__(
        self,
        batch: Batch,
        step: _Step | None,
        single: Sequence[int],
        results: list[RowResult],
        heads: Sequence[RowResult],
        shifts: Sequence[RowResult],
    ) -> None:
        """`single` says which of `results`, those of rows that are no decode rows, come from the step."""
        self.single, self.step, self.results = single, step, results
        self.num_decodes = len(batch.decodes) if len(results) == len(batch.rows) else 0
        self.sampled: Tensor | None = None  # [2, rows]: ids and failures on the device
        self._batch, self._heads, self._shifts = batch, heads, shifts
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
        num_decodes = len(result.decodes.token_ids)
        if place >= num_decodes:
            return result.rows[place - num_decodes] if place - num_decodes < len(result.rows) else RowResult()
        if place in result.decodes.errors:
            return RowResult(error=result.decodes.errors[place])
        return RowResult((Sampled(result.decodes.token_ids[place], result.decodes.logprobs[place]),))

    def _read(self) -> StepResult:
        decoded = NO_DECODE_RESULT
        if self.step is not None:
            decoded, singles = self.step.results()
            for place, result in zip(self.single, singles, strict=True):
                self.results[place] = result
        if self.num_decodes < len(self._batch.decodes):  # decode rows ran as the others do
            return StepResult.of_all_rows(self._batch, self.results, self._heads, self._shifts)
        return StepResult(decoded, tuple(self.results), self._heads, self._shifts)


def _to_host(outputs: Tensor) -> "tuple[Tensor, torch.cuda.Event | None]":
    if not outputs.is_cuda:
        return outputs.clone(), None
    host = torch.empty(outputs.shape, dtype=outputs.dtype, pin_memory=True)
    host.copy_(outputs, non_blocking=True)
    ready = torch.cuda.Event()
    ready.record()
    return host, ready
