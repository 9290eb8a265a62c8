"""Answers questions about logits with the native kernels, all rows of a step in one call. Never runs a model.

Implements what the model runner asks of `sampler.answer`, which is the reference, and answers here what is rare: traced
samplers, typical_p and ranks. Used by the native decoder's model runner.
"""

import ctypes
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.batch import RowResult, Sampled
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.core.results import Distribution
from loopwright.engine.native import structs
from loopwright.engine.sampler import Question, answer_finite, not_finite

_MOST_KEPT = 1024  # samplings whose numbers are kept for the next step
_MOST_KEPT_BYTES = 4 << 20  # of their arrays
_NOT_ASKED = RowResult()  # what follows a draft that is wrong


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """A sampling as the kernels take it, from step to step, with the arrays that `question` points into."""

    sampling: Sampling
    question: structs.Question
    arrays: tuple[NDArray[Any], ...]

    @property
    def nbytes(self) -> int:
        return ctypes.sizeof(self.question) + sum(one.nbytes for one in self.arrays)


@dataclass(slots=True, eq=False)
class _Listed:
    """The distributions that a row asks for: where the kernels write them."""

    structs: ctypes.Array[structs.Listing]
    ids: list[NDArray[np.int32]]
    logprobs: list[NDArray[np.float32]]
    allowed: list["NDArray[np.uint8] | None"]


@dataclass(slots=True, eq=False)
class _Asked:
    """The questions of a step for the kernels, with what they point into."""

    questions: ctypes.Array[structs.Question]
    rare: list[int] = field(default_factory=list)  # places of those that they cannot answer
    listed: dict[int, _Listed] = field(default_factory=dict)  # by place
    kept: list[object] = field(default_factory=list)


class NativeAnswers:
    """Never called from two threads at once."""

    def __init__(self, library: ctypes.CDLL, workspace: int, vocab_size: int) -> None:
        self._library = library
        self._workspace = workspace
        self._vocab_size = vocab_size
        self._prepared: dict[int, _Prepared] = {}  # by the id of the sampling, which it keeps alive
        self._kept_bytes = 0  # of them all

    @property
    def kept_bytes(self) -> int:
        """What samplings that may come again have made; at most _MOST_KEPT_BYTES, or those of one."""
        return self._kept_bytes

    def answer(self, logits: Tensor, questions: Sequence[Question]) -> list[RowResult]:
        """One result for each row of float32 logits [num_questions, vocab_size]."""
        asked, found = self._asked(questions), (structs.Answer * len(questions))()
        self._library.answer_rows(
            logits.data_ptr(), len(questions), self._vocab_size, ctypes.addressof(asked.questions),
            ctypes.addressof(found), self._workspace,
        )  # fmt: skip
        rare = [place for place in asked.rare if found[place].is_finite]
        by_reference = answer_finite(
            [logits[place] for place in rare],
            [found[place].normalizer for place in rare],
            [questions[place] for place in rare],
        )
        results = dict(zip(rare, by_reference, strict=True))
        return [
            results[place] if place in results
            else _result(logits, place, question, one, asked.listed.get(place)) if one.is_finite
            else not_finite() if one.is_answered
            else _NOT_ASKED
            for place, (question, one) in enumerate(zip(questions, found, strict=True))
        ]  # fmt: skip

    def _asked(self, questions: Sequence[Question]) -> _Asked:
        asked = _Asked((structs.Question * len(questions))())
        for place, question in enumerate(questions):
            if not _is_common(question):
                asked.rare.append(place)
                continue
            if question.sampling is not None:
                self._ask(question, question.sampling, asked, place)
            if question.distributions:
                listed = asked.listed[place] = _listed(question.distributions, self._vocab_size)
                to = asked.questions[place]
                to.listings, to.num_listings = ctypes.addressof(listed.structs), len(listed.structs)
        return asked

    def _ask(self, question: Question, sampling: Sampling, asked: _Asked, place: int) -> None:
        prepared = self._prepare(sampling)
        asked.kept.append(prepared)
        asked.questions[place] = prepared.question
        to = asked.questions[place]
        to.position = question.position
        if question.draft is not None:
            to.has_draft, to.draft = 1, question.draft
        if question.generated and sampling.has_penalties:
            to.sampled, array = _tokens(question.generated)
            asked.kept.append(array)
        if question.allowed_bits is not None:
            bits = _padded(question.allowed_bits, self._vocab_size)
            to.allowed, to.is_adjusted = bits.ctypes.data, 1
            asked.kept.append(bits)

    def _prepare(self, sampling: Sampling) -> _Prepared:
        found = self._prepared.get(id(sampling))
        if found is None:
            found = _prepared(sampling, self._vocab_size)
            if len(self._prepared) >= _MOST_KEPT or self._kept_bytes + found.nbytes > _MOST_KEPT_BYTES:
                self._prepared.clear()
                self._kept_bytes = 0
            self._prepared[id(sampling)] = found
            self._kept_bytes += found.nbytes
        return found


def _listed(requests: Sequence[DistributionRequest], vocab_size: int) -> _Listed:
    listed = _Listed((structs.Listing * len(requests))(), [], [], [])
    for to, request in zip(listed.structs, requests, strict=True):
        ids, logprobs = np.empty(request.k, np.int32), np.empty(request.k, np.float32)
        allowed = None if request.allowed is None else _bits(request.allowed, vocab_size)
        to.count, to.has_entropy = request.k, request.entropy
        to.ids, to.logprobs = ids.ctypes.data, logprobs.ctypes.data
        to.allowed = None if allowed is None else allowed.ctypes.data
        listed.ids.append(ids)
        listed.logprobs.append(logprobs)
        listed.allowed.append(allowed)
    return listed


def _result(logits: Tensor, place: int, question: Question, found: structs.Answer, listed: _Listed | None) -> RowResult:
    sampled: tuple[Sampled, ...] = ()
    if question.sampling is not None:
        num = found.num_top
        top = tuple(zip(found.top_ids[:num], found.top_logprobs[:num], strict=True)) if num else ()
        sampled = (Sampled(found.token, found.logprob, top),)
    if listed is None:
        return RowResult(sampled)
    row = logits[place].numpy()
    parts = zip(question.distributions, listed.structs, listed.ids, listed.logprobs, listed.allowed, strict=True)
    return RowResult(sampled, tuple(_distribution(row, found.normalizer, *one) for one in parts))


def _is_common(question: Question) -> bool:
    """Whether the kernels can answer it."""
    return (
        question.sampler is None
        and (question.sampling is None or question.sampling.typical_p == 1 or question.sampling.temperature == 0)
        and not any(request.ranks for request in question.distributions)
    )


def _prepared(sampling: Sampling, vocab_size: int) -> _Prepared:
    question = structs.Question(
        is_sampled=1,
        is_adjusted=sampling.has_penalties or bool(sampling.logit_bias) or sampling.allowed is not None,
        is_processed=sampling.logprobs == "processed",
        num_top=min(sampling.top_logprobs, vocab_size),
        top_k=min(sampling.top_k, vocab_size),
        seed=sampling.seed,
        **{name: getattr(sampling, name) for name in (
            "repetition_penalty", "presence_penalty", "frequency_penalty", "temperature", "top_p", "min_p"
        )},
    )  # fmt: skip
    arrays: list[NDArray[Any]] = []
    if sampling.has_penalties:
        question.seen, seen = _tokens(sampling.seen)
        question.generated, generated = _tokens(sampling.generated)
        arrays += [seen, generated]
    if sampling.logit_bias:
        biased = np.array(list(sampling.logit_bias), np.int32)
        biases = np.array(list(sampling.logit_bias.values()), np.float64)
        question.biased, question.biases, question.num_biases = biased.ctypes.data, biases.ctypes.data, len(biased)
        arrays += [biased, biases]
    if sampling.allowed is not None:
        allowed = _bits(sampling.allowed, vocab_size)
        question.allowed = allowed.ctypes.data
        arrays.append(allowed)
    return _Prepared(sampling, question, tuple(arrays))


def _tokens(ids: Sequence[int]) -> tuple[structs.Tokens, NDArray[np.int32]]:
    array = np.array(ids, np.int32)
    return structs.Tokens(array.ctypes.data, len(array)), array


def _bits(allowed: Iterable[int], vocab_size: int) -> NDArray[np.uint8]:
    """A bit for each token, to whole vectors."""
    marks = np.zeros(-(-vocab_size // 16) * 16, bool)
    marks[[token_id for token_id in allowed if token_id < vocab_size]] = True
    return np.packbits(marks, bitorder="little")


def _padded(bits: bytes, vocab_size: int) -> NDArray[np.uint8]:
    found = np.frombuffer(bits, np.uint8)
    missing = -(-vocab_size // 16) * 2 - len(found)
    return found if missing <= 0 else np.concatenate([found, np.zeros(missing, np.uint8)])


def _distribution(
    logits: NDArray[np.float32], normalizer: float, request: DistributionRequest, found: structs.Listing,
    top_ids: NDArray[np.int32], top_logprobs: NDArray[np.float32], allowed: "NDArray[np.uint8] | None",
) -> Distribution:  # fmt: skip
    """As sampler.distribution makes it, of what the kernels listed."""
    ids, logprobs = top_ids[: found.count], top_logprobs[: found.count]
    num_possible = len(logits) if allowed is None else int(np.unpackbits(allowed).sum())
    if request.must_include:
        listed = set(ids.tolist())
        extra = np.array([one for one in dict.fromkeys(request.must_include) if one not in listed], np.int32)
        seen = logits[extra].astype(np.float64)
        if allowed is not None:
            seen[(allowed[extra >> 3] >> (extra & 7) & 1) == 0] = -np.inf
        ids = np.concatenate([ids, extra])
        logprobs = np.concatenate([logprobs, (seen - found.normalizer).astype(np.float32)])
    covered = min(1.0, float(np.exp(logprobs.astype(np.float64)).sum()))
    return Distribution(
        ids=ids.astype("<i4").tobytes(),
        logprobs=logprobs.astype("<f4").tobytes(),
        covered=covered,
        tail_mass=1.0 - covered,
        truncated=int(np.isfinite(logprobs).sum()) < num_possible,
        entropy=found.entropy if request.entropy else None,
        allowed_mass=None if allowed is None else min(1.0, math.exp(found.normalizer - normalizer)),
        logits=logits.astype("<f4").tobytes() if request.logits else None,
    )
