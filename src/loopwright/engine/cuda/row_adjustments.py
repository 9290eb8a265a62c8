"""Penalties, biases and allowed tokens of the rows that decode, kept on the device from one step to the next.

A row has a line of the tables for as long as each of its steps goes on where the one before ended; the device counts
what it chooses. The host sends a line when a row begins, or after a step that the row was not in. Used by the steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.batch import DecodeRows, ForwardRow
from loopwright.core.calls import Sampling
from loopwright.engine.cuda.sampling import RowSamplings
from loopwright.engine.sampler import MAX_LOGIT
from loopwright.engine.transfer import to_device

LINE_BYTES = 4 + 4
"""Of a line, for each token of the vocabulary."""


@dataclass(frozen=True, slots=True, eq=False)
class AdjustmentTables:
    """On the device, for up to `max_rows` rows."""

    lines: Tensor  # int32 [max_rows]: which line of the others is a row's, or -1
    counts: Tensor  # int32 [max_rows, vocab_size]: twice how often the token was written, and 1 more if it was seen
    biases: Tensor  # float32 [max_rows, vocab_size]: -inf for what is not allowed
    penalties: Tensor  # float64 [max_rows, 3]: of repetition, presence and frequency

    @classmethod
    def make(cls, max_rows: int, vocab_size: int, device: torch.device) -> "AdjustmentTables":
        return cls(
            torch.full((max_rows,), -1, dtype=torch.int32, device=device),
            torch.zeros(max_rows, vocab_size, dtype=torch.int32, device=device),
            torch.zeros(max_rows, vocab_size, dtype=torch.float32, device=device),
            torch.ones(max_rows, 3, dtype=torch.float64, device=device),
        )


def adjusted_by(logits: Tensor, tables: AdjustmentTables) -> Tensor:
    """As `Operations.adjust`, by torch."""
    lines = tables.lines[: len(logits)].long()
    own = lines.clamp(min=0)
    noted, penalties = tables.counts[own], tables.penalties[own]
    repetition, presence, frequency = penalties[:, 0:1], penalties[:, 1:2], penalties[:, 2:3]
    wide, counts = logits.double(), noted >> 1  # in float32 a penalty can be zero
    penalized = torch.where(wide < 0, wide * repetition, wide / repetition).clamp(-MAX_LOGIT, MAX_LOGIT).float()
    scores = torch.where(noted > 0, penalized, logits)
    scores = torch.where(counts > 0, scores - (presence + frequency * counts).float(), scores) + tables.biases[own]
    return torch.where((lines < 0)[:, None], logits, scores)


def counted(tables: AdjustmentTables, token_ids: Tensor) -> None:
    """As `Operations.note`, by torch."""
    lines = tables.lines[: len(token_ids)].long()
    at = lines.clamp(min=0) * tables.counts.shape[1] + token_ids.long()
    tables.counts.view(-1).index_add_(0, at, (2 * (lines >= 0)).int())


@dataclass(slots=True, eq=False)
class _Line:
    """Who has a line: how its row is sampled, and how many tokens it has written before the step that ran last, that
    step's input among them."""

    number: int
    sampling: Sampling
    num_written: int


@dataclass(frozen=True, slots=True, eq=False)
class SteppingRows:
    """The rows of a step. `places` are those of the rows in their batch; `goes_on` says that they are those of the step
    before, whose tokens are the inputs."""

    decodes: DecodeRows
    singles: Sequence[ForwardRow]
    places: Sequence[int]
    goes_on: bool

    def sampling(self, row: int) -> Sampling:
        num = len(self.decodes)
        sampling = self.decodes.samplings[row] if row < num else self.singles[row - num].sampling
        assert sampling is not None
        return sampling

    def written(self, row: int) -> tuple[Sequence[int], int]:
        """What a row has written as far as the host knows, and the place of the row that sampled its input, or -1:
        then the input is the last that was written."""
        decodes, num = self.decodes, len(self.decodes)
        if row >= num:
            single = self.singles[row - num]
            return single.generated, single.source
        generated, source = decodes.generated[row], decodes.sources[row] if decodes.sources else -1
        if source < 0 or not generated:
            return generated, source
        return generated[: decodes.num_generated[row] + decodes.num_steps], source


class RowAdjustments:
    """The tables, and who has which line. Tables are made when they are first needed, or when `tables` is asked for."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self._max_rows, self._vocab_size, self._device = max_rows, vocab_size, device
        self._tables: AdjustmentTables | None = None
        self._lines: dict[int, _Line] = {}  # of the rows of the batch `_number`, by their places
        self._number = -1
        self._placed: tuple[RowSamplings, int] | None = None  # whose lines the device has, and in how large a batch

    @property
    def tables(self) -> AdjustmentTables:
        if self._tables is None:
            self._tables = AdjustmentTables.make(self._max_rows, self._vocab_size, self._device)
        return self._tables

    def forget(self) -> None:
        """No row goes on."""
        self._lines, self._placed = {}, None

    def place(
        self, rows: SteppingRows, samplings: RowSamplings, inputs: Tensor, size: int, number: int
    ) -> AdjustmentTables:
        """Has the tables ready for the rows of batch `number`, in a step of `size`; `inputs` int32 are the tokens that
        the step began with."""
        if rows.goes_on and self._placed == (samplings, size):
            for one in self._lines.values():
                one.num_written += 1
            self._number = number
            return self.tables
        before = self._lines if rows.goes_on or number == self._number + 1 else {}
        self._lines, new = {}, []
        for row in samplings.adjusted:
            written, source = rows.written(row)
            place, num_written = rows.places[row], len(written) + (source >= 0)
            line = before.pop(place if rows.goes_on else source, None)
            if line is not None and self._goes_on(line, rows.sampling(row), num_written):
                line.num_written = num_written
                self._lines[place] = line
            else:
                new.append((row, written, source))
        self._begin(new, rows, inputs)
        lines = np.full(size, -1, np.int32)
        for row in samplings.adjusted:
            lines[row] = self._lines[rows.places[row]].number
        self.tables.lines[:size] = to_device(lines, self._device)
        self._number, self._placed = number, (samplings, size)
        return self.tables

    def correct(self, rows: Tensor | slice, were: Tensor, are: Tensor) -> None:
        """Of `rows` int64 another token counts than was noted: int32 [step's rows], and of the rows alone."""
        if not self._lines:
            return
        lines = self.tables.lines[rows].long()
        start, by = lines.clamp(min=0) * self._vocab_size, (2 * (lines >= 0)).int()
        self.tables.counts.view(-1).index_add_(0, torch.cat([start + were[rows], start + are]), torch.cat([-by, by]))

    def check_integrity(self) -> None:
        """No two rows share a line."""
        numbers = [one.number for one in self._lines.values()]
        assert len(set(numbers)) == len(numbers), numbers
        assert all(0 <= one < self._max_rows for one in numbers), numbers

    @staticmethod
    def _goes_on(line: _Line, sampling: Sampling, num_written: int) -> bool:
        return line.sampling is sampling and (not sampling.has_penalties or num_written == line.num_written + 1)

    def _begin(self, new: Sequence[tuple[int, Sequence[int], int]], rows: SteppingRows, inputs: Tensor) -> None:
        """Sends lines of rows: which, what each has written, and its source."""
        if not new:
            return
        taken = {one.number for one in self._lines.values()}
        free = (number for number in range(self._max_rows) if number not in taken)
        begun = []
        for (row, written, source), number in zip(new, free, strict=False):
            line = _Line(number, rows.sampling(row), len(written) + (source >= 0))
            self._lines[rows.places[row]] = line
            begun.append((line, written))
        tables, index = self.tables, self._sent([line.number for line, _ in begun])
        tables.penalties[index] = to_device(_numbers([line.sampling for line, _ in begun]), self._device)
        self._send_counts(tables, index, begun)
        self._send_biases(tables, [line for line, _ in begun])
        fed = [(line.number, row) for (line, _), (row, _, source) in zip(begun, new, strict=True) if source >= 0]
        if fed:
            lines, own = (self._sent(one) for one in zip(*fed, strict=True))
            at = lines * self._vocab_size + inputs[own].long()
            tables.counts.view(-1).index_add_(0, at, torch.full_like(at, 2, dtype=torch.int32))

    def _send_counts(
        self, tables: AdjustmentTables, index: Tensor, begun: Sequence[tuple[_Line, Sequence[int]]]
    ) -> None:
        tables.counts.index_fill_(0, index, 0)
        at, values = [], []
        for line, written in begun:
            start, sampling = line.number * self._vocab_size, line.sampling
            if not sampling.has_penalties:
                continue
            mine = np.fromiter(chain(sampling.generated, written), np.int64)
            seen = np.unique(np.fromiter(sampling.seen, np.int64))
            at += [start + mine, start + seen]
            values += [np.full(len(mine), 2, np.int32), np.ones(len(seen), np.int32)]
        if at:
            places, numbers = to_device(np.concatenate(at), self._device), np.concatenate(values)
            tables.counts.view(-1).index_add_(0, places, to_device(numbers, self._device))

    def _send_biases(self, tables: AdjustmentTables, lines: Sequence[_Line]) -> None:
        flat = tables.biases.view(-1)
        listing = [one for one in lines if one.sampling.allowed is not None]
        tables.biases.index_fill_(0, self._sent([one.number for one in lines]), 0.0)
        if listing:
            tables.biases.index_fill_(0, self._sent([one.number for one in listing]), -torch.inf)
            allowed = [_kept(one.sampling.allowed or (), self._vocab_size) for one in listing]
            flat.index_fill_(0, self._places(listing, allowed), 0.0)
        biased = [one for one in lines if one.sampling.logit_bias]
        if biased:
            values = np.array([one for line in biased for one in line.sampling.logit_bias.values()], np.float32)
            at = self._places(biased, [list(one.sampling.logit_bias) for one in biased])
            flat.index_add_(0, at, to_device(values, self._device))

    def _places(self, lines: Sequence[_Line], token_ids: Sequence[Sequence[int]]) -> Tensor:
        """Of tokens of lines, in a table as one vector."""
        flat = [line.number * self._vocab_size + one for line, own in zip(lines, token_ids, strict=True) for one in own]
        return self._sent(flat)

    def _sent(self, numbers: Sequence[int]) -> Tensor:
        return to_device(np.array(numbers, np.int64), self._device)


def _numbers(samplings: Sequence[Sampling]) -> NDArray[np.float64]:
    return np.array([[one.repetition_penalty, one.presence_penalty, one.frequency_penalty] for one in samplings])


def _kept(allowed: Sequence[int], vocab_size: int) -> list[int]:
    return [one for one in set(allowed) if one < vocab_size]
