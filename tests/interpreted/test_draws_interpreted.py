"""Draws, and what acts before them, by the kernels, beside the sampler that does one row after the other."""

import itertools

import numpy as np
import pytest
import torch

from loopwright.core.calls import Sampling
from loopwright.engine.cuda import filter_kernels, search_kernels
from loopwright.engine.cuda.buffers import DecodeBuffers
from loopwright.engine.cuda.kernels import TritonOperations
from loopwright.engine.cuda.operations import TorchOperations
from loopwright.engine.cuda.row_adjustments import AdjustmentTables
from loopwright.engine.cuda.sampling import RowSamplings, draw_rows
from loopwright.engine.sampler import Question, answer, choose

CPU = torch.device("cpu")
FILTERS = [
    {},
    {"top_p": 0.97},
    {"top_k": 50},
    {"top_p": 0.999, "min_p": 0.001},
    {"top_k": 1, "top_p": 0.2},
    {"top_k": 3000, "top_p": 0.6},
    {"top_k": 9000},
    {"min_p": 0.2},
    {"top_p": 0.01},
    {"typical_p": 0.9},
    {"typical_p": 0.3, "top_k": 40},
    {"typical_p": 0.8, "top_p": 0.5, "min_p": 0.7},
]


def some_rows(num: int, spread: float) -> torch.Tensor:
    logits = torch.randn(num, 5003, generator=torch.Generator().manual_seed(7)) * spread
    logits[:, 5] = logits[:, 4999] = logits[:, 7]
    logits[1::3] = (logits[1::3] * 2).round() / 2  # hundreds tie, on both sides of where programs meet
    logits[2::3, 5000:] = -0.0
    return logits


@pytest.mark.parametrize(("spread", "temperature"), [(1.0, 2.0), (5.0, 0.7), (0.01, 0.5)])
def test_each_row_draws_from_what_its_own_filters_leave(spread: float, temperature: float) -> None:
    """Rows that ask for different things beside each other: each is read by its own place in the columns."""
    samplings = [
        Sampling(temperature=temperature, seed=place, logprobs="processed" if place % 2 else "raw", **one)
        for place, one in enumerate(itertools.chain(FILTERS, FILTERS, FILTERS))
    ]
    samplings[4] = Sampling()
    samplings[11] = Sampling(logprobs="processed")
    logits = some_rows(len(samplings), spread)
    positions = np.arange(len(samplings)) + 100
    columns = RowSamplings.of(samplings, CPU)
    found = draw_rows(TritonOperations().draw, logits, logits, columns, positions)
    expected = answer(logits, [Question((), one, int(at)) for one, at in zip(samplings, positions, strict=True)])
    assert found[0].tolist() == [one.token_id for one in expected]
    assert found[1].view(torch.float32).tolist() == pytest.approx([one.logprob for one in expected], abs=1e-4)
    assert not found[2].any()


class Spy:
    """Launches a kernel, and keeps the `number`th of what it was given as it was before."""

    def __init__(self, kernel, number):
        self.kernel, self.number, self.seen = kernel, number, []

    def __getitem__(self, grid):
        def launch(*given, **options):
            self.seen.append(given[self.number].tolist())
            return self.kernel[grid](*given, **options)

        return launch


USUAL = [
    (1.0, {"top_k": 50}),
    (1.0, {"top_p": 0.9}),  # half of the vocabulary
    (1.0, {"top_p": 0.5}),
    (20.0, {"top_p": 0.9}),  # a few tokens
    (3.0, {"top_p": 0.99}),
    (0.1, {"top_p": 0.9}),
    (2.5, {"top_k": 100, "top_p": 0.9}),
    (4.0, {"top_k": 40, "top_p": 0.95, "min_p": 0.05}),
]
UNUSUAL = [
    (1.0, {"top_k": 9000}),  # more than there is room for
    (0.0, {"top_p": 0.9}),  # all are equal
    (3.0, {"typical_p": 0.9, "top_p": 0.9}),
    (1.0, {"top_p": 0.9, "min_p": 0.4}),  # which acts among those that are not gathered
]


def test_usual_rows_are_settled_among_few_scores_and_the_others_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(1, 50000, generator=torch.Generator().manual_seed(3))
    logits = torch.cat([logits * spread for spread, _ in [*USUAL, *UNUSUAL]])
    samplings = [Sampling(temperature=1.0, seed=place, **one) for place, (_, one) in enumerate([*USUAL, *UNUSUAL])]
    spy = Spy(search_kernels.search, 7)
    monkeypatch.setattr(search_kernels, "search", spy)
    columns, positions = RowSamplings.of(samplings, CPU), np.arange(len(samplings))
    found = draw_rows(TritonOperations().draw, logits, logits, columns, positions)[0]
    expected = [choose(row, one, place) for place, (row, one) in enumerate(zip(logits, samplings, strict=True))]
    assert found.tolist() == expected
    ways = [filter_kernels.SETTLED.value] * len(USUAL) + [filter_kernels.WHOLE.value] * len(UNUSUAL)
    assert spy.seen == [ways]


def misled(monkeypatch: pytest.MonkeyPatch, wrong: float) -> Spy:
    """Has bounds guessed that are so far off; sees the rows' ways behind."""
    bounding, spy = filter_kernels.bound, Spy(search_kernels.search, 7)

    class Misled:
        def __getitem__(self, grid):
            def launch(*given, **options):
                bounding[grid](*given, **options)
                edges, limits = given[10:12]
                edges += wrong
                limits[1] += wrong  # whence distances are guessed

            return launch

    monkeypatch.setattr(filter_kernels, "bound", Misled())
    monkeypatch.setattr(search_kernels, "search", spy)
    return spy


def test_where_what_is_kept_for_sure_is_more_than_a_nucleus_the_row_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row so long that not all above its bounds is gathered: what is, would end the nucleus too low."""
    logits = torch.randn(1, 50000, generator=torch.Generator().manual_seed(3))
    spy = misled(monkeypatch, -0.2)
    columns = RowSamplings.of([Sampling(temperature=1.0, top_p=0.5)], CPU)
    numbers = torch.tensor([1 - 2.0**-53], dtype=torch.float64)  # the last token that is kept
    found = TritonOperations().draw(logits, logits, columns, numbers)
    assert torch.equal(found[0], TorchOperations().draw(logits, logits, columns, numbers)[0])
    assert spy.seen == [[filter_kernels.WHOLE.value]]


@pytest.mark.parametrize("wrong", [-2.0, 2.0])
def test_where_the_guess_of_a_bound_is_wrong_the_row_is_read_again(
    monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    """Whatever lies between the bounds, a row is settled there only if its last kept score is."""
    filters = [{"top_p": 0.9}, {"top_k": 30}, {"typical_p": 0.9}, {"typical_p": 0.3}, {"top_p": 0.5}]
    logits = some_rows(5, 3.0)
    samplings = [Sampling(temperature=1.0, seed=3, **one) for one in filters]
    spy = misled(monkeypatch, wrong)
    columns = RowSamplings.of(samplings, CPU)
    for numbers in torch.tensor([[0.0] * 5, [0.3] * 5, [0.9] * 5, [1 - 2.0**-53] * 5], dtype=torch.float64):
        found = TritonOperations().draw(logits, logits, columns, numbers)
        assert torch.equal(found[0], TorchOperations().draw(logits, logits, columns, numbers)[0])
    assert filter_kernels.WHOLE.value in spy.seen[0]


@pytest.mark.parametrize("filters", [{}, {"top_k": 7}, {"top_p": 0.9}])
def test_kinds_of_launches_draw_alike_and_numbers_at_the_ends_fall_on_what_is_kept(filters: dict[str, float]) -> None:
    logits = some_rows(3, 1.0)
    columns = RowSamplings.of([Sampling(temperature=1.0, **filters)] * 3, CPU)
    for number in (0.0, 1 - 2.0**-53):
        numbers = torch.full((3,), number, dtype=torch.float64)
        found = TritonOperations().draw(logits, logits, columns, numbers)
        assert torch.equal(found[0], TorchOperations().draw(logits, logits, columns, numbers)[0])


def test_a_row_that_is_not_finite_fails_alone_and_what_is_not_allowed_is_no_failure() -> None:
    logits = some_rows(4, 1.0)
    logits[1, 4500], logits[2, 3] = torch.nan, -torch.inf
    scores = logits.clone()
    scores[3] = torch.where(torch.arange(5003) % 1000 == 1, scores[3], -torch.inf)
    samplings = [Sampling(temperature=1.0, top_p=0.9, seed=3)] * 3 + [Sampling(temperature=1.0, top_k=40, seed=3)]
    found = draw_rows(TritonOperations().draw, logits, scores, RowSamplings.of(samplings, CPU), np.arange(4))
    assert found[2].tolist() == [0, 1, 1, 0]
    assert int(found[0, 0]) == choose(logits[0], samplings[0], 0)
    assert int(found[0, 3]) == choose(scores[3], samplings[3], 3)
    assert int(found[0, 3]) % 1000 == 1


def test_the_likeliest_are_torchs_and_a_row_that_is_not_finite_fails_alone() -> None:
    logits = some_rows(6, 3.0)
    logits[1, 4500], logits[2, 3], logits[3, 4096] = torch.nan, -torch.inf, torch.inf
    logits[4, [40, 4097]] = 99.0  # of two in different programs the first
    found = []
    for operations in (TritonOperations(), TorchOperations()):
        buffers = DecodeBuffers.make(6, 1, 0, CPU)
        buffers.failed[5], buffers.advance[:] = 1, 1
        operations.end_greedy(buffers, 6, logits)
        found.append(buffers)
    mine, theirs = (one.outputs for one in found)
    assert mine[2].tolist() == theirs[2].tolist() == [0, 1, 1, 1, 0, 1]
    good = [0, 4, 5]
    assert torch.equal(mine[0, good], theirs[0, good])
    assert mine[0, 4] == 40
    assert mine[1, good].view(torch.float32).tolist() == pytest.approx(
        theirs[1, good].view(torch.float32).tolist(), abs=1e-5
    )
    assert torch.equal(found[0].inputs[1:], found[1].inputs[1:])


def test_rows_are_adjusted_by_their_lines_and_what_they_choose_is_counted_there() -> None:
    logits, tables = some_rows(5, 3.0), AdjustmentTables.make(6, 5003, CPU)
    tables.lines[:5] = torch.tensor([3, -1, 0, -1, 5], dtype=torch.int32)
    generator = torch.Generator().manual_seed(1)
    tables.counts[:] = torch.randint(0, 5, (6, 5003), generator=generator)
    tables.biases[3, ::2], tables.biases[0, 100:] = 1.5, -torch.inf
    tables.penalties[[0, 3, 5]] = torch.tensor([[1.3, 0.5, 0.25], [1e-39, 0.0, -2.0], [1.0, 0.0, 0.0]]).double()
    operations, before = (TritonOperations(), TorchOperations()), tables.counts.clone()
    mine, theirs = (one.adjust(logits, tables) for one in operations)
    assert torch.equal(mine, theirs)
    assert torch.equal(mine[1], logits[1])
    assert not torch.equal(mine[0], logits[0])
    counts = []
    for one in operations:
        tables.counts.copy_(before)
        one.note(tables, torch.tensor([5, 5, 5002, 0, 9], dtype=torch.int32))
        counts.append(tables.counts.clone())
    assert torch.equal(*counts)
    changed = (counts[0] - before).nonzero().tolist()
    assert changed == [[0, 5002], [3, 5], [5, 9]]
