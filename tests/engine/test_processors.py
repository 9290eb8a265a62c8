"""Every processor against transformers' own or its definition, their order, and both kinds of log-probabilities."""

import math
import random
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_rig import pairs
from test_sampler import distribution_of, random_logits
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.engine.sampler import Question, answer, choose, distribution, process

VOCAB = 60
PROCESSORS = (
    "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "allowed",
    "temperature", "top_k", "typical_p", "top_p", "min_p",
)  # fmt: skip
SEEN, GENERATED = (1, 5, 9, 9, 30), (5, 7, 7, 7, 44)
EVERYTHING = Sampling(
    repetition_penalty=1.7, presence_penalty=0.9, frequency_penalty=0.6, logit_bias={3: 2.5, 7: 1.5, 41: -3.0},
    allowed=(*range(0, VOCAB, 2), 5, 7, 9), temperature=1.4, top_k=22, typical_p=0.9, top_p=0.85, min_p=0.08,
    seen=SEEN, generated=GENERATED,
)  # fmt: skip

Scores = torch.Tensor  # [1, vocab_size] float64, -inf where a token is out


WARPERS = {
    "repetition_penalty": RepetitionPenaltyLogitsProcessor,
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "typical_p": TypicalLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
}


def apply(name: str, sampling: Sampling, scores: Scores) -> Scores:
    """One processor by transformers' class, or by its definition where transformers has none."""
    value = getattr(sampling, name)
    if name in WARPERS:
        return WARPERS[name](value)(torch.tensor([[*sampling.seen, *sampling.generated]]), scores.clone())
    added = torch.zeros(scores.shape[1], dtype=scores.dtype)
    if name == "allowed":
        added[[i for i in range(len(added)) if i not in value]] = -math.inf
    elif name == "logit_bias":
        added[list(value)] = torch.tensor(list(value.values()), dtype=scores.dtype)
    else:  # OpenAI's definition: presence counts once for each token that was generated, frequency each time
        for token_id in set(sampling.generated) if name == "presence_penalty" else sampling.generated:
            added[token_id] -= value
    return scores + added


def reference(logits: torch.Tensor, sampling: Sampling, names: tuple[str, ...]) -> np.ndarray:
    """Probabilities after the named processors, in that order: [vocab_size]."""
    scores = logits.double()[None]
    for name in names:
        scores = apply(name, sampling, scores)
    return scores.softmax(-1)[0].numpy()


def probabilities(logits: torch.Tensor, sampling: Sampling) -> np.ndarray:
    candidates = process(logits, sampling)
    dense = np.zeros(len(logits))
    ids = np.arange(len(logits)) if candidates.ids is None else candidates.ids.numpy()
    dense[ids] = candidates.weights.numpy() / float(candidates.weights.sum())
    return dense


def only(*names: str) -> Sampling:
    """The named processors of EVERYTHING, with what penalties count."""
    chosen = {name: getattr(EVERYTHING, name) for name in names}
    return Sampling(**{"temperature": 1.0, "seen": SEEN, "generated": GENERATED, **chosen})


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    assert (found > 0).tolist() == (expected > 0).tolist()
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("name", PROCESSORS)
def test_each_processor_alone_equals_its_definition(name: str) -> None:
    for seed in range(60):
        logits = random_logits(seed, VOCAB, spread=2.0)
        assert_same(probabilities(logits, only(name)), reference(logits, only(name), (name,)))


@pytest.mark.parametrize("seed", range(60))
def test_random_mixes_of_processors_equal_theirs_in_order(seed: int) -> None:
    chance = random.Random(seed)
    names = tuple(name for name in PROCESSORS if chance.random() < 0.6)
    logits = random_logits(seed, VOCAB, spread=chance.choice([0.5, 2.0, 6.0]))
    assert_same(probabilities(logits, only(*names)), reference(logits, only(*names), names))


def test_typical_keeps_what_transformers_keeps_in_a_large_vocabulary() -> None:
    for typical_p in (0.05, 0.2, 0.5, 0.95, 0.999):
        logits = random_logits(3, 5000)
        sampling = Sampling(temperature=0.7, typical_p=typical_p)
        assert_same(probabilities(logits, sampling), reference(logits, sampling, ("temperature", "typical_p")))


def swaps() -> list[tuple[str, str]]:
    """Neighbours in the order whose exchange can show; additions, and a mask beside what changes no ranks, commute."""
    commuting = {
        ("presence_penalty", "frequency_penalty"), ("frequency_penalty", "logit_bias"), ("logit_bias", "allowed"),
        ("allowed", "temperature"), ("temperature", "top_k"),
    }  # fmt: skip
    return [pair for pair in pairwise(PROCESSORS) if pair not in commuting]


@pytest.mark.parametrize(
    ("first", "second"),
    [*swaps(), ("frequency_penalty", "temperature"), ("allowed", "top_k"), ("temperature", "typical_p")],
)
def test_the_order_is_the_documented_one_wherever_it_shows(first: str, second: str) -> None:
    num_different = 0
    for seed in range(60):
        logits = random_logits(seed, VOCAB, spread=2.0)
        found = probabilities(logits, only(first, second))
        assert_same(found, reference(logits, only(first, second), (first, second)))
        num_different += not np.allclose(found, reference(logits, only(first, second), (second, first)), atol=1e-6)
    assert num_different > 0


def test_the_order_is_that_of_the_fields_and_of_the_page_about_it() -> None:
    page = (Path(__file__).parents[2] / "docs/sampling.md").read_text()
    listed = re.findall(r"^\| \d+ \| `(\w+)`", page, re.MULTILINE)
    assert tuple(listed) == PROCESSORS
    assert [name for name in Sampling.__struct_fields__ if name in PROCESSORS] == list(PROCESSORS)


def test_penalties_count_what_a_row_generated_beside_the_lists() -> None:
    for seed in range(20):
        logits = random_logits(seed, VOCAB)
        listed = Sampling(repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.7, generated=(4, 4, 8, 9))
        apart = Sampling(repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.7, generated=(4, 8))
        assert choose(logits, listed, 0) == choose(logits, apart, 0, generated=[9, 4])


def test_presence_and_frequency_do_not_count_the_prompt() -> None:
    logits = random_logits(1, VOCAB)
    sampling = Sampling(temperature=1.0, presence_penalty=2.0, frequency_penalty=2.0, seen=SEEN)
    assert_same(probabilities(logits, sampling), logits.double().softmax(0).numpy())


def sampled(logits: torch.Tensor, sampling: Sampling) -> tuple[int, float, tuple[tuple[int, float], ...]]:
    [result] = answer(logits[None], [Question(sampling=sampling, position=3)])
    [one] = result.sampled
    return one.token_id, one.logprob, one.top_logprobs


@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_processed_logprobs_are_of_the_distribution_that_is_drawn_from(spread: float) -> None:
    settings = {name: getattr(EVERYTHING, name) for name in EVERYTHING.__struct_fields__}
    for seed in range(40):
        logits = random_logits(seed, VOCAB, spread)
        expected = np.log(np.maximum(reference(logits, EVERYTHING, PROCESSORS), 1e-300))
        sampling = Sampling(**{**settings, "seed": seed, "logprobs": "processed", "top_logprobs": 20})
        token_id, logprob, top = sampled(logits, sampling)
        assert logprob == pytest.approx(expected[token_id], abs=1e-5)
        possible = [i for i in np.argsort(-expected, kind="stable").tolist() if expected[i] > -600][:20]
        assert [i for i, _ in top] == possible
        np.testing.assert_allclose([one for _, one in top], expected[possible], atol=1e-5)


def test_raw_logprobs_are_the_models_own_whatever_is_processed() -> None:
    settings = {name: getattr(EVERYTHING, name) for name in EVERYTHING.__struct_fields__}
    for seed in range(40):
        logits = random_logits(seed, VOCAB)
        expected = logits.double().log_softmax(0).numpy()
        token_id, logprob, top = sampled(logits, Sampling(**{**settings, "seed": seed, "top_logprobs": 5}))
        assert logprob == pytest.approx(expected[token_id], abs=1e-5)
        assert [i for i, _ in top] == np.argsort(-expected, kind="stable")[:5].tolist()
        np.testing.assert_allclose([one for _, one in top], expected[[i for i, _ in top]], atol=1e-5)


def test_at_temperature_zero_the_chosen_token_is_all_that_is_left() -> None:
    logits = random_logits(2, VOCAB)
    token_id, logprob, top = sampled(logits, Sampling(logprobs="processed", top_logprobs=4))
    assert (token_id, logprob, top) == (int(logits.argmax()), 0.0, ((token_id, 0.0),))


def test_entropy_and_logits_are_of_the_whole_vocabulary() -> None:
    logits = random_logits(6)
    expected = torch.distributions.Categorical(logits=logits.double()).entropy()
    request = DistributionRequest(k=3, entropy=True, logits=True)
    result = distribution(logits, float(logits.double().logsumexp(0)), request)
    assert result.entropy == pytest.approx(float(expected), abs=1e-9)
    assert np.frombuffer(result.logits, "<f4").tolist() == logits.tolist()
    assert (distribution_of(logits).entropy, distribution_of(logits).logits) == (None, None)


def test_a_masked_distribution_is_exact_and_says_what_the_mask_had() -> None:
    logits, allowed = random_logits(7), (3, 900, 40, 41, 3)
    normalizer = float(logits.double().logsumexp(0))
    request = DistributionRequest(k=3, must_include=(8, 900), allowed=allowed, entropy=True, logits=True)
    result = distribution(logits, normalizer, request)
    ids = sorted(set(allowed), key=lambda i: -float(logits[i]))
    within = logits.double()[ids].log_softmax(0)
    expected = dict(zip(ids, within.tolist(), strict=True)) | {8: -math.inf}
    listed = pairs(result)
    assert [i for i, _ in listed] == [*ids[:3], *(i for i in (8, 900) if i not in ids[:3])]
    np.testing.assert_allclose([one for _, one in listed], [expected[i] for i, _ in listed], atol=1e-5)
    assert result.allowed_mass == pytest.approx(float(logits.double().softmax(0)[ids].sum()), abs=1e-6)
    assert result.entropy == pytest.approx(-float((within.exp() * within).sum()), abs=1e-6)
    assert result.truncated == (len(set(allowed) - {i for i, _ in listed}) > 0)
    assert np.frombuffer(result.logits, "<f4").tolist() == logits.tolist()
    whole = distribution(logits, normalizer, DistributionRequest(k=1000, allowed=allowed))
    assert sorted(i for i, _ in pairs(whole)) == sorted(set(allowed))
    assert (whole.covered, whole.truncated) == (pytest.approx(1.0, abs=1e-6), False)


@pytest.mark.parametrize("penalty", [1e-40, 1e-300, 5e-324])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_penalty_near_zero_is_a_choice_among_what_it_lifts(penalty: float, temperature: float) -> None:
    logits = random_logits(1, VOCAB)
    logits[5] = 0.0
    lifted = logits.argmax().item()
    for kind in ("raw", "processed"):
        sampling = Sampling(
            repetition_penalty=penalty, seen=(lifted, 5), temperature=temperature, logprobs=kind, top_logprobs=3
        )
        [result] = answer(logits[None], [Question(sampling=sampling)])
        assert result.token_id == lifted
        assert math.isfinite(result.logprob)
