"""Questions of every kind about rows of logits, and whether two answers say the same. Knows no device."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from loopwright.core.batch import RowResult
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.core.results import Distribution
from loopwright.core.samplers import SamplerRun
from loopwright.engine.sampler import Question
from sampler_rig import SAMPLERS, STATES, initial, traced


def some_logits(num_rows: int, vocab_size: int = 3000, spread: float = 3.0, seed: int = 0) -> torch.Tensor:
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread
    logits[:, 11] = logits[:, 7]  # ties
    logits[:, 2] = logits[:, -20] = logits.amax(-1)
    return logits


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
        Sampling(top_logprobs=5, logprobs="processed", top_p=0.6, **hot),
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
        Question((DistributionRequest(k=4, must_include=(17, 2, 2999, 17), ranks=True),)),
        Question((DistributionRequest(k=4, allowed=(17, 2)), DistributionRequest(k=1, entropy=True))),
        Question((DistributionRequest(k=4, allowed=(17, 2, 40), must_include=(5, 40), ranks=True, entropy=True),)),
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


def assert_same(mine: Sequence[RowResult], theirs: Sequence[RowResult]) -> None:
    """Equal, up to the rounding of sums."""
    for place, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        assert one.error == other.error, place
        assert [token.token_id for token in one.sampled] == [token.token_id for token in other.sampled], place
        for found, wanted in zip(one.sampled, other.sampled, strict=True):
            assert found.logprob == pytest.approx(wanted.logprob, abs=1e-5), place
            _assert_pairs(found.top_logprobs, wanted.top_logprobs)
        for found, wanted in zip(one.distributions, other.distributions, strict=True):
            _assert_pairs(pairs_of(found), pairs_of(wanted))
            assert (found.truncated, found.logits, found.ranks) == (wanted.truncated, wanted.logits, wanted.ranks)
            for name in ("covered", "tail_mass", "entropy", "allowed_mass"):
                one_value, other_value = getattr(found, name), getattr(wanted, name)
                assert (one_value is None) == (other_value is None), (place, name)
                if other_value is not None:
                    assert one_value == pytest.approx(other_value, rel=1e-6, abs=1e-6), (place, name)
        assert (one.sampler_state is None) == (other.sampler_state is None)
        if one.sampler_state is not None and other.sampler_state is not None:
            _assert_states(one.sampler_state.values(), other.sampler_state.values())


def pairs_of(one: Distribution) -> list[tuple[int, float]]:
    """Ids and log-probabilities."""
    ids, logprobs = np.frombuffer(one.ids, "<i4").tolist(), np.frombuffer(one.logprobs, "<f4").tolist()
    return list(zip(ids, logprobs, strict=True))


def _assert_pairs(found: Sequence[tuple[int, float]], wanted: Sequence[tuple[int, float]]) -> None:
    assert [token for token, _ in found] == [token for token, _ in wanted]
    assert [at for _, at in found] == pytest.approx([at for _, at in wanted], abs=1e-5)


def _assert_states(found: dict, wanted: dict) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        mine = np.frombuffer(found[name]) if isinstance(value, bytes) else found[name]
        assert mine == pytest.approx(np.frombuffer(value) if isinstance(value, bytes) else value, abs=1e-9), name
