"""What the rows of a step ask of the head: of which tokens, in which questions, and a row's result of their answers.

Never computes logits and never answers. Used by the runners of both devices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.batch import ForwardRow, HeadRow, RowResult, Sampled
from loopwright.core.calls import DistributionRequest
from loopwright.engine.sampler import Question
from loopwright.engine.transfer import to_device


@dataclass(frozen=True, slots=True, eq=False)
class Hidden:
    """Hidden states behind the last layer, [num_kept, hidden_size], of the tokens of a step with the indices `kept`, in
    ascending order; None: of all."""

    vectors: Tensor
    kept: NDArray[np.int64] | None = None

    def of(self, tokens: Sequence[int]) -> Tensor:
        """Of some that are kept, in any order: [num_tokens, hidden_size]."""
        index = np.asarray(tokens, np.int64)
        if self.kept is not None:
            places = np.searchsorted(self.kept, index)
            assert (self.kept[places] == index).all(), "a token whose hidden state nobody asked for"
            index = places
        return self.vectors[to_device(index, self.vectors.device)]


@dataclass(frozen=True, slots=True)
class Asked:
    """What one row asks of the head, by the index of the vector: each vector's logits are computed once."""

    questions: list[tuple[int, Question]]  # those that sample come first, in order
    order: list[tuple[int, int]]  # for each distribution: which question, and which place among its distributions
    drafts: Sequence[int] = ()  # what each sample but the last is compared with

    @classmethod
    def of_row(cls, row: ForwardRow, end: int) -> "Asked":
        start = end - row.num_tokens
        first_sample = _first_sample(row)
        by_index: dict[int, list[DistributionRequest]] = {i: [] for i in range(first_sample, row.num_tokens)}
        places: list[tuple[int, int]] = []
        for request in row.distributions:
            requests = by_index.setdefault(request.index % row.num_tokens, [])
            places.append((request.index % row.num_tokens, len(requests)))
            requests.append(request)
        numbers = {index: number for number, index in enumerate(by_index)}
        drafts = row.token_ids[row.num_tokens - row.num_drafts :]

        def question(index: int, requests: list[DistributionRequest]) -> Question:
            if index < first_sample:
                return Question(requests)
            position = row.sample_position - (row.num_tokens - 1 - index)
            number = index - first_sample
            sampling, bits, draft = row.sampling, row.allowed_bits, None
            assert row.sampler is None or not row.num_drafts, "a sampler is asked about one token at a time"
            if number < row.num_drafts:
                bits = None
                draft = None if row.distributions else drafts[number]
                if sampling is not None and row.are_drafts_forced:
                    sampling = msgspec.structs.replace(sampling, allowed=(drafts[number],))
            generated = row.generated
            if number and sampling is not None and sampling.has_penalties:
                generated = (*generated, *drafts[:number])
            return Question(requests, sampling, position, generated, bits, row.sampler, draft)

        return cls(
            [(start + index, question(index, requests)) for index, requests in by_index.items()],
            [(numbers[index], place) for index, place in places],
            drafts,
        )

    @classmethod
    def of_head(cls, head: HeadRow) -> "Asked":
        question = Question(head.distributions, head.sampling, head.sample_position)
        return cls([(head.slot, question)], [(0, place) for place in range(len(head.distributions))])

    def assemble(self, results: Iterator[RowResult]) -> RowResult:
        """Takes this row's answers from `results`. One that failed fails the row, unless it follows a rejected draft
        and nothing else was asked of it."""
        mine = [next(results) for _ in self.questions]
        sampled: list[Sampled] = []
        is_open = True  # all drafts so far are what was sampled in their place
        for number, ((_, asked), result) in enumerate(zip(self.questions, mine, strict=True)):
            counts = is_open and asked.sampling is not None
            if result.error is not None and (counts or asked.distributions):
                return result
            if counts:
                sampled += result.sampled
                is_open = number < len(self.drafts) and self.drafts[number] == sampled[-1].token_id
        return RowResult(
            tuple(sampled),
            tuple(mine[number].distributions[place] for number, place in self.order),
            sampler_state=mine[0].sampler_state if mine else None,  # a row with a sampler has no drafts
        )


def asked_tokens(rows: Sequence[ForwardRow], ends: Sequence[int]) -> NDArray[np.int64]:
    """Which tokens of a step a row asks something about or keeps in a slot, in ascending order."""
    found: set[int] = set()
    for row, end in zip(rows, ends, strict=True):
        start = end - row.num_tokens
        found.update(range(start + _first_sample(row), end))
        found.update(start + request.index % row.num_tokens for request in row.distributions)
        found.update(range(end - len(row.output_slots), end))
    return np.array(sorted(found), np.int64)


def _first_sample(row: ForwardRow) -> int:
    """From which of its tokens on the row samples."""
    return row.num_tokens - (0 if row.sampling is None else 1 + row.num_drafts)
