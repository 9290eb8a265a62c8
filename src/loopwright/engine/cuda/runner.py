"""Runs batches on a device: rows of one token as decode steps, everything else as the model runner does.

Never starts a thread. `launch` returns when the work is under way, and what came of it is read later; a row that asks
for more than a plain token (distributions, grammars, samplers of programs) is answered before `launch` returns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from loopwright.core.batch import NO_DECODES, Batch, DecodeRows, ForwardRow, RowResult, StepResult
from loopwright.core.calls import Sampling
from loopwright.core.errors import LoopwrightError
from loopwright.engine.attention import AttentionRow
from loopwright.engine.carried import fed
from loopwright.engine.cuda.answers import answer_together
from loopwright.engine.cuda.launched import Launched, Reading
from loopwright.engine.cuda.parts import DeviceParts
from loopwright.engine.cuda.sampling import RowSamplings, draw_rows, is_special
from loopwright.engine.cuda.steps import Beside, DecodeSteps, Report
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.model_runner import Asked, ModelRunner, isolate
from loopwright.engine.row_checks import check_head, check_row, check_step
from loopwright.engine.sampler import Question

_GREEDY = Sampling()
_DRAWN = RowResult()  # stands for what the device draws, until it is read


class DeviceRunner(ModelRunner):
    """A model with its memory on a device. `run` and `launch` must be called under torch.inference_mode."""

    def __init__(self, model: LoadedModel, parts: DeviceParts, *, num_slots: int, max_rows: int) -> None:
        """`max_rows` is how many rows of one token a step has at most."""
        super().__init__(model, num_blocks=parts.cache.num_blocks, num_slots=num_slots, device=parts.decoder)
        self._can_step = not any(parts.cache.windows)
        max_blocks = min(-(-model.config.max_context // self.shape.block_size), self.shape.num_blocks)
        self._steps = DecodeSteps(parts.decoder, parts.operations, max_rows=max_rows, max_blocks=max_blocks)
        self._before: Launched | None = None  # the batch before, unless it failed
        self._samplings: tuple[Sequence[Sampling], RowSamplings] | None = None  # of the decode rows that ran last
        self._drawn: list[Tensor] = []  # outputs [3, rows] of the prompts of this batch
        self._decoder, self._forward = parts.decoder, self._forward_beside
        self._step: _Step | None = None  # waits for the pass of the prompts

    def capture(self, report: Report) -> None:
        """Makes the graphs; once, before the first step."""
        if self._can_step:
            self._steps.capture(report)

    def run(self, batch: Batch) -> StepResult:
        return self.launch(batch).result()

    def launch(self, batch: Batch) -> Launched:
        """As `run`, but what the device still does is waited for by `Launched.result`."""
        before, self._before = self._before, None
        check_step(batch, self.shape)
        self._cache.copy(batch.copies)
        shifts = tuple(self._shift(shift) for shift in batch.shifts)
        self._embed(batch.embeds)
        decodes, rows = batch.decodes, batch.rows
        if not self._can_step or len(decodes) > self._steps.max_rows:
            decodes, rows = NO_DECODES, batch.all_rows
        num_decodes = len(decodes)
        single = [num_decodes + place for place, row in enumerate(rows) if self._is_single(row)]
        single = single[: self._steps.max_rows - num_decodes]
        stepping = [*range(num_decodes), *single]
        known: dict[int, RowResult] = {}
        readings: list[tuple[Reading, Sequence[int]]] = []
        others = sorted(set(range(num_decodes, num_decodes + len(rows))).difference(single))
        step = _Step(decodes, [rows[place - num_decodes] for place in single], before) if stepping else None
        answered = self._launch_others([_fed(rows[place - num_decodes], before) for place in others], step)
        if step is not None:
            asked = self._launch_step(step)
            known |= {stepping[row]: result for row, result in asked.items()}
            readings.append((Reading(self._steps.buffers.outputs[:, : len(stepping)]), stepping))
        known |= {place: result for place, result in zip(others, answered, strict=True) if result is not _DRAWN}
        drawn = [place for place, result in zip(others, answered, strict=True) if result is _DRAWN]
        outputs = torch.cat(self._drawn, dim=1) if drawn else None
        if outputs is not None:
            readings.append((Reading(outputs), drawn))
        heads = isolate(batch.heads, lambda head: check_head(head, self.shape), self._run_heads)
        launched = Launched(batch, num_decodes, known, readings, heads, shifts)
        launched.sampled = self._sampled(num_decodes + len(rows), stepping, known, drawn, outputs)
        if stepping and not single and not known:
            launched.tell = self._steps.tables.sampled
        self._before = launched
        return launched

    def _sampled(
        self, num_rows: int, stepping: Sequence[int], known: dict[int, RowResult], drawn: Sequence[int],
        outputs: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """What the next batch's rows may have as their source: [2, rows], ids and failures, on the device."""
        stepped = self._steps.buffers.outputs[::2, : len(stepping)]
        if len(stepping) == num_rows:
            return stepped
        numbers = np.zeros((2, num_rows), np.int32)
        for place, result in known.items():
            numbers[:, place] = (0, 1) if result.token_id is None or result.error else (result.token_id, 0)
        sampled = self._steps.to_device(numbers)
        if stepping:
            sampled[:, self._numbers(stepping)] = stepped
        if outputs is not None:
            sampled[:, self._numbers(drawn)] = outputs[::2]
        return sampled

    def _is_single(self, row: ForwardRow) -> bool:
        """Whether the row can be one of a decode step."""
        if not self._can_step or len(row.token_ids) != 1 or row.mask is not None or row.output_slots or row.input_slots:
            return False
        try:
            check_row(row, self.shape)
        except LoopwrightError:
            return False  # the model runner says what is wrong with it
        return True

    def _launch_step(self, step: "_Step") -> dict[int, RowResult]:
        """What is known of rows already, by their place in the step. All else is in the outputs of the buffers."""
        tables, (decodes, singles, before) = self._steps.tables, (step.decodes, step.singles, step.before)
        try:
            samplings = self._columns(decodes, singles)
            logits = step.logits
            if logits is None:
                logits = self._steps.forward(decodes, singles, step.sampled, is_greedy=samplings.is_greedy)
            is_open = [] if samplings.is_greedy else self._steps.draw(logits, samplings)
            asked = self._answer_some(decodes, singles, sorted({*samplings.special, *is_open}), logits, before)
            self._note(asked)
        except BaseException:
            tables.forget()
            raise
        tables.sampled(None)
        return asked

    def _note(self, asked: dict[int, RowResult]) -> None:
        """Puts what was answered on the host where the device's own tokens are."""
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
        own = [row.sampling if _is_plain(row) else _GREEDY for row in singles]
        found = RowSamplings.of([*decodes.samplings, *(one or _GREEDY for one in own)], self._device)
        return found.with_special([len(decodes) + place for place, row in enumerate(singles) if not _is_plain(row)])

    def _answer_some(
        self, decodes: DecodeRows, singles: Sequence[ForwardRow], places: Sequence[int], logits: Tensor,
        before: Launched | None,
    ) -> dict[int, RowResult]:  # fmt: skip
        """The rows at `places` of the step as engine.sampler answers them, by place."""
        if not places:
            return {}
        decoding = decodes.rows() if places[0] < len(decodes) else [None] * len(decodes)
        rows = [*decoding, *singles]
        chosen = [(place, _fed(row, before)) for place in places if (row := rows[place]) is not None]

        def answer_all(rows: Sequence[tuple[int, ForwardRow]]) -> list[RowResult]:
            asked = [(place, Asked.of_row(row, 1)) for place, row in rows]
            questions = [(place, question) for place, one in asked for _, question in one.questions]
            wanted = logits[self._numbers([place for place, _ in questions])]
            found = iter(answer_together(wanted, [question for _, question in questions]))
            return [one.assemble(found) for _, one in asked]

        results = isolate(chosen, lambda one: check_row(one[1], self.shape), answer_all)
        return dict(zip(places, results, strict=True))

    def _launch_others(self, rows: Sequence[ForwardRow], step: "_Step | None") -> Sequence[RowResult]:
        """Rows that are not in a decode step: their results, or _DRAWN for those that are in `_drawn`, in order. They
        take the step along in their pass, if there is one for them."""
        self._drawn, self._step = [], step
        try:
            return isolate(rows, lambda row: check_row(row, self.shape), self._run_rows)
        except BaseException:
            self._steps.tables.forget()
            raise
        finally:
            self._step = None

    def _forward_beside(self, hidden: Tensor, positions: Tensor, rows: Sequence[AttentionRow]) -> Tensor:
        """The pass of the model runner, with the decode step in it, if one waits."""
        step, self._step = self._step, None
        if step is None:
            return self._decoder.forward(hidden, positions, rows)
        is_greedy = self._columns(step.decodes, step.singles).is_greedy
        step.logits, hidden = self._steps.forward_beside(
            step.decodes, step.singles, step.sampled, Beside(hidden, positions, rows), is_greedy=is_greedy
        )
        return hidden

    def _run_rows(self, rows: Sequence[ForwardRow]) -> list[RowResult]:
        hidden, ends = self._forward_rows(rows)
        results = [RowResult()] * len(rows)
        plain = [place for place, row in enumerate(rows) if _is_plain(row) and not row.num_drafts]
        samplings = [row.sampling or _GREEDY for row in (rows[place] for place in plain)]
        for start in range(0, len(plain), self._steps.max_rows):
            part = plain[start : start + self._steps.max_rows]
            logits = self._model.logits(self._model.normalize(hidden[self._numbers([ends[one] - 1 for one in part])]))
            columns = RowSamplings.of(samplings[start : start + len(part)], self._device)
            drawn = draw_rows(logits, columns, np.array([rows[one].sample_position for one in part]))
            closed = sorted(set(range(len(part))).difference(drawn.open_rows()))
            self._drawn.append(drawn.outputs(logits)[:, self._numbers(closed)])
            for place in closed:
                results[part[place]] = _DRAWN
        asking = [
            place for place, row in enumerate(rows)
            if results[place] is not _DRAWN and (row.sampling is not None or row.distributions)
        ]  # fmt: skip
        answered = self._answer(
            [Asked.of_row(rows[place], ends[place]) for place in asking],
            lambda index: self._model.normalize(hidden[self._numbers(index)]),
        )
        for place, result in zip(asking, answered, strict=True):
            results[place] = result
        return results

    def _answer_logits(self, logits: Tensor, questions: Sequence[Question]) -> list[RowResult]:
        return answer_together(logits, questions)

    def _numbers(self, numbers: Sequence[int]) -> Tensor:
        return self._steps.to_device(np.array(numbers, np.int64))


@dataclass(slots=True, eq=False)
class _Step:
    """A decode step of a batch."""

    decodes: DecodeRows
    singles: Sequence[ForwardRow]
    before: Launched | None
    logits: Tensor | None = None  # [rows, vocab_size], once the model has run

    @property
    def sampled(self) -> Tensor | None:
        return None if self.before is None else self.before.sampled


def _fed(row: ForwardRow, before: Launched | None) -> ForwardRow:
    """A row with the token that its source sampled, for which this waits."""
    if row.source < 0:
        return row
    return fed(row, RowResult() if before is None else before.row_result(row.source))


def _is_plain(row: ForwardRow) -> bool:
    """Whether all that the row asks for is a token that the device can draw."""
    return (
        row.sampling is not None
        and not row.distributions
        and row.sampler is None
        and row.allowed_bits is None
        and not is_special(row.sampling)
    )
