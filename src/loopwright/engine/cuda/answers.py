"""Answers the questions of many rows of logits together, as engine.sampler does one by one. Never waits for the device.

What is launched gives each row its token on the device, where the next step finds it; what the host wants to know of it
is on its way, and read later. Equal to engine.sampler up to the rounding of sums.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.batch import RowResult, Sampled
from loopwright.core.errors import ErrorInfo
from loopwright.core.results import TopLogprobs
from loopwright.core.samplers import SamplerState, TracedSampler
from loopwright.engine.cuda.adjusting import adjusted
from loopwright.engine.cuda.asks import Asks, DrawnAsks, Now, Some, TracedAsks
from loopwright.engine.cuda.distributions import ask_distributions, ask_tops
from loopwright.engine.cuda.processing import kept_weights
from loopwright.engine.cuda.sampling import Draw, SamplingColumns, Top, draw_rows, normalizers
from loopwright.engine.cuda.traced_graphs import TracedSamplers, Whole
from loopwright.engine.cuda.traced_rows import LeftStates, run_group
from loopwright.engine.draws import draw_each
from loopwright.engine.sampler import Question, not_finite
from loopwright.engine.transfer import HostCopies, Landing, to_device

_NO_TOPS: TopLogprobs = ()


@dataclass(frozen=True, slots=True, eq=False)
class Fed:
    """What the step before gave rows of this one, [num_rows] each: the token that a row had from it, or -1 (int64), and
    whether its source failed."""

    token_ids: Tensor
    has_failed: Tensor

    def of(self, rows: Tensor) -> "Fed":
        """The same of some rows."""
        return Fed(self.token_ids[rows], self.has_failed[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """With what rows are answered: a device's own, from step to step."""

    columns: SamplingColumns
    draw: Draw
    top: Top
    samplers: TracedSamplers

    def asks(self, questions: Sequence[Question]) -> Asks:
        return Asks.of(questions, self.columns, self.columns.device)


class Answered(NamedTuple):
    """What came of rows that were asked, as columns. A token of a row that failed, or that does not sample, is 0."""

    token_ids: list[int]
    logprobs: list[float]
    errors: Mapping[int, ErrorInfo]  # by row
    tops: Mapping[int, tuple[Sequence[TopLogprobs], int]]  # by row: where its likeliest tokens are


@dataclass(slots=True, eq=False)
class _Chosen:
    """What some rows have chosen, in their order; `told` gives token, log-probability and processed one on the host."""

    rows: Some
    token_ids: Tensor
    has_failed: Tensor | None  # int32, beside rows whose logits are not finite
    told: Callable[[], tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]]
    errors: Callable[[], Mapping[int, ErrorInfo]] = dict  # by place among the rows


class Answers:
    """What was launched for some questions. `results` and `read` may be asked on any thread."""

    def __init__(self, logits: Tensor, asks: Asks, ways: Ways, now: Now, whole: Whole | None = None) -> None:
        """For float32 logits [num_questions, vocab_size]; `whole` if they are all of a decode step, and
        `asks.is_of_one_sampler`."""
        self._asks, self._copies, self._logits, self._ways, self._now = asks, HostCopies(), logits, ways, now
        self._own: Tensor | None = None
        self.left: dict[TracedSampler, LeftStates] = {}
        """What samplers leave to the next tokens of their rows."""
        self._tops: list[tuple[Some, Callable[[], Sequence[TopLogprobs]]]] = []
        self._whole = whole
        is_lost = now.has_failed
        self.has_failed = ~logits.sum(-1).isfinite() if is_lost is None else is_lost  # a sum is as finite as its terms
        """[num_questions], on the device; rows whose samplers failed are not among them."""
        self._have_failed: Callable[[], NDArray[Any]] | None = None
        self._chosen = self._choose()
        self.is_put = whole is not None and self._have_failed is not None
        """Whether what is sampled is where the next step looks already."""
        if self._have_failed is None:
            self._have_failed = self._copies.take(self.has_failed)
        self.sampled = whole.outputs[::2] if self.is_put and whole is not None else self._told(self.has_failed)
        """Int32 [2, num_questions], on the device: ids, and 1 for a row that failed or has no token."""
        if asks.tops is not None:
            rows, sizes = asks.tops.rows, asks.tops.sizes
            raw = ask_tops(rows.in_(logits), rows.in_(self._normalizers()), sizes, ways.top, self._copies)
            self._tops.append((rows, raw))
        asked = asks.distributions
        own = self._normalizers() if asked else logits
        self._distributions = ask_distributions(logits, own, asked, ways.top, self._copies)
        self._copies.sent()
        del self._logits, self._own, self._now, self._whole  # read by what was launched alone

    def read(self) -> Answered:
        """Waits for the device."""
        self._copies.wait()
        num = len(self._asks.questions)
        token_ids, logprobs = np.zeros(num, np.int64), np.zeros(num)
        errors: dict[int, ErrorInfo] = {}
        for one in self._chosen:
            places = one.rows.places
            mine, raw, processed = one.told()
            token_ids[places] = mine
            logprobs[places] = np.where(self._asks.is_processed[places], np.minimum(processed, 0.0), raw)
            errors.update({int(places[place]): error for place, error in one.errors().items()})
        assert self._have_failed is not None
        for row in np.flatnonzero(self._have_failed()).tolist():
            error = not_finite().error
            assert error is not None
            errors[row] = error
        tops: dict[int, tuple[Sequence[TopLogprobs], int]] = {}
        for rows, read in self._tops:
            found = read()
            tops.update({row: (found, place) for place, row in enumerate(rows.places.tolist())})
        return Answered(token_ids.tolist(), logprobs.tolist(), errors, tops)

    def state_of(self, row: int) -> SamplerState | None:
        """What a row's sampler leaves to the next token, if it has one."""
        sampler = self._asks.questions[row].sampler
        if sampler is None:
            return None
        left = self.left[sampler.graph]
        found: SamplerState = left[int(np.searchsorted(left.asks.rows.places, row))]
        return found

    def results(self) -> list[RowResult]:
        """One for each question. Waits for the device."""
        found = self.read()
        distributions, results = iter(self._distributions()), []
        for row, question in enumerate(self._asks.questions):
            mine = tuple([next(distributions) for _ in question.distributions])
            if (error := found.errors.get(row)) is not None:
                results.append(RowResult(error=error))
                continue
            sampled: tuple[Sampled, ...] = ()
            if question.sampling is not None:
                tops, place = found.tops.get(row, ((_NO_TOPS,), 0))
                sampled = (Sampled(found.token_ids[row], found.logprobs[row], tops[place]),)
            results.append(RowResult(sampled, mine, None, self.state_of(row)))
        return results

    def _normalizers(self) -> Tensor:
        if self._own is None:
            self._own = normalizers(self._logits)
        return self._own

    def _told(self, has_failed: Tensor) -> Tensor:
        """What of the chosen tokens the next step needs."""
        if len(self._chosen) == 1 and len(self._chosen[0].rows) == len(self._logits):
            one = self._chosen[0]
            failed = has_failed.int() if one.has_failed is None else has_failed | one.has_failed
            return torch.stack([one.token_ids.int(), failed])
        sampled = torch.ones(2, len(self._logits), dtype=torch.int32, device=self._logits.device)
        for one in self._chosen:
            failed = one.rows.in_(has_failed)
            failed = failed.int() if one.has_failed is None else failed | one.has_failed
            sampled[:, one.rows.index] = torch.stack([one.token_ids.int(), failed])
        return sampled

    # Tokens

    def _choose(self) -> list[_Chosen]:
        """Has rows choose their tokens, each in the way that it needs."""
        asks, now = self._asks, self._now
        scores = self._logits
        if asks.is_adjusted:
            scores = adjusted(scores, asks.questions if now.written is None else now.written(), now.fed)
        chosen = [self._run(one, scores) for one in asks.traced]
        if asks.common is not None:
            chosen.append(self._draw(asks.common, scores))
        if asks.rare is not None:
            rows = asks.rare.rows
            chosen.append(self._filter(rows.in_(scores).double(), asks.rare, rows.in_(self._logits)))
        return chosen

    def _run(self, asks: TracedAsks, scores: Tensor) -> _Chosen:
        rows, logits = asks.rows, asks.rows.in_(self._logits)
        own = logits if scores is self._logits else rows.in_(scores)
        group = run_group(asks, self._asks.questions, logits, own, self._ways.samplers, self._now, self._copies,
                          self._whole)  # fmt: skip
        self.left[asks.graph] = group.states
        self._have_failed = group.lost
        if group.scores is not None:
            found = self._filter(group.scores, asks.filtered, logits)
            found.has_failed, found.errors = group.has_failed, group.errors
            return found
        assert group.token_ids is not None

        def told() -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
            token_ids, raw = group.told()
            return token_ids, raw, np.zeros(len(raw))

        return _Chosen(rows, group.token_ids, group.has_failed, told, group.errors)

    def _draw(self, asks: DrawnAsks, scores: Tensor) -> _Chosen:
        rows, positions = asks.rows, self._now.positions[asks.rows.places]
        outputs = draw_rows(self._ways.draw, rows.in_(self._logits), rows.in_(scores), asks.samplings, positions)
        landed = self._copies.take(outputs)

        def told() -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
            numbers = landed()
            logprobs = numbers[1].view(np.float32).astype(np.float64)  # of the kind that the row wants
            return numbers[0].astype(np.int64), logprobs, logprobs

        return _Chosen(rows, outputs[0], None, told)

    def _filter(self, scores: Tensor, asks: DrawnAsks, logits: Tensor) -> _Chosen:
        """Rows that need the whole vocabulary in order."""
        weights = kept_weights(scores, asks.samplings)
        numbers = asks.samplings.numbers(self._now.positions[asks.rows.places])
        token_ids, totals = draw_each(weights, to_device(numbers, scores.device)), weights.sum(-1)
        raw = logits.gather(1, token_ids[:, None])[:, 0].double() - asks.rows.in_(self._normalizers()).double()
        processed = (weights.gather(1, token_ids[:, None])[:, 0] / totals).log()
        if asks.tops is not None:
            mine = asks.tops.rows
            read = ask_tops(
                mine.in_(weights).log(), mine.in_(totals).log(), asks.tops.sizes, self._ways.top, self._copies
            )
            self._tops.append((Some(asks.rows.places[mine.places], slice(0)), read))
        return _Chosen(asks.rows, token_ids, None, _told(self._copies, token_ids, raw.clamp(max=0.0), processed))


def answers_of(logits: Tensor, questions: Sequence[Question], ways: Ways, fed: Fed | None = None) -> Answers:
    """Of questions that come once. `fed` is of their rows."""
    has_failed = None
    if fed is not None:
        has_failed = fed.has_failed | ~logits.sum(-1).isfinite()
    positions = np.array([one.position for one in questions], np.int64)
    now = Now(positions, None if fed is None else fed.token_ids, has_failed)
    return Answers(logits, ways.asks(questions), ways, now)


def _told(
    copies: HostCopies, token_ids: Tensor, raw: Tensor, processed: Tensor
) -> Callable[[], tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]]:
    landed: Landing = copies.take(torch.stack([token_ids.double(), raw, processed]))

    def told() -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        numbers = landed()
        return numbers[0].astype(np.int64), numbers[1], numbers[2]

    return told
