"""Sampling and distributions against short references, with fixed seeds."""

import math
import random

import numpy as np
import pytest
import torch
from engine_rig import pairs

from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.engine.sampler import Question, answer, choose, distribution, uniform

VOCAB = 1000


def random_logits(seed: int, vocab_size: int = VOCAB, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


def reference_probabilities(logits: torch.Tensor, sampling: Sampling) -> np.ndarray:
    """The distribution that a token is drawn from, by the definitions, in plain Python floats."""
    values = {i: float(value) + sampling.logit_bias.get(i, 0.0) for i, value in enumerate(logits)}
    if sampling.allowed is not None:
        values = {i: value for i, value in values.items() if i in sampling.allowed}
    top = max(values.values())
    weights = {i: math.exp((value - top) / sampling.temperature) for i, value in values.items()}
    if sampling.top_k:
        least = sorted(weights.values(), reverse=True)[: sampling.top_k][-1]
        weights = {i: weight for i, weight in weights.items() if weight >= least}
    if sampling.top_p < 1:
        total, mass, kept = math.fsum(weights.values()), 0.0, {}
        for i in sorted(weights, key=lambda i: (-weights[i], i)):
            if mass >= sampling.top_p * total:
                break
            kept[i] = weights[i]
            mass += weights[i]
        weights = kept
    least = sampling.min_p * max(weights.values())
    weights = {i: weight for i, weight in weights.items() if weight >= least}
    total = math.fsum(weights.values())
    return np.array([weights.get(i, 0.0) / total for i in range(len(logits))])


def reference_choice(logits: torch.Tensor, sampling: Sampling, position: int) -> int:
    number, mass = uniform(sampling.seed, position), 0.0
    probabilities = reference_probabilities(logits, sampling)
    for i, probability in enumerate(probabilities):
        mass += probability
        if number < mass:
            return i
    return int(probabilities.nonzero()[0][-1])


SETTINGS = {
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 5.0},
    "top-k": {"temperature": 1.0, "top_k": 7},
    "top-p": {"temperature": 1.0, "top_p": 0.8},
    "a nucleus of most tokens": {"temperature": 20.0, "top_p": 0.95},
    "min-p": {"temperature": 1.5, "min_p": 0.05},
    "all": {"temperature": 1.2, "top_k": 50, "top_p": 0.9, "min_p": 0.02, "logit_bias": {3: 5.0, 900: -100.0}},
    "bias": {"temperature": 1.0, "logit_bias": {i: 4.0 for i in range(20)}},
    "allowed": {"temperature": 2.0, "allowed": (900, 5, 17, 44, 5, 100000)},
    "allowed and top-p": {"temperature": 2.0, "top_p": 0.7, "allowed": tuple(range(0, 1000, 3))},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_choice_equals_the_reference(setting: str) -> None:
    for seed in range(40):
        logits = random_logits(seed)
        sampling = Sampling(seed=seed * 77 + 1, **SETTINGS[setting])
        assert choose(logits, sampling, seed) == reference_choice(logits, sampling, seed)


@pytest.mark.parametrize("setting", SETTINGS)
def test_many_draws_follow_the_distribution(setting: str) -> None:
    """Pearson's chi-square over the cells that expect at least five draws, at six standard deviations."""
    logits, num_draws = random_logits(1, vocab_size=60, spread=1.5), 4000
    fields = SETTINGS[setting] | ({"allowed": (5, 17, 44, 59)} if "allowed" in SETTINGS[setting] else {})
    fields["logit_bias"] = {i: bias for i, bias in fields.get("logit_bias", {}).items() if i < 60}
    sampling = Sampling(seed=99, **fields)
    expected = reference_probabilities(logits, sampling) * num_draws
    observed = np.bincount([choose(logits, sampling, position) for position in range(num_draws)], minlength=60)
    assert observed[expected == 0].sum() == 0
    cells = expected >= 5
    statistic = float(((observed - expected)[cells] ** 2 / expected[cells]).sum())
    freedom = max(1, int(cells.sum()) - 1)
    assert statistic < freedom + 6 * math.sqrt(2 * freedom)


def test_greedy_takes_the_lowest_id_of_a_tie_wherever_it_lies() -> None:
    chance = random.Random(3)
    for _ in range(200):
        logits = torch.zeros(49152)
        tied = sorted(chance.sample(range(49152), 3))
        logits[tied] = 5.0
        assert choose(logits, Sampling(), 0) == tied[0]
        assert choose(logits, Sampling(allowed=(tied[2], tied[1])), 0) == tied[1]


def test_greedy_obeys_bias_and_allowed() -> None:
    logits = torch.tensor([1.0, 2.0, 3.0])
    assert choose(logits, Sampling(logit_bias={2: -5.0}), 0) == 1
    assert choose(logits, Sampling(logit_bias={0: 100.0}, allowed=(1, 2)), 0) == 2
    assert logits.tolist() == [1.0, 2.0, 3.0]  # the row itself is not changed


def test_top_k_one_and_a_tiny_top_p_are_greedy() -> None:
    for seed in range(20):
        logits = random_logits(seed)
        for sampling in (
            Sampling(temperature=3.0, top_k=1, seed=seed),
            Sampling(temperature=3.0, top_p=1e-9, seed=seed),
        ):
            assert choose(logits, sampling, seed) == int(logits.argmax())


def test_a_token_without_weight_is_never_drawn() -> None:
    logits = torch.tensor([-1e9, 0.0, -1e9, 0.0, -1e9])
    drawn = {choose(logits, Sampling(temperature=1.0, seed=seed), 0) for seed in range(300)}
    assert drawn == {1, 3}


def test_a_huge_vocabulary_of_equal_logits_needs_the_full_sort() -> None:
    logits = torch.zeros(5000)
    drawn = [choose(logits, Sampling(temperature=1.0, top_p=0.5, seed=seed), 0) for seed in range(200)]
    assert max(drawn) < 2500  # of equal weights, the lowest ids make the nucleus
    assert max(drawn) > 2000


def test_uniform_depends_on_seed_and_position_only_and_fills_the_interval() -> None:
    numbers = [uniform(seed, position) for seed in range(50) for position in range(100)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 1 for number in numbers)
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert float(((counts - 250) ** 2 / 250).sum()) < 19 + 6 * math.sqrt(38)
    assert uniform(2**62 - 1, 2**31 - 1) == uniform(2**62 - 1, 2**31 - 1)
    correlation = np.corrcoef(numbers[:-1], numbers[1:])[0, 1]
    assert abs(correlation) < 0.06


def test_uniform_keeps_its_published_values() -> None:
    """Changing the hash would silently change every seeded answer."""
    assert uniform(0, 0) == (0xE220A8397B1DCDAF >> 11) / 2**53  # the first output of SplitMix64 with seed 0
    assert uniform(0, 1) == (0x6E789E6AA1B965F4 >> 11) / 2**53  # and the second
    assert uniform(1, 0) == 0.7497482413580301


def test_a_row_is_answered_the_same_whatever_its_neighbours() -> None:
    rows = torch.stack([random_logits(seed) for seed in range(16)])
    questions = [
        Question([DistributionRequest(k=5)], Sampling(temperature=1.0, top_p=0.9, seed=seed), seed)
        for seed in range(16)
    ]
    together = answer(rows, questions)
    for row, question, result in zip(rows, questions, together, strict=True):
        [alone] = answer(row[None], [question])
        assert alone.token_id == result.token_id
        assert alone.logprob == pytest.approx(result.logprob, abs=1e-6)


def test_the_logprob_is_raw_whatever_the_sampling_does() -> None:
    logits = random_logits(4)
    expected = logits.double().log_softmax(0)
    sampling = Sampling(temperature=0.2, logit_bias={7: 50.0}, allowed=(7, 8))
    [result] = answer(logits[None], [Question(sampling=sampling)])
    assert result.token_id == 7
    assert result.logprob == pytest.approx(float(expected[7]), abs=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_fails_alone(value: float) -> None:
    rows = torch.stack([random_logits(seed) for seed in range(3)])
    rows[1, 500] = value
    results = answer(rows, [Question([DistributionRequest(k=3)], Sampling())] * 3)
    assert results[1].error is not None
    assert results[1].error.type == "InternalError"
    assert "not finite numbers" in results[1].error.message
    assert results[1].token_id is None
    for i in (0, 2):
        assert results[i].error is None
        assert results[i].token_id == int(rows[i].argmax())


def distribution_of(logits: torch.Tensor, **fields):
    return distribution(logits, float(logits.double().logsumexp(0)), DistributionRequest(**fields))


@pytest.mark.parametrize("k", [1, 5, 256, VOCAB])
def test_a_distribution_lists_the_k_most_probable_with_exact_logprobs(k: int) -> None:
    logits = random_logits(5)
    expected = logits.double().log_softmax(0)
    result = distribution_of(logits, k=k)
    listed = pairs(result)
    assert [token_id for token_id, _ in listed] == logits.argsort(descending=True, stable=True)[:k].tolist()
    np.testing.assert_allclose([one for _, one in listed], expected[[i for i, _ in listed]], atol=1e-5)
    assert result.covered == pytest.approx(sum(math.exp(one) for _, one in listed), abs=1e-6)
    assert result.tail_mass == pytest.approx(1 - result.covered, abs=1e-12)
    assert result.truncated == (k < VOCAB)


def test_ties_in_a_distribution_list_the_lowest_ids_first() -> None:
    logits = torch.zeros(500)
    logits[[400, 30, 99]] = 1.0
    assert [token_id for token_id, _ in pairs(distribution_of(logits, k=6))] == [30, 99, 400, 0, 1, 2]


def test_a_rank_is_the_place_in_the_whole_order() -> None:
    logits = torch.randn(300, generator=torch.Generator().manual_seed(1)).round(decimals=1)  # many ties
    order = [token_id for token_id, _ in pairs(distribution_of(logits, k=300))]
    for k in (1, 7):
        told = distribution_of(logits, k=k, must_include=tuple(range(300)), ranks=True)
        assert told.ranks is not None
        ranks = dict(zip(np.frombuffer(told.ids, "<i4"), np.frombuffer(told.ranks, "<i4"), strict=True))
        assert [ranks[token_id] for token_id in order] == [*range(1, 301)]
    assert distribution_of(logits, k=1).ranks is None


def test_must_include_ids_come_last_once_and_count_as_covered() -> None:
    logits = torch.tensor([0.0, 5.0, 1.0, 2.0])
    result = distribution_of(logits, k=2, must_include=(0, 1, 0))
    assert [token_id for token_id, _ in pairs(result)] == [1, 3, 0]
    assert result.tail_mass == pytest.approx(float(logits.double().softmax(0)[2]), abs=1e-6)
    assert result.truncated
    assert not distribution_of(logits, k=2, must_include=(0, 2)).truncated
