"""Answers the questions of many rows of logits together, as engine.sampler does one by one. Never waits for the device.

What is launched gives each row its token on the device, where the next step finds it; what the host wants to know of it
is on its way, and read later. Equal to engine.sampler up to the rounding of sums.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from loopwright.core.batch import RowResult, Sampled
from loopwright.core.calls import Sampling
from loopwright.core.errors import ErrorInfo
from loopwright.core.results import Distribution, TopLogprobs
from loopwright.core.samplers import SamplerState
from loopwright.engine.cuda.adjusting import adjusted
from loopwright.engine.cuda.distributions import Asked, ask_distributions, ask_tops
from loopwright.engine.cuda.processing import kept_weights
from loopwright.engine.cuda.sampling import Draw, SamplingColumns, Top, draw_rows, normalizers
from loopwright.engine.cuda.traced_graphs import TracedSamplers
from loopwright.engine.cuda.traced_rows import run_group
from loopwright.engine.draws import draw_each, uniforms
from loopwright.engine.sampler import Question, not_finite
from loopwright.engine.traced import TensorState, by_graph
from loopwright.engine.transfer import HostCopies, Landing, to_device


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


class Answers:
    """What was launched for some questions. `results` may be asked on any thread."""

    def __init__(
        self, logits: Tensor, questions: Sequence[Question], ways: Ways, fed: Fed | None = None
    ) -> None:  # fmt: skip
        """For float32 logits [num_questions, vocab_size]."""
        self._questions, self._copies = questions, HostCopies()
        own = normalizers(logits)
        has_failed = ~logits.sum(-1).isfinite()  # a sum is finite only if all of its terms are
        if fed is not None:
            has_failed = has_failed | fed.has_failed
        self.has_failed = has_failed
        """[num_questions], on the device; rows whose samplers failed are not among them."""
        self._have_failed = self._copies.take(has_failed)
        choosing = _Choosing(questions, ways, self._copies)
        self._chosen = choosing.choose(logits, None if fed is None else fed.token_ids)
        self._sampled = self._told(logits, own, has_failed)
        self._tops = self._ask_tops(logits, own, ways.top)
        asked = [Asked(row, one) for row, question in enumerate(questions) for one in question.distributions]
        self._distributions = ask_distributions(logits, own, asked, ways.top, self._copies)
        self._copies.sent()

    @property
    def sampled(self) -> Tensor:
        """Int32 [2, num_questions], on the device: ids, and 1 for a row that failed or has no token."""
        return self._sampled

    @property
    def states(self) -> Mapping[int, SamplerState]:
        """What samplers leave to the next token, by row."""
        return self._chosen.states

    def results(self) -> list[RowResult]:
        """One for each question. Waits for the device."""
        self._copies.wait()
        found = self._chosen.read()
        tops = {row: top for rows, read in self._tops for row, top in zip(rows, read(), strict=True)}
        distributions, have_failed = iter(self._distributions()), self._have_failed().tolist()
        results = []
        for row, question in enumerate(self._questions):
            mine: tuple[Distribution, ...] = tuple([next(distributions) for _ in question.distributions])
            if have_failed[row]:
                results.append(not_finite())
            elif (error := found.errors.get(row)) is not None:
                results.append(RowResult(error=error))
            else:
                sampled = found.sampled(row, question.sampling, tops.get(row, ()))
                results.append(RowResult(sampled, mine, None, self._chosen.states.get(row)))
        return results

    def _told(self, logits: Tensor, normalizers: Tensor, has_failed: Tensor) -> Tensor:
        """What of the chosen tokens the next step needs; the host gets their log-probabilities."""
        chosen = self._chosen
        sampled = torch.ones(2, len(logits), dtype=torch.int32, device=logits.device)
        if not chosen.rows:
            return sampled
        index = chosen.index
        raw = logits[index].gather(1, chosen.token_ids[:, None])[:, 0].double() - normalizers[index].double()
        chosen.land(self._copies, raw.clamp(max=0.0))
        sampled[0, index] = chosen.token_ids.int()
        sampled[1, index] = (has_failed[index] | chosen.has_failed).int()
        return sampled

    def _ask_tops(
        self, logits: Tensor, normalizers: Tensor, top: Top
    ) -> list[tuple[Sequence[int], Callable[[], list[TopLogprobs]]]]:
        """Raw ones, of the rows that want some, beside the processed ones."""
        wanted = {
            row: one.top_logprobs for row, question in enumerate(self._questions)
            if (one := question.sampling) is not None and one.top_logprobs and one.logprobs == "raw"
        }  # fmt: skip
        if not wanted:
            return self._chosen.tops
        index = to_device(np.array(list(wanted)), logits.device)
        raw = ask_tops(logits[index], normalizers[index], list(wanted.values()), top, self._copies)
        return [*self._chosen.tops, (list(wanted), raw)]


@dataclass(slots=True, eq=False)
class _Chosen:
    """What the rows that sample have chosen; `token_ids`, `has_failed` and `processed` are in the order of `rows`."""

    rows: Sequence[int]
    index: Tensor | slice  # of the rows
    token_ids: Tensor
    has_failed: Tensor
    processed: Tensor  # float64 log-probabilities
    states: dict[int, TensorState] = field(default_factory=dict)
    tops: list[tuple[Sequence[int], Callable[[], list[TopLogprobs]]]] = field(default_factory=list)
    errors: list[tuple[Sequence[int], Callable[[], list[ErrorInfo | None]]]] = field(default_factory=list)
    landed: Sequence[Landing] = ()

    def land(self, copies: HostCopies, raw: Tensor) -> None:
        """Copies what the host wants to know."""
        self.landed = [copies.take(one) for one in (self.token_ids, raw, self.processed)]

    def read(self) -> "_Read":
        """When the copies are there."""
        errors = {row: error for rows, read in self.errors for row, error in zip(rows, read(), strict=True) if error}
        columns = [one().tolist() for one in self.landed] or [[], [], []]
        return _Read({row: one for row, *one in zip(self.rows, *columns, strict=True)}, errors)


@dataclass(frozen=True, slots=True)
class _Read:
    chosen: Mapping[int, Sequence[float]]  # token, raw and processed log-probability, by row
    errors: Mapping[int, ErrorInfo]

    def sampled(self, row: int, sampling: Sampling | None, top: TopLogprobs) -> tuple[Sampled, ...]:
        if sampling is None:
            return ()
        token, raw, processed = self.chosen[row]
        return (Sampled(int(token), raw if sampling.logprobs == "raw" else min(0.0, processed), top),)


class _Choosing:
    """Has rows choose their tokens, each in the way that it needs."""

    def __init__(self, questions: Sequence[Question], ways: Ways, copies: HostCopies) -> None:
        self._questions, self._ways, self._copies = questions, ways, copies

    def choose(self, logits: Tensor, fed: Tensor | None) -> _Chosen:
        """Of all rows that sample."""
        rows = [row for row, one in enumerate(self._questions) if one.sampling is not None]
        device = logits.device
        index = slice(None) if len(rows) == len(self._questions) else to_device(np.array(rows, np.int64), device)
        num = len(rows)
        chosen = _Chosen(
            rows, index, torch.zeros(num, dtype=torch.int64, device=device),
            torch.zeros(num, dtype=torch.bool, device=device), torch.zeros(num, dtype=torch.float64, device=device),
        )  # fmt: skip
        if not rows:
            return chosen
        questions = [self._questions[row] for row in rows]
        scores = adjusted(logits[index], questions, None if fed is None else fed[index])
        traced = [place for place, one in enumerate(questions) if one.sampler is not None]
        runs = [one for place in traced if (one := questions[place].sampler) is not None]
        for graph, numbers in by_graph(runs).items():
            places = [traced[number] for number in numbers]
            group = run_group(
                graph, [questions[place] for place in places], _of(scores, places), self._ways.samplers, self._copies
            )
            if group.scores is not None:
                self._filter(group.scores, places, chosen)
            if group.token_ids is not None:
                _put(chosen.token_ids, places, group.token_ids)
            _put(chosen.has_failed, places, group.has_failed)
            chosen.states.update(zip([rows[place] for place in places], group.states, strict=True))
            chosen.errors.append(([rows[place] for place in places], group.errors))
        common = [place for place, one in enumerate(questions) if one.sampler is None and _is_common(one.sampling)]
        if common:
            self._draw(_of(logits[index], common), _of(scores, common), common, chosen)
        rare = sorted(set(range(num)).difference(common, traced))
        if rare:
            self._filter(_of(scores, rare).double(), rare, chosen)
        return chosen

    def _draw(self, logits: Tensor, scores: Tensor, places: Sequence[int], chosen: _Chosen) -> None:
        asked = [self._questions[chosen.rows[place]] for place in places]
        samplings = self._ways.columns.of_adjusted([one.sampling for one in asked if one.sampling is not None])
        positions = np.array([one.position for one in asked])
        outputs = draw_rows(self._ways.draw, logits, scores, samplings, positions)
        _put(chosen.token_ids, places, outputs[0].long())
        _put(chosen.processed, places, outputs[1].view(torch.float32).double())

    def _filter(self, scores: Tensor, places: Sequence[int], chosen: _Chosen) -> None:
        """Rows that need the whole vocabulary in order."""
        asked = [self._questions[chosen.rows[place]] for place in places]
        own = [one.sampling for one in asked if one.sampling is not None]
        samplings = self._ways.columns.of_adjusted(own)
        weights = kept_weights(scores, samplings)
        numbers = uniforms(samplings.seeds, np.array([one.position for one in asked]))
        token_ids, totals = draw_each(weights, to_device(numbers, scores.device)), weights.sum(-1)
        _put(chosen.token_ids, places, token_ids)
        _put(chosen.processed, places, (weights.gather(1, token_ids[:, None])[:, 0] / totals).log())
        listing = [number for number, one in enumerate(own) if one.top_logprobs and one.logprobs == "processed"]
        if listing:
            sizes = [own[number].top_logprobs for number in listing]
            read = ask_tops(
                _of(weights, listing).log(), _of(totals, listing).log(), sizes, self._ways.top, self._copies
            )
            chosen.tops.append(([chosen.rows[places[number]] for number in listing], read))


def _is_common(sampling: Sampling | None) -> bool:
    """Whether a draw says all of it."""
    return sampling is not None and not (sampling.top_logprobs and sampling.logprobs == "processed")


def _of(values: Tensor, places: Sequence[int]) -> Tensor:
    """The rows at `places`, which ascend."""
    return values if len(places) == len(values) else values[to_device(np.array(places), values.device)]


def _put(target: Tensor, places: Sequence[int], values: Tensor) -> None:
    if len(places) == len(target):
        target.copy_(values)
    else:
        target[to_device(np.array(places), target.device)] = values
