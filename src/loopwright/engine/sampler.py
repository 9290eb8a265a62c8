"""Answers questions about logits: which token comes next, and how probable which tokens are. Never runs a model.

Called by the model runner. Each row of logits is answered by itself, so that neither its neighbours nor the batch's
shape matter; what is wrong with one row is that row's error.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.batch import RowResult, Sampled
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.core.errors import BadRequest, InternalError
from loopwright.core.results import Distribution
from loopwright.core.samplers import SamplerRun
from loopwright.engine.draws import draw, uniform
from loopwright.engine.traced import TracedAnswer, TracedRow, run_samplers

_NUCLEUS_GUESSES = (256, 4096)  # most nuclei are smaller; a larger one costs a full sort
MAX_LOGIT = 1e30  # as large as a bias may be: a penalty near zero must not make infinities, which have no difference


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of one row of logits. Checked before: ids, counts and k are within the vocabulary."""

    distributions: Sequence[DistributionRequest] = ()
    sampling: Sampling | None = None
    position: int = 0  # where the chosen token will stand
    generated: Sequence[int] = ()  # what penalties count beside the lists of `sampling`
    allowed_bits: bytes | None = None  # [vocab_size] bits: only these tokens may be chosen
    sampler: SamplerRun | None = None  # beside `sampling`, whose fields up to `allowed` act before it
    draft: int | None = None  # unless this is chosen, nobody looks at the row's answers behind this one


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that processing leaves: `ids` ascending (None is the whole vocabulary), `weights` float64 [num_ids],
    in proportion to their probabilities."""

    ids: Tensor | None
    weights: Tensor

    def token_id(self, index: int) -> int:
        return index if self.ids is None else int(self.ids[index])


def answer(logits: Tensor, questions: Sequence[Question]) -> list[RowResult]:
    """One result for each row of logits [num_questions, vocab_size] (float32)."""
    normalizers = torch.logsumexp(logits, dim=-1).tolist()
    # A sum is finite only if all of its terms are; one pass finds NaN and both infinities.
    finite = torch.isfinite(logits.sum(dim=-1)).nonzero().flatten().tolist()
    found = answer_finite(
        [logits[place] for place in finite],
        [normalizers[place] for place in finite],
        [questions[place] for place in finite],
    )
    results = dict(zip(finite, found, strict=True))
    return [results[place] if place in results else not_finite() for place in range(len(questions))]


def answer_finite(
    rows: Sequence[Tensor], normalizers: Sequence[float], questions: Sequence[Question]
) -> list[RowResult]:
    """Of rows [vocab_size] without NaN and infinity, whose log-sum-exps are known."""
    traced = _run_traced(rows, questions)
    return [
        answer_one(row, normalizer, question, traced.get(place))
        for place, (row, normalizer, question) in enumerate(zip(rows, normalizers, questions, strict=True))
    ]


def choose(logits: Tensor, sampling: Sampling, position: int, generated: Sequence[int] = ()) -> int:
    """The token that `sampling` takes from logits [vocab_size], to stand at `position`."""
    return _draw_from(process(logits, sampling, generated), sampling, position)[0]


def process(
    logits: Tensor, sampling: Sampling, generated: Sequence[int] = (), allowed_bits: bytes | None = None
) -> Candidates:
    """What is left of logits [vocab_size] to draw from, after each processor in the order of the fields of Sampling.

    Each filter sees what the one before left; a grammar's bits act where `allowed` does. Definitions and sources are in
    docs/sampling.md."""
    if sampling.has_penalties or sampling.logit_bias:
        logits = _adjusted(logits, sampling, generated)
    return _filtered(logits, _candidate_ids(sampling, allowed_bits, logits), sampling)


def _candidate_ids(sampling: Sampling, allowed_bits: bytes | None, logits: Tensor) -> Tensor | None:
    """Ascending; None is the whole vocabulary."""
    if allowed_bits is None:
        return None if sampling.allowed is None else _allowed_ids(sampling.allowed, logits)
    assert sampling.allowed is None, "control refuses a grammar beside a list of allowed tokens"
    return _ids_of_bits(allowed_bits, logits)


def _filtered(logits: Tensor, token_ids: Tensor | None, sampling: Sampling) -> Candidates:
    """What temperature and filters leave of logits [vocab_size], of `token_ids` alone if given."""
    values = logits if token_ids is None else logits[token_ids]
    if sampling.temperature == 0:
        best = values.argmax().view(1)  # of equal values, argmax takes the first
        return Candidates(best if token_ids is None else token_ids[best], _one(logits))
    weights = ((values.double() - float(values.max())) / sampling.temperature).exp_()
    for kept in _filters(weights, sampling):
        token_ids = kept if token_ids is None else token_ids[kept]
        weights = weights[kept]
    return Candidates(token_ids, weights)


def distribution(logits: Tensor, normalizer: float, request: DistributionRequest) -> Distribution:
    """The exact log-probabilities of the k most probable of logits [vocab_size], the lowest id first on a tie, then of
    the must-include ids that are not among them. `normalizer` is the log-sum-exp over all.

    Under a mask the k most probable are of the allowed tokens; a must-include id outside it has -inf."""
    allowed = None if request.allowed is None else _allowed_ids(request.allowed, logits)
    seen, own_normalizer = logits, normalizer
    if allowed is not None:
        own_normalizer = float(logits[allowed].double().logsumexp(0))
        seen = torch.full_like(logits, -torch.inf).index_copy_(0, allowed, logits[allowed])
    num_possible = len(logits) if allowed is None else len(allowed)
    top_ids = _top(seen, min(request.k, num_possible))
    listed = set(top_ids.tolist())
    extra = [token_id for token_id in dict.fromkeys(request.must_include) if token_id not in listed]
    token_ids = torch.cat([top_ids, torch.tensor(extra, dtype=torch.int64, device=logits.device)])
    logprobs = (seen[token_ids].double() - own_normalizer).float()
    covered = min(1.0, float(logprobs.double().exp().sum()))
    return Distribution(
        ids=token_ids.cpu().numpy().astype("<i4").tobytes(),
        logprobs=logprobs.cpu().numpy().astype("<f4").tobytes(),
        covered=covered,
        tail_mass=1.0 - covered,
        truncated=int(logprobs.isfinite().sum()) < num_possible,
        entropy=_entropy(seen, own_normalizer) if request.entropy else None,
        allowed_mass=None if allowed is None else min(1.0, math.exp(own_normalizer - normalizer)),
        logits=logits.cpu().numpy().astype("<f4").tobytes() if request.logits else None,
        ranks=_ranks(seen, len(top_ids), extra).astype("<i4").tobytes() if request.ranks else None,
    )


def _ranks(seen: Tensor, num_top: int, extra: Sequence[int]) -> NDArray[np.int64]:
    """Of the `num_top` most probable of `seen` [vocab_size] and then of the extra ids, from 1: the lowest id first on a
    tie, as they are listed."""
    of_extra = [int((seen > seen[one]).sum() + (seen[:one] == seen[one]).sum()) + 1 for one in extra]
    return np.array([*range(1, num_top + 1), *of_extra])


def _run_traced(logits: Sequence[Tensor], questions: Sequence[Question]) -> dict[int, TracedAnswer]:
    """What the samplers of programs make of their rows, by place."""
    rows: dict[int, TracedRow] = {}
    for place, question in enumerate(questions):
        sampling = question.sampling
        if question.sampler is not None and sampling is not None:
            scores = _adjusted(logits[place], sampling, question.generated).double()
            token_ids = _candidate_ids(sampling, question.allowed_bits, scores)
            if token_ids is not None:
                scores = torch.full_like(scores, -torch.inf).index_copy_(0, token_ids, scores[token_ids])
            rows[place] = TracedRow(question.sampler, scores, sampling.seed, question.position)
    return dict(zip(rows, run_samplers(list(rows.values())), strict=True)) if rows else {}


def answer_one(logits: Tensor, normalizer: float, question: Question, traced: TracedAnswer | None) -> RowResult:
    sampled: tuple[Sampled, ...] = ()
    if question.sampling is not None:
        try:
            candidates = _candidates(logits, question.sampling, question, traced)
        except BadRequest as error:
            return RowResult(error=error.info())
        sampled = (_sample(logits, normalizer, question.sampling, question.position, candidates),)
    return RowResult(
        sampled=sampled,
        distributions=tuple(distribution(logits, normalizer, request) for request in question.distributions),
        sampler_state=None if traced is None else traced.state,
    )


def _candidates(logits: Tensor, sampling: Sampling, question: Question, traced: TracedAnswer | None) -> Candidates:
    """What is left to draw from. Raises BadRequest for what a program's sampler may not give."""
    if traced is None:
        return process(logits, sampling, question.generated, question.allowed_bits)
    if traced.failure is not None:
        raise _wrong_sampler(question.position, traced.failure)
    token_ids = _candidate_ids(sampling, question.allowed_bits, logits)
    if len(traced.result) == 1:
        token = float(traced.result)
        if not (token.is_integer() and 0 <= token < len(logits)):
            raise _wrong_sampler(question.position, f"{token:g} is not a token id from 0 to {len(logits) - 1}")
        if token_ids is not None and not bool((token_ids == int(token)).any()):
            raise _wrong_sampler(question.position, f"token {token:g} is not one of the {len(token_ids)} allowed here")
        return Candidates(torch.tensor([int(token)], device=logits.device), _one(logits))
    values = traced.result if token_ids is None else traced.result[token_ids]
    if not bool(values.max().isfinite()):
        raise _wrong_sampler(question.position, f"the highest score of what is allowed is {float(values.max())}")
    return _filtered(traced.result, token_ids, sampling)


def _sample(logits: Tensor, normalizer: float, sampling: Sampling, position: int, candidates: Candidates) -> Sampled:
    token_id, index = _draw_from(candidates, sampling, position)
    if sampling.logprobs == "raw":
        top_ids = _top(logits, sampling.top_logprobs) if sampling.top_logprobs else ()
        logprob = float(logits[token_id]) - normalizer
        return Sampled(token_id, min(0.0, logprob), tuple((int(i), float(logits[i]) - normalizer) for i in top_ids))
    weights = candidates.weights / candidates.weights.sum()
    top = _top(weights, sampling.top_logprobs) if sampling.top_logprobs else ()
    return Sampled(
        token_id,
        math.log(float(weights[index])),
        tuple((candidates.token_id(i), math.log(weight)) for i in map(int, top) if (weight := float(weights[i])) > 0),
    )


def _wrong_sampler(position: int, why: str) -> BadRequest:
    return BadRequest(f"sampler, at position {position}: {why}", field="sampler")


def not_finite() -> RowResult:
    error = InternalError(
        "the model's logits of this row hold values that are not finite numbers (NaN or infinity)",
        hint="weights or embeddings that the row reads are damaged; its KV should be dropped",
    )
    return RowResult(error=error.info())


def _adjusted(logits: Tensor, sampling: Sampling, generated: Sequence[int]) -> Tensor:
    """Logits [vocab_size] after penalties and bias."""
    logits = logits.clone()
    if sampling.has_penalties:
        written = torch.tensor((*sampling.generated, *generated), dtype=torch.int64, device=logits.device)
        seen = torch.cat([written, torch.tensor(sampling.seen, dtype=torch.int64, device=logits.device)])
        penalty = sampling.repetition_penalty
        wide = logits[seen].double()  # in float32 a penalty can be zero
        penalized = torch.where(wide < 0, wide * penalty, wide / penalty).clamp(-MAX_LOGIT, MAX_LOGIT)
        logits[seen] = penalized.float()  # of a token that was seen twice, the same value twice
        counts = torch.bincount(written, minlength=len(logits))[written]
        logits[written] = logits[written] - (sampling.presence_penalty + sampling.frequency_penalty * counts)
    for token_id, bias in sampling.logit_bias.items():
        logits[token_id] += bias
    return logits


def _allowed_ids(allowed: Sequence[int], logits: Tensor) -> Tensor:
    ids = sorted({token_id for token_id in allowed if token_id < len(logits)})  # the draw needs the order
    return torch.tensor(ids, device=logits.device)


def _ids_of_bits(bits: bytes, logits: Tensor) -> Tensor:
    """Ascending."""
    marks = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[: len(logits)]
    return torch.from_numpy(marks.nonzero()[0]).to(logits.device)


def _one(logits: Tensor) -> Tensor:
    return torch.ones(1, dtype=torch.float64, device=logits.device)


def _filters(weights: Tensor, sampling: Sampling) -> Iterator[Tensor]:
    """Ascending indices that each active filter keeps, of what the filter before it kept."""
    if 0 < sampling.top_k < len(weights):
        threshold = weights.topk(sampling.top_k, sorted=False).values.min()
        kept = (weights >= threshold).nonzero().flatten()  # all that tie with the k-th, as transformers does
        weights = weights[kept]
        yield kept
    if sampling.typical_p < 1:
        kept = _typical(weights, sampling.typical_p)
        weights = weights[kept]
        yield kept
    if sampling.top_p < 1:
        kept = _nucleus(weights, sampling.top_p)
        weights = weights[kept]
        yield kept
    if sampling.min_p > 0:
        yield (weights >= sampling.min_p * weights.max()).nonzero().flatten()


def _typical(weights: Tensor, typical_p: float) -> Tensor:
    """Ascending indices of the smallest set with at least typical_p of the mass, taken by how close a token's surprise
    is to the entropy; all that tie with the last of them too, as in transformers."""
    probabilities = weights / weights.sum()
    distances: Tensor = (-probabilities.log() - torch.special.entr(probabilities).sum()).abs()
    ordered, order = distances.sort(stable=True)
    mass = probabilities[order].cumsum(0)
    last = min(int((mass < typical_p).sum()), len(mass) - 1)
    return (distances <= ordered[last]).nonzero().flatten()


def _nucleus(weights: Tensor, top_p: float) -> Tensor:
    """Ascending indices of the smallest set of heaviest weights with at least top_p of the mass; at least one."""
    target = top_p * float(weights.sum())
    for size in (*_NUCLEUS_GUESSES, len(weights)):
        heaviest = _top(weights, size)
        mass = weights[heaviest].cumsum(0)
        if float(mass[-1]) >= target:
            break
    size = int(torch.searchsorted(mass, target)) + 1  # slicing bounds it where rounding leaves all below the target
    return heaviest[:size].sort().values


def _top(values: Tensor, k: int) -> Tensor:
    """Indices of the k largest, largest first, the lowest index first on a tie; topk alone leaves ties open."""
    if k < len(values):
        threshold = values.topk(k, sorted=False).values.min()
        candidates = (values >= threshold).nonzero().flatten()
        return candidates[values[candidates].argsort(descending=True, stable=True)][:k]
    return values.argsort(descending=True, stable=True)


def _entropy(logits: Tensor, normalizer: float) -> float:
    """In nats; -inf among the logits has no probability and adds nothing."""
    return float(torch.special.entr((logits.double() - normalizer).exp_()).sum())


def _draw_from(candidates: Candidates, sampling: Sampling, position: int) -> tuple[int, int]:
    """The chosen token and its index among the candidates."""
    index = 0 if sampling.temperature == 0 else draw(candidates.weights, uniform(sampling.seed, position))
    return candidates.token_id(index), index
