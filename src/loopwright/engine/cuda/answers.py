"""Answers the questions of many rows of logits together; engine.sampler takes them one by one. Never runs a model.

A row that asks for something rare (typical_p, ids that must be included, a mask over a distribution, scores from a
traced sampler) goes to engine.sampler; the others cost a handful of operations for all of them. Equal to engine.sampler
up to the rounding of sums.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from loopwright.core.batch import RowResult, Sampled
from loopwright.core.calls import Sampling
from loopwright.core.results import Distribution, TopLogprobs
from loopwright.engine.cuda.adjusting import adjusted
from loopwright.engine.cuda.sampling import MAX_CANDIDATES, RowSamplings, draw_rows, ordered_top
from loopwright.engine.sampler import Question, answer, answer_one, not_finite
from loopwright.engine.traced import TracedAnswer, TracedRow, run_samplers


def answer_together(logits: Tensor, questions: Sequence[Question]) -> list[RowResult]:
    """One result for each row of float32 logits [num_questions, vocab_size]."""
    easy = [place for place, question in enumerate(questions) if _is_easy(question)]
    hard = sorted(set(range(len(questions))).difference(easy))
    found: dict[int, RowResult] = {}
    if hard:
        found.update(zip(hard, answer(logits[hard], [questions[place] for place in hard]), strict=True))
    if easy:
        chosen = logits if len(easy) == len(questions) else logits[easy]
        found.update(zip(easy, _answer_easy(chosen, [questions[place] for place in easy]), strict=True))
    return [found[place] for place in range(len(questions))]


def _is_easy(question: Question) -> bool:
    return (question.sampling is None or _is_common(question.sampling)) and all(
        request.allowed is None and not request.must_include and not request.logits and request.k <= MAX_CANDIDATES
        for request in question.distributions
    )


def _is_common(sampling: Sampling) -> bool:
    if sampling.top_logprobs and sampling.logprobs == "processed":
        return False
    return sampling.temperature == 0 or (sampling.typical_p == 1 and sampling.top_k < MAX_CANDIDATES)


@dataclass(slots=True)
class _Chosen:
    """What rows chose, by place: ids and processed log-probabilities; and what samplers gave, of all rows with one.
    A finite row that has neither an id nor nothing to choose is left to engine.sampler."""

    token_ids: dict[int, int] = field(default_factory=dict)
    processed: dict[int, float] = field(default_factory=dict)
    traced: dict[int, TracedAnswer] = field(default_factory=dict)


def _answer_easy(logits: Tensor, questions: Sequence[Question]) -> list[RowResult]:
    normalizers = logits.logsumexp(-1)
    are_finite: list[bool] = logits.sum(-1).isfinite().tolist()
    sampling = [place for place, one in enumerate(questions) if one.sampling is not None and are_finite[place]]
    chosen = _choose(logits, questions, sampling) if sampling else _Chosen()
    raw = _raw_logprobs(logits, normalizers, chosen.token_ids)
    tops = _top_logprobs(logits, normalizers, questions)
    distributions = _distributions(logits, normalizers, questions)
    results = []
    for place, question in enumerate(questions):
        if not are_finite[place]:
            results.append(not_finite())
        elif question.sampling is not None and place not in chosen.token_ids:
            results.append(answer_one(logits[place], float(normalizers[place]), question, chosen.traced.get(place)))
        else:
            sampled: tuple[Sampled, ...] = ()
            if question.sampling is not None:
                logprob = raw[place] if question.sampling.logprobs == "raw" else chosen.processed[place]
                sampled = (Sampled(chosen.token_ids[place], logprob, tops.get(place, ())),)
            traced = chosen.traced.get(place)
            results.append(RowResult(sampled, distributions[place], None, traced.state if traced else None))
    return results


def _choose(logits: Tensor, questions: Sequence[Question], places: Sequence[int]) -> _Chosen:
    """Of the rows at `places`, which are finite and sample."""
    chosen = _Chosen()
    rows = adjusted(logits[torch.tensor(places, device=logits.device)], [questions[place] for place in places])
    traced = [row for row, place in enumerate(places) if questions[place].sampler is not None]
    drawing = [row for row, place in enumerate(places) if questions[place].sampler is None]
    if traced:
        _run_traced(rows, [(row, places[row], questions[places[row]]) for row in traced], chosen)
    if drawing:
        asked = [questions[places[row]] for row in drawing]
        samplings = RowSamplings.of([_after_adjusting(one.sampling) for one in asked if one.sampling], logits.device)
        own = rows if len(drawing) == len(places) else rows[torch.tensor(drawing, device=logits.device)]
        drawn = draw_rows(own, samplings, np.array([one.position for one in asked]))
        still_open = set(drawn.open_rows())
        for number, (token_id, logprob) in enumerate(zip(drawn.ids.tolist(), drawn.logprobs.tolist(), strict=True)):
            if number not in still_open:
                place = places[drawing[number]]
                chosen.token_ids[place], chosen.processed[place] = token_id, logprob
    return chosen


def _after_adjusting(sampling: Sampling) -> Sampling:
    return replace(
        sampling, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logit_bias={}, allowed=None,
        top_logprobs=0,
    )  # fmt: skip


def _run_traced(rows: Tensor, asked: Sequence[tuple[int, int, Question]], chosen: _Chosen) -> None:
    """(row of `rows`, place, question) each. Tokens that may not be are left out: engine.sampler says why."""
    scores = rows.double()
    runs = [
        TracedRow(question.sampler, scores[row], question.sampling.seed, question.position)
        for row, _, question in asked
        if question.sampler is not None and question.sampling is not None
    ]
    answers = run_samplers(runs)
    numbers = [(row, place, one) for (row, place, _), one in zip(asked, answers, strict=True) if len(one.result) == 1]
    for (_, place, _), one in zip(asked, answers, strict=True):
        chosen.traced[place] = one
    if not numbers:
        return
    values = torch.cat([one.result for _, _, one in numbers])
    index = values.nan_to_num(0.0).clamp(0, rows.shape[1] - 1).long()
    picked = scores[torch.tensor([row for row, _, _ in numbers], device=rows.device), index]
    is_token = (index == values) & (picked > -torch.inf)
    for (_, place, one), token_id, is_good in zip(numbers, index.tolist(), is_token.tolist(), strict=True):
        if is_good and one.failure is None:
            chosen.token_ids[place], chosen.processed[place] = token_id, 0.0


def _raw_logprobs(logits: Tensor, normalizers: Tensor, token_ids: Mapping[int, int]) -> dict[int, float]:
    if not token_ids:
        return {}
    at = torch.tensor([list(token_ids), list(token_ids.values())], device=logits.device)
    found = logits[at[0], at[1]].double() - normalizers[at[0]].double()
    return dict(zip(token_ids, found.clamp(max=0.0).tolist(), strict=True))


def _top_logprobs(logits: Tensor, normalizers: Tensor, questions: Sequence[Question]) -> dict[int, TopLogprobs]:
    """Raw ones, of the rows that want some."""
    wanted = {place: one.sampling.top_logprobs for place, one in enumerate(questions)
              if one.sampling is not None and one.sampling.top_logprobs}  # fmt: skip
    if not wanted:
        return {}
    rows = torch.tensor(list(wanted), device=logits.device)
    values, ids = ordered_top(logits[rows], min(max(wanted.values()), logits.shape[1]))
    logprobs = values.double() - normalizers[rows].double()[:, None]
    pairs = zip(wanted.items(), ids.tolist(), logprobs.tolist(), strict=True)
    return {place: tuple(zip(ids[:num], numbers[:num], strict=True)) for (place, num), ids, numbers in pairs}


def _distributions(
    logits: Tensor, normalizers: Tensor, questions: Sequence[Question]
) -> list[tuple[Distribution, ...]]:
    """What each row asks for, as engine.sampler.distribution makes it."""
    asked = [(place, request) for place, question in enumerate(questions) for request in question.distributions]
    if not asked:
        return [()] * len(questions)
    rows = torch.tensor([place for place, _ in asked], device=logits.device)
    vocab_size = logits.shape[1]
    values, ids = ordered_top(logits[rows], min(max(request.k for _, request in asked), vocab_size))
    logprobs = (values.double() - normalizers[rows].double()[:, None]).float()
    host_ids, host_logprobs = ids.int().cpu().numpy().astype("<i4"), logprobs.cpu().numpy().astype("<f4")
    entropies = _entropies(logits, normalizers, [place for place, request in asked if request.entropy])
    found: list[list[Distribution]] = [[] for _ in questions]
    for number, (place, request) in enumerate(asked):
        k = min(request.k, vocab_size)
        mine = host_logprobs[number, :k]
        covered = min(1.0, float(np.exp(mine.astype(np.float64)).sum()))
        found[place].append(
            Distribution(
                ids=host_ids[number, :k].tobytes(), logprobs=mine.tobytes(), covered=covered, tail_mass=1.0 - covered,
                truncated=k < vocab_size, entropy=entropies.get(place) if request.entropy else None,
            )
        )  # fmt: skip
    return [tuple(one) for one in found]


def _entropies(logits: Tensor, normalizers: Tensor, places: Sequence[int]) -> dict[int, float]:
    """In nats."""
    if not places:
        return {}
    rows = torch.tensor(sorted(set(places)), device=logits.device)
    probabilities = (logits[rows].double() - normalizers[rows].double()[:, None]).exp()
    return dict(zip(rows.tolist(), torch.special.entr(probabilities).sum(-1).tolist(), strict=True))
