"""Questions answered together, and tokens drawn together, beside engine.sampler, which takes them one by one."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from loopwright.core.calls import Sampling
from loopwright.core.samplers import SamplerRun
from loopwright.engine.cuda.answers import Fed, Ways, answers_of
from loopwright.engine.cuda.processing import draw as draw_by_sorting
from loopwright.engine.cuda.sampling import RowSamplings, SamplingColumns, draw_rows, ordered_top
from loopwright.engine.cuda.traced_graphs import Found, TracedSamplers
from loopwright.engine.draws import draw, draw_each, uniform, uniforms
from loopwright.engine.sampler import Question, answer
from loopwright.engine.traced import TensorState
from loopwright.sdk import tensor
from questions_rig import assert_same, questions, some_logits
from sampler_rig import SAMPLERS, STATES, initial, traced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loopwright.core.batch import RowResult

CPU = torch.device("cpu")
WAYS = Ways(SamplingColumns(CPU), draw_by_sorting, ordered_top, TracedSamplers())


FILTERS = [
    {},
    {"top_k": 1},
    {"top_k": 40},
    {"top_p": 0.5},
    {"top_p": 0.97},
    {"min_p": 0.05},
    {"top_k": 30, "top_p": 0.9, "min_p": 0.01},
    {"top_k": 200, "min_p": 0.3},
    {"typical_p": 0.9},
    {"typical_p": 0.2, "top_p": 0.8, "min_p": 0.9},
]


def test_columns_lie_as_kernels_read_them() -> None:
    """A kernel adds the row's number to the address of the first."""
    columns = RowSamplings.of([Sampling(temperature=place + 1.0, top_k=place, top_p=0.5) for place in range(3)], CPU)
    for column in (columns.temperatures, columns.top_k, columns.top_p, columns.min_p):
        assert column.is_contiguous()
    assert columns.temperatures.flatten().tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("vocab_size", [260, 3000])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_rows_drawn_together_are_drawn_as_each_by_itself(vocab_size: int, temperature: float) -> None:
    logits = some_logits(3 * len(FILTERS), vocab_size)
    samplings = [
        Sampling(temperature=temperature if place % 5 else 0.0, seed=place,
                 logprobs="processed" if place % 2 else "raw", **fields)
        for place, fields in enumerate(itertools.chain(*[FILTERS] * 3))
    ]  # fmt: skip
    positions = np.arange(len(samplings)) * 7
    outputs = draw_rows(draw_by_sorting, logits, logits, RowSamplings.of(samplings, CPU), positions)
    ids, logprobs = outputs[0], outputs[1].view(torch.float32)
    expected = answer(logits, [Question((), one, int(at)) for one, at in zip(samplings, positions, strict=True)])
    for row, result in enumerate(expected):
        assert int(ids[row]) == result.token_id
        assert float(logprobs[row]) == pytest.approx(result.logprob, abs=1e-4)


def test_uniforms_and_draws_of_many_rows_are_those_of_one() -> None:
    seeds, positions = np.array([0, 1, 2**62 - 1, 77], np.uint64), np.array([0, 5, 2**31 - 2, 1])
    found = uniforms(seeds, positions)
    assert found.tolist() == [uniform(int(seed), int(at)) for seed, at in zip(seeds, positions, strict=True)]
    weights = torch.rand(4, 999, dtype=torch.float64)
    weights[0, :3] = weights[1, -2:] = weights[3] = 0.0
    weights[3, 5] = 1.0
    drawn = draw_each(weights, torch.from_numpy(found))
    assert drawn.tolist() == [draw(row, float(number)) for row, number in zip(weights, found, strict=True)]


def together(logits: torch.Tensor, asked: Sequence[Question], fed: Fed | None = None) -> list[RowResult]:
    return answers_of(logits, asked, WAYS, fed).results()


def test_questions_answered_together_get_what_each_gets_by_itself() -> None:
    asked = questions()
    logits = some_logits(len(asked), seed=2)
    logits[1, 40] = torch.nan
    assert_same(together(logits, asked), answer(logits, asked))
    few = [place for place in range(len(asked)) if place % 3]
    assert_same(together(logits[few], [asked[place] for place in few]), answer(logits[few], [asked[p] for p in few]))


def test_a_token_that_the_host_has_not_read_counts_for_penalties_and_a_source_that_failed_fails_its_row() -> None:
    hot = {"temperature": 1.0, "seed": 4}
    samplings = [
        Sampling(presence_penalty=2.0, frequency_penalty=2.0, repetition_penalty=3.0, generated=(7, 11), **hot),
        Sampling(frequency_penalty=-2.0, seen=(3,), **hot),
        Sampling(repetition_penalty=9.0),
        Sampling(**hot),
    ]
    logits = some_logits(4, 300)
    fed, failed = [int(logits[0].argmax()), 3, -1, 5], torch.tensor([False, False, False, True])
    known = [Question((), one, 9, (5, 2)) for one in samplings]
    found = together(logits, known, Fed(torch.tensor(fed), failed))
    whole = [
        Question((), one, 9, (5, 2) if token < 0 else (5, 2, token)) for one, token in zip(samplings, fed, strict=True)
    ]
    assert_same(found[:3], answer(logits, whole)[:3])
    assert found[3].error is not None


@pytest.mark.parametrize(
    ("why", "function", "fields"),
    [
        ("is not a token id", lambda scores: tensor.argmax(scores) + 0.5, {}),
        ("is not a token id", lambda scores: tensor.total(scores * 0) - 1, {}),
        ("is not one of the 2 allowed here", lambda scores: tensor.argmax(scores * 0) + 5, {"allowed": (1, 2)}),
        ("the highest score of what is allowed is", lambda scores: scores + float("-inf"), {}),
        ("weights must be finite", lambda scores: tensor.draw(scores * 0), {}),
        ("take: an index is not", lambda scores: tensor.log(scores[tensor.total(scores * 0) - 1] * 0 - 1), {}),
        ("the result is not a number", lambda scores: tensor.log(scores * 0 - 1), {}),
    ],
)
def test_what_a_sampler_may_not_give_fails_its_row_alone_in_the_same_words(
    why: str, function: Callable[..., object], fields: dict[str, object]
) -> None:
    bad = Question((), Sampling(**fields), 3, sampler=SamplerRun(traced(function), {}))
    good = Question((), Sampling(), 3, sampler=SamplerRun(traced(SAMPLERS["greedy"]), {}))
    logits = some_logits(3, 260)
    found, wanted = together(logits, [good, bad, good]), answer(logits, [good, bad, good])
    assert_same(found, wanted)
    assert found[1].error is not None
    assert why in found[1].error.message


def test_a_vector_that_a_sampler_carries_is_not_kept_by_a_row_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.engine.cuda.traced_rows._MAX_SHARED_BYTES", 100)
    run = SamplerRun(traced(SAMPLERS["presence"], STATES["presence"]), initial(STATES["presence"]))
    asked = [Question((), Sampling(), 3, sampler=run)] * 3
    logits = some_logits(3, 260)
    answers = answers_of(logits, asked, WAYS)
    assert_same(answers.results(), answer(logits, asked))
    for state in [answers.state_of(row) for row in range(3)]:
        assert isinstance(state, TensorState)
        assert len(state.columns["counts"]) == 1
        assert state.columns["counts"].untyped_storage().nbytes() == 8 * 260


class Static:
    """A captured function where nothing captures: what it found lies where it lay the first time."""

    def __init__(self, run: Callable[[], Found]) -> None:
        self._run, self._found = run, run()

    def replay(self) -> Found:
        now = self._run()
        for name in ("scores", "told", "chosen"):
            if (tensor_now := getattr(now, name)) is not None:
                getattr(self._found, name).copy_(tensor_now)
        for name, one in now.states.items():
            self._found.states[name].copy_(one.clone())
        return self._found


def test_a_sampler_that_comes_again_becomes_a_graph_with_the_same_answers() -> None:
    """Of any number of rows, each of which keeps what it carries."""
    captured: list[Static] = []
    samplers = TracedSamplers(lambda run: captured.append(Static(run)) or captured[-1])
    ways = Ways(SamplingColumns(CPU), draw_by_sorting, ordered_top, samplers)
    for name, function in SAMPLERS.items():
        graph, state = traced(function, STATES.get(name)), initial(STATES.get(name))
        runs, before = [SamplerRun(graph, state)] * 4, len(captured)
        for number in range(8):
            logits = some_logits(len(runs), 260, seed=number)
            asked = [Question((), Sampling(temperature=1.0 if name in ("top_five", "ranks", "presence", "odd_places")
                                           else 0.0, seed=place), number, sampler=one)
                     for place, one in enumerate(runs)]  # fmt: skip
            found, wanted = answers_of(logits, asked, ways).results(), answer(logits, asked)
            assert_same(found, wanted)
            runs = [SamplerRun(graph, state, one.sampler_state) for one in found][: 4 - (number == 5)]
        assert len(captured) == before + 1, name


def test_few_graphs_of_samplers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.engine.cuda.traced_graphs.MAX_GRAPHS", 2)
    samplers = TracedSamplers(Static)
    graphs = [traced(SAMPLERS[name]) for name in ("greedy", "plain_draw", "nucleus")]
    sent = np.zeros((2, 1))
    for graph in [*graphs, graphs[0]] * 6:
        samplers.run(graph, logits := some_logits(1, 260), logits, sent, {})
        assert len(samplers._kept) <= 2


def test_of_those_that_tie_for_the_last_place_the_lowest_ids_are_listed() -> None:
    values = torch.zeros(2, 3000)
    values[1, 2000:] = 1.0
    for dtype in (torch.float32, torch.float64):
        assert ordered_top(values.to(dtype), 3)[1].tolist() == [[0, 1, 2], [2000, 2001, 2002]]
