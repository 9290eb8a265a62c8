"""Traced samplers in the engine equal the same functions run as Python, alone and in any batch."""

import random

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.core.calls import Sampling
from loopwright.core.samplers import SamplerRun
from loopwright.engine.draws import uniform as engine_uniform
from loopwright.engine.sampler import Question, answer, choose
from loopwright.sdk import tensor
from loopwright.sdk.token_by_token import run_eagerly, uniform
from sampler_rig import SAMPLERS, STATES, initial, started, traced

VOCAB = 101  # no multiple of a vector register's width


def random_logits(seed: int, num_rows: int = 1) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def run_of(name: str) -> SamplerRun:
    return SamplerRun(traced(SAMPLERS[name], STATES.get(name), VOCAB), initial(STATES.get(name), VOCAB))


def close(one: object, other: object) -> None:
    """Numbers and vectors of a state. exp and log may differ in the last bit between libraries."""
    if isinstance(one, bytes):
        assert other == pytest.approx(torch.frombuffer(bytearray(one), dtype=torch.float64).tolist(), rel=1e-12)
    else:
        assert other == pytest.approx(one, rel=1e-12)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_traced_sampler_equals_its_function_token_by_token(name: str, temperature: float) -> None:
    run, state = run_of(name), started(STATES.get(name), VOCAB)
    for step in range(25):
        logits = random_logits(step)
        result, state = run_eagerly(SAMPLERS[name], state, logits[0].double().tolist(), 7, step)
        is_token = isinstance(result, float)
        sampling = Sampling(seed=7, temperature=0.0 if is_token else temperature)
        (row,) = answer(logits, [Question((), sampling, step, sampler=run)])
        assert row.error is None
        expected = result if is_token else choose(torch.tensor(result, dtype=torch.float64), sampling, step)
        assert row.sampled[0].token_id == expected
        assert row.sampled[0].logprob == pytest.approx(float(logits[0].double().log_softmax(0)[int(expected)]), 1e-5)
        assert row.sampler_state is not None
        values = row.sampler_state.values()
        assert values.keys() == state.keys()
        for key, value in values.items():
            close(value, state[key])
        run = SamplerRun(run.graph, run.initial, row.sampler_state)


def test_a_traced_draw_is_the_draw_of_a_temperature() -> None:
    run = run_of("plain_draw")
    for seed in range(60):
        logits = random_logits(seed)
        (row,) = answer(logits, [Question((), Sampling(seed=seed), 9, sampler=run)])
        assert row.sampled[0].token_id == choose(logits[0], Sampling(temperature=1.0, seed=seed), 9)


def test_the_filters_that_programs_write_are_those_of_sampling() -> None:
    for seed in range(60):
        logits, cold = random_logits(seed), Sampling(temperature=0.8, top_p=0.9, seed=seed)
        (row,) = answer(logits, [Question((), Sampling(seed=seed), 3, sampler=run_of("nucleus"))])
        assert row.sampled[0].token_id == choose(logits[0], cold, 3)
        warm = Sampling(temperature=0.7, seed=seed)
        (row,) = answer(logits, [Question((), warm, 3, sampler=run_of("top_five"))])
        assert row.sampled[0].token_id == choose(logits[0], msgspec.structs.replace(warm, top_k=5), 3)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([None, *SAMPLERS]), min_size=1, max_size=12), st.integers(0, 1000))
def test_rows_of_any_samplers_in_one_batch_are_bit_equal_to_each_alone(names: list[str | None], seed: int) -> None:
    logits = random_logits(seed, len(names))
    questions = [
        Question((), Sampling(seed=seed + place), place, sampler=None if name is None else run_of(name))
        for place, name in enumerate(names)
    ]
    together = answer(logits, questions)
    for place, question in enumerate(questions):
        (alone,) = answer(logits[place : place + 1], [question])
        assert together[place].sampled == alone.sampled
        if alone.sampler_state is not None and together[place].sampler_state is not None:
            assert together[place].sampler_state.values() == alone.sampler_state.values()


def test_a_sampler_sees_penalties_bias_and_masks_and_its_scores_go_on_to_temperature_and_filters() -> None:
    def same(scores):
        return scores + 0.0

    graph = SamplerRun(traced(same, vocab_size=VOCAB), {})
    for seed in range(40):
        logits = random_logits(seed)
        sampling = Sampling(
            temperature=0.9, top_p=0.8, min_p=0.01, presence_penalty=1.5, repetition_penalty=1.2, seen=(4, 5),
            generated=(6, 6, 9), logit_bias={3: 2.0}, allowed=tuple(range(0, 90, 2)), seed=seed, top_logprobs=3,
        )  # fmt: skip
        with_sampler, without = answer(
            logits.expand(2, -1), [Question((), sampling, 5, (12,), sampler=graph), Question((), sampling, 5, (12,))]
        )
        assert with_sampler.sampled == without.sampled
        processed = msgspec.structs.replace(sampling, logprobs="processed")
        one, other = answer(
            logits.expand(2, -1), [Question((), processed, 5, sampler=graph), Question((), processed, 5)]
        )
        assert one.sampled[0].token_id == other.sampled[0].token_id
        assert one.sampled[0].logprob == pytest.approx(other.sampled[0].logprob)


WRONG = {
    "is not a token id": lambda scores: tensor.position() * 0 + 0.5,
    "101 is not a token id": lambda scores: tensor.position() * 0 + VOCAB,
    "not one of the 2 allowed": lambda scores: tensor.position() * 0,
    "the result is not a number": lambda scores: scores * 0 / 0.0,
    "highest score of what is allowed is -inf": lambda scores: tensor.where(tensor.ids() < 5, scores, float("-inf")),
    "draw: weights": lambda scores: tensor.draw(tensor.ids() * 0),
    "take: an index": lambda scores: scores[tensor.position() + 1000] + tensor.position(),
}


@pytest.mark.parametrize("why", WRONG)
def test_what_a_sampler_may_not_give_fails_its_row_alone(why: str) -> None:
    logits = random_logits(1, 2)
    bad = Question((), Sampling(allowed=(50, 60)), 2, sampler=SamplerRun(traced(WRONG[why], vocab_size=VOCAB), {}))
    good = Question((), Sampling(), 2, sampler=run_of("greedy"))
    one, other = answer(logits, [bad, good])
    assert one.error is not None
    assert one.error.type == "BadRequest"
    assert why in one.error.message
    assert other.sampled[0].token_id == int(logits[1].argmax())


def test_a_state_that_is_not_finite_fails_its_row() -> None:
    def lost(scores, state):
        return tensor.argmax(scores), {"x": state["x"] / 0}

    graph = traced(lost, {"x": 1.0}, VOCAB)
    (row,) = answer(random_logits(0), [Question((), Sampling(), 2, sampler=SamplerRun(graph, {"x": 1.0}))])
    assert row.error is not None
    assert "state 'x' is not finite" in row.error.message


def test_the_program_and_the_engine_draw_the_same_numbers() -> None:
    rng = random.Random(0)
    for _ in range(1000):
        seed, position = rng.randrange(2**62), rng.randrange(2**31)
        assert uniform(seed, position) == engine_uniform(seed, position)
