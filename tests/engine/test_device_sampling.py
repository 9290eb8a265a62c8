"""Questions answered together, and tokens drawn together, beside engine.sampler, which takes them one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from engine_rig import pairs

from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.core.samplers import SamplerRun
from loopwright.engine.cuda.answers import Answers
from loopwright.engine.cuda.processing import draw_open
from loopwright.engine.cuda.sampling import RowSamplings, SamplingColumns, draw_rows
from loopwright.engine.draws import draw, draw_each, uniform, uniforms
from loopwright.engine.sampler import Question, answer
from sampler_rig import SAMPLERS, STATES, initial, traced

CPU = torch.device("cpu")


def some_logits(num_rows: int, vocab_size: int = 3000, spread: float = 3.0, seed: int = 0) -> torch.Tensor:
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread
    logits[:, 11] = logits[:, 7]  # ties
    logits[:, 2] = logits[:, -20] = logits.amax(-1)
    return logits


FILTERS = [
    {},
    {"top_k": 1},
    {"top_k": 40},
    {"top_p": 0.5},
    {"top_p": 0.97},
    {"min_p": 0.05},
    {"top_k": 30, "top_p": 0.9, "min_p": 0.01},
    {"top_k": 200, "min_p": 0.3},
]


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
    ids, logprobs = draw_rows(logits, RowSamplings.of(samplings, CPU), positions, draw_open)
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


def questions() -> list[Question]:
    seen = (3, 7, 11, 4)
    written = (5, 5, 7, 20, 3)
    bits = np.packbits(np.arange(3000) % 3 == 0, bitorder="little").tobytes()
    hot = {"temperature": 1.0, "seed": 4}
    samplings = [
        Sampling(repetition_penalty=1.4, seen=seen, generated=written),
        Sampling(presence_penalty=1.5, frequency_penalty=-0.7, generated=written, **hot),
        Sampling(repetition_penalty=0.5, presence_penalty=-2.0, logit_bias={7: 3.0, 2: -9.0}, seen=seen, **hot),
        Sampling(logit_bias={1999: 40.0}),
        Sampling(allowed=(900, 5, 2, 2999, 5000), **hot),
        Sampling(allowed=(900, 5), top_k=20, **hot),
        Sampling(allowed=(5,)),
        Sampling(top_logprobs=5, **hot),
        Sampling(top_logprobs=5, logprobs="processed", **hot),
        Sampling(typical_p=0.5, **hot),
        Sampling(top_k=2000, **hot),
        Sampling(top_p=0.9999, temperature=5.0),
        Sampling(logprobs="processed", top_p=0.3, **hot),
    ]
    requests = (DistributionRequest(k=9, entropy=True), DistributionRequest(k=3000), DistributionRequest(k=20))
    made = [Question((), one, 40 + place, (5, 9)) for place, one in enumerate(samplings)]
    made += [
        Question((), Sampling(**hot), 3, (), bits),
        Question((), Sampling(repetition_penalty=1.7, generated=(0, 3, 6), **hot), 3, (9,), bits),
        Question(requests[:1]),
        Question(requests, Sampling(), 2),
        Question((requests[2], requests[0], requests[2]), Sampling(allowed=(1, 2), **hot), 2),
        Question((DistributionRequest(k=4, must_include=(17,)),)),
        Question((DistributionRequest(k=4, allowed=(17, 2)),)),
        Question((DistributionRequest(k=4, logits=True),)),
    ]
    made += [
        Question(
            (requests[2],), Sampling(**hot, presence_penalty=0.5), 5, (2, 900), bits if place % 2 else None,
            SamplerRun(traced(sampler, STATES.get(name, {})), initial(STATES.get(name, {}))),
        )
        for place, (name, sampler) in enumerate(SAMPLERS.items())
    ]  # fmt: skip
    return made


def together(logits: torch.Tensor, asked: Sequence[Question], fed: Fed | None = None) -> list[RowResult]:
    return Answers(logits, asked, SamplingColumns(CPU), draw_open, fed).results()


def test_questions_answered_together_get_what_each_gets_by_itself() -> None:
    asked = questions()
    logits = some_logits(len(asked), seed=2)
    logits[1, 40] = torch.nan
    for mine, theirs in zip(together(logits, asked), answer(logits, asked), strict=True):
        assert mine.error == theirs.error
        assert [one.token_id for one in mine.sampled] == [one.token_id for one in theirs.sampled]
        for one, other in zip(mine.sampled, theirs.sampled, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
            assert [token for token, _ in one.top_logprobs] == [token for token, _ in other.top_logprobs]
            assert [at for _, at in one.top_logprobs] == pytest.approx([at for _, at in other.top_logprobs], abs=1e-5)
        for one, other in zip(mine.distributions, theirs.distributions, strict=True):
            assert [token for token, _ in pairs(one)] == [token for token, _ in pairs(other)]
            assert [at for _, at in pairs(one)] == pytest.approx([at for _, at in pairs(other)], abs=1e-5)
            assert (one.truncated, one.allowed_mass, one.logits) == (other.truncated, other.allowed_mass, other.logits)
            assert one.covered == pytest.approx(other.covered, abs=1e-6)
            assert one.entropy == pytest.approx(other.entropy, abs=1e-6)
        assert (mine.sampler_state is None) == (theirs.sampler_state is None)
        if mine.sampler_state is not None and theirs.sampler_state is not None:
            assert mine.sampler_state.values() == theirs.sampler_state.values()
