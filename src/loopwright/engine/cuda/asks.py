"""What rows ask for, put together by how it is answered: the same for as long as the rows are. Never launches anything.

Made of questions, once for the rows of a decode group and each time for others; used by the answers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.calls import Sampling
from loopwright.core.samplers import SamplerRun, TracedSampler, sampler_shapes
from loopwright.engine.cuda.distributions import Asked
from loopwright.engine.cuda.sampling import RowSamplings, SamplingColumns, is_adjusting, is_special
from loopwright.engine.sampler import Question
from loopwright.engine.traced import by_graph, carried
from loopwright.engine.transfer import to_device


@dataclass(frozen=True, slots=True, eq=False)
class Some:
    """Some of a number of rows; `places` ascend, and `index` has them on the device."""

    places: NDArray[np.int64]
    index: Tensor | slice

    @classmethod
    def of(cls, places: Iterable[int], device: torch.device) -> "Some":
        found = np.fromiter(places, np.int64)
        are_first = not len(found) or found[-1] == len(found) - 1  # then a slice has them, which copies nothing
        return cls(found, slice(0, len(found)) if are_first else to_device(found, device))

    def __len__(self) -> int:
        return len(self.places)

    def in_(self, values: Tensor) -> Tensor:
        """Of the rows of `values`, these."""
        return values[self.index]


@dataclass(frozen=True, slots=True, eq=False)
class TracedAsks:
    """Rows with one sampler."""

    rows: Some
    graph: TracedSampler
    runs: Sequence[SamplerRun]
    seeds: NDArray[np.uint64]
    filtered: "DrawnAsks"  # if it gives scores
    gives_token: bool
    looks_at_place: bool  # at positions, or at the numbers of draws


@dataclass(frozen=True, slots=True, eq=False)
class TopAsks:
    """Rows that want to know the likeliest tokens, and how many of them."""

    rows: Some
    sizes: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class DrawnAsks:
    """Rows whose tokens are drawn by their samplings, and those of them that want to know the likeliest of what the
    filters leave."""

    rows: Some
    samplings: RowSamplings
    tops: TopAsks | None


@dataclass(frozen=True, slots=True, eq=False)
class Asks:
    """Of `questions`, one for each row."""

    questions: Sequence[Question]
    is_adjusted: bool  # whether anything acts on the logits of any of them before a token is chosen
    is_processed: NDArray[np.bool_]  # who wants to know processed log-probabilities
    sampling: Some  # who samples
    traced: Sequence[TracedAsks]
    common: DrawnAsks | None  # whom a draw says all that they want to know
    rare: DrawnAsks | None  # who needs the whole vocabulary in order
    tops: TopAsks | None  # of the model's distribution
    distributions: Sequence[Asked]

    @property
    def is_of_one_sampler(self) -> bool:
        """Whether all rows have the same, which gives a token, and nothing else is asked or acts before it."""
        is_one = len(self.traced) == 1 and len(self.traced[0].rows) == len(self.questions)
        return is_one and self.traced[0].gives_token and not (self.is_adjusted or self.tops or self.distributions)

    @classmethod
    def of(cls, questions: Sequence[Question], columns: SamplingColumns, device: torch.device) -> "Asks":
        some = partial(Some.of, device=device)
        traced = [row for row, one in enumerate(questions) if one.sampler is not None and one.sampling is not None]
        plain = [row for row, one in enumerate(questions) if one.sampler is None and one.sampling is not None]
        common = [row for row in plain if _is_common(questions[row].sampling)]
        rare = sorted(set(plain).difference(common))
        raw = {
            row: one.top_logprobs for row, question in enumerate(questions)
            if (one := question.sampling) is not None and one.top_logprobs and one.logprobs == "raw"
        }  # fmt: skip
        drawn = partial(_drawn, questions, columns, some)
        return cls(
            questions,
            any(one.allowed_bits is not None or is_adjusting(one.sampling or _PLAIN) for one in questions),
            np.array(
                [one.sampling is not None and one.sampling.logprobs == "processed" for one in questions], np.bool_
            ),
            some(sorted([*traced, *plain])),
            _traced(questions, traced, some, drawn),
            drawn(common) if common else None,
            drawn(rare) if rare else None,
            TopAsks(some(raw), list(raw.values())) if raw else None,
            [Asked(row, one) for row, question in enumerate(questions) for one in question.distributions],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Now:
    """What is different each time that the same is asked, by row."""

    positions: NDArray[np.int64]  # where the chosen tokens will stand
    fed: Tensor | None = None  # int64: one more token that each has written, or -1; counts for penalties
    has_failed: Tensor | None = None  # int32: 1 for rows that have failed before
    written: Callable[[], Sequence[Question]] | None = None  # the questions with what each has written, if they lack it
    states: Callable[[TracedAsks, int], Mapping[str, Tensor]] | None = (
        None  # what samplers carry, if their runs do not say
    )

    def carried(self, asks: TracedAsks, vocab_size: int, device: torch.device) -> Mapping[str, Tensor]:
        """What the rows begin their token with, as `traced.carried`."""
        if self.states is not None:
            return self.states(asks, vocab_size)
        return carried(asks.graph, asks.runs, vocab_size, device)


def _traced(
    questions: Sequence[Question], traced: Sequence[int], some: Callable[[Iterable[int]], Some],
    drawn: Callable[[Sequence[int]], DrawnAsks],
) -> list[TracedAsks]:  # fmt: skip
    runs = [run for row in traced if (run := questions[row].sampler) is not None]
    found = []
    for graph, numbers in by_graph(runs).items():
        rows = [traced[number] for number in numbers]
        seeds = np.array([one.seed for row in rows if (one := questions[row].sampling) is not None], np.uint64)
        mine = [runs[number] for number in numbers]
        gives_token = not sampler_shapes(graph)[graph.result]
        looks_at_place = any(node.op in ("position", "uniform", "draw") for node in graph.nodes)
        found.append(TracedAsks(some(rows), graph, mine, seeds, drawn(rows), gives_token, looks_at_place))
    return found


def _drawn(
    questions: Sequence[Question], columns: SamplingColumns, some: Callable[[Iterable[int]], Some], rows: Sequence[int]
) -> DrawnAsks:
    samplings = [one for row in rows if (one := questions[row].sampling) is not None]
    sizes = {
        number: one.top_logprobs for number, one in enumerate(samplings)
        if one.top_logprobs and one.logprobs == "processed"
    }  # fmt: skip
    mine = some(rows)
    device = columns.device
    tops = TopAsks(Some.of(sizes, device), list(sizes.values())) if sizes else None
    return DrawnAsks(mine, columns.of_adjusted(samplings), tops)


def _is_common(sampling: Sampling | None) -> bool:
    """Whether a draw says all of it."""
    return sampling is not None and not is_special(sampling)


_PLAIN = Sampling()
