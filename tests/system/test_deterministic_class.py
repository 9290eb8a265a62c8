"""Cases G1, I1 and I3 in the deterministic class: over the native kernels a request's tokens are those of a one-request
loop over the same kernels, and its log-probabilities have the same bits whatever else runs."""

import asyncio
import random
from typing import Any

import pytest
import test_case_g1_prefixes as g1
import test_case_i1_neighbours as i1
import test_case_i3_one_answer as i3
import torch
from http_rig import served

from kernels_here import needs_kernels
from loopwright.core.calls import Sampling
from loopwright.core.model_info import WeightDtype
from loopwright.engine.attention import AttentionRow
from loopwright.engine.byte_model import byte_model
from loopwright.engine.kv_cache import BLOCK_SIZE
from loopwright.engine.model_runner import SCRATCH_BYTES
from loopwright.engine.native.build import load_kernels
from loopwright.engine.native.cache import NativeKvCache
from loopwright.engine.native.choice import weight_types
from loopwright.engine.native.decoder import NativeDecoder
from loopwright.engine.oracle import Oracle
from loopwright.weights.store import cache_folder
from system_rig import byte_system, in_loop, together

DTYPES: list[WeightDtype] = ["bfloat16", "int8"]

pytestmark = needs_kernels


class KernelOracle(Oracle):
    """The one-request loop over the kernels: the whole sequence again for every token, in a cache of its own."""

    def __init__(self, dtype: WeightDtype, num_blocks: int = 32) -> None:
        model = byte_model(max_context=num_blocks * BLOCK_SIZE)
        super().__init__(model)
        self._cache = NativeKvCache(model.config, num_blocks)
        kernels = load_kernels(cache_folder())
        self._decoder = NativeDecoder(
            model,
            kernels,
            self._cache,
            weight_type=weight_types(dtype, model),
            num_threads=1,
            scratch_bytes=SCRATCH_BYTES,
        )

    def logits(self, token_ids: Any, positions: Any = None, is_visible: Any = None) -> torch.Tensor:
        assert is_visible is None
        places = torch.tensor(list(range(len(token_ids))) if positions is None else list(positions))
        row = AttentionRow(list(range(self._cache.num_blocks)), 0, len(token_ids))
        hidden = self._decoder.forward(self._decoder.embed(torch.tensor(token_ids)), places, [row])
        return self._decoder.logits(self._decoder.normalize(hidden))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("feature", i3.FEATURES)
def test_one_request_has_one_answer_whichever_way_it_is_taken(feature: str, dtype: WeightDtype) -> None:
    i3.hold_one_answer(feature, KernelOracle(dtype), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_prompt_has_the_same_bits_cold_warm_forked_and_after_it_was_evicted(dtype: WeightDtype) -> None:
    async def scenario() -> None:
        async with byte_system(num_blocks=16, dtype=dtype) as system:
            cold = await g1.generate(system)
            warm = await g1.generate(system)
            forked = await g1.generate(system, forks=True)
            for letter in "abcd":
                await g1.generate(system, letter * 150)  # takes more blocks than were empty
            again = await g1.generate(system)
        expected = KernelOracle(dtype).generate([256, *g1.PROMPT.encode()], Sampling(), g1.NUM_TOKENS)
        assert cold[0] == list(expected.tokens)
        assert cold[1] == pytest.approx(expected.logprobs, abs=1e-5)
        assert [one[:2] for one in (warm, forked, again)] == [cold[:2]] * 3
        assert [one[2] for one in (cold, warm, again)] == [0, g1.FULL_PAGES, 0]

    in_loop(scenario)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [i1.OPTIONS, i1.EVERYTHING], ids=["nucleus", "everything"])
def test_mixes_of_neighbours_change_no_bit(options: dict[str, Any], dtype: WeightDtype) -> None:
    async def scenario() -> None:
        rng = random.Random(0)
        async with byte_system(num_blocks=1024, dtype=dtype) as system:
            alone = (await i1.target(system, options)).result
            sampling = Sampling(**{**options, "seen": tuple(i1.ids_of(i1.PROMPT))})
            expected = KernelOracle(dtype).generate(i1.ids_of(i1.PROMPT), sampling, i1.NUM_TOKENS)
            assert alone[0] == list(expected.tokens)
            for _ in range(15):
                neighbours = [i1.random_neighbour(system, rng) for _ in range(rng.randint(1, 7))]
                outcome, *others = await together(system, i1.target(system, options), *neighbours)
                assert outcome.result == alone
                assert all(other.final.code == "ok" for other in others)

    in_loop(scenario)


def test_a_prompt_of_8192_tokens_over_http_has_the_oracle_s_answer_cold_and_cached() -> None:
    """Prefilled in the server's own pieces, beside a stream that goes on meanwhile; the oracle's at once."""
    prompt = random.Random(8).choices(range(97, 123), k=8192)
    expected = KernelOracle("bfloat16", 514).generate(prompt, Sampling(), 2)

    async def scenario() -> None:
        async with (
            byte_system(num_blocks=1200, dtype="bfloat16", max_context=8224) as system,
            served(system) as client,
            asyncio.TaskGroup() as tasks,
        ):
            neighbour = tasks.create_task(client.chat("Say something.", max_tokens=60))
            for num_cached in (0, 8176):
                answer = await client.openai.completions.create(
                    model=client.model, prompt=prompt, max_tokens=2, temperature=0, logprobs=0
                )
                assert answer.choices[0].logprobs.token_logprobs == pytest.approx(expected.logprobs, abs=1e-5)
                assert answer.usage.prompt_tokens == len(prompt)
                assert answer.usage.prompt_tokens_details.cached_tokens == num_cached
            assert await neighbour

    in_loop(scenario)
