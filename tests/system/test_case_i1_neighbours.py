"""Case I1. A seeded request says the same alone, beside fifty random mixes of neighbours, and beside itself. At
temperature 0 the model's distributions are the same in batches of 1, 2, 4 and 8: to 1e-5, the reference class."""

import random
from typing import Any

import numpy as np
import pytest

from loopwright.core.calls import Sampling
from system_rig import System, WatchedExecutor, byte_oracle, byte_system, in_loop, together

PROMPT = "The quick brown fox jumps over"
NUM_TOKENS = 16
OPTIONS: dict[str, Any] = {"temperature": 0.9, "top_p": 0.9, "seed": 11}
EVERYTHING: dict[str, Any] = {
    "repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3, "logit_bias": {101: 1.0, 32: -2.0},
    "allowed": list(range(32, 127)), "temperature": 1.3, "top_k": 60, "typical_p": 0.95, "top_p": 0.9, "min_p": 0.01,
    "seed": 12, "logprobs": "processed", "top_logprobs": 3,
}  # fmt: skip

GENERATE = """
from loopwright import Context
async def main(prompt: str, num_tokens: int, options: dict):
    ctx = Context()
    ctx.append(prompt)
    turn = await ctx.generate(max_tokens=num_tokens, ignore_eos=True, **options)
    return [turn.tokens, turn.logprobs]
"""

FORK = """
import asyncio
from loopwright import Context
async def main(prompt: str, num_tokens: int, options: dict):
    ctx = Context()
    ctx.append(prompt)
    forks = [await ctx.fork() for _ in range(2)]
    await asyncio.gather(*(fork.generate(max_tokens=num_tokens, **options) for fork in forks))
"""

LOOK = """
from loopwright import Context
async def main(prompt: str, num_tokens: int, options: dict):
    ctx = Context()
    ctx.append(prompt)
    chosen, dists = [], []
    for _ in range(num_tokens):
        dist = await ctx.next_dist(k=260)
        dists.append(sorted(dist))
        chosen.append(dist.ids[0])
        ctx.accept(chosen[-1])
    return [chosen, dists]
"""


@pytest.mark.parametrize("options", [OPTIONS, EVERYTHING], ids=["nucleus", "everything"])
def test_fifty_mixes_of_neighbours_change_nothing(options: dict[str, Any]) -> None:
    async def scenario() -> None:
        rng = random.Random(0)
        async with byte_system(num_blocks=1024) as system:
            tokens, logprobs = (await target(system, options)).result
            sampling = Sampling(**{**options, "seen": tuple(ids_of(PROMPT))})
            assert tokens == list(byte_oracle().generate(ids_of(PROMPT), sampling, NUM_TOKENS).tokens)
            for _ in range(50):
                neighbours = [random_neighbour(system, rng) for _ in range(rng.randint(1, 7))]
                outcome, *others = await together(system, target(system, options), *neighbours)
                assert outcome.result == [tokens, pytest.approx(logprobs, abs=1e-5)]
                assert all(other.final.code == "ok" for other in others)

    in_loop(scenario)


def test_one_seed_twice_in_a_batch_says_the_same_twice() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            alone = (await target(system)).result
            twice = await together(system, target(system), target(system))
            assert [outcome.result[0] for outcome in twice] == [alone[0], alone[0]]
            assert max(num_rows_of_seed(system)) == 2

    in_loop(scenario)


@pytest.mark.parametrize("num_rows", [1, 2, 4, 8])
def test_distributions_are_the_same_in_a_batch_of_any_size(num_rows: int) -> None:
    num_tokens = 4

    async def scenario() -> None:
        async with byte_system() as system:
            given = [{"prompt": f"{number} bottles", "num_tokens": num_tokens, "options": {}} for number in range(8)]
            runs = [system.run(LOOK, **arguments) for arguments in given[:num_rows]]
            outcomes = await together(system, *runs)
            assert num_rows in [batch.num_rows for batch in batches_of(system)]
            for arguments, outcome in zip(given, outcomes, strict=False):
                chosen, dists = outcome.result
                prompt = ids_of(arguments["prompt"])
                logits = byte_oracle().logits([*prompt, *chosen[:-1]])[len(prompt) - 1 :].double().numpy()
                expected = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)  # [num_tokens, vocab_size]
                found = [[logprob for _, logprob in dist] for dist in dists]
                np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
                assert chosen == list(expected.argmax(axis=1))

    in_loop(scenario)


async def target(system: System, options: dict[str, Any] = OPTIONS) -> Any:
    return await system.run(GENERATE, prompt=PROMPT, num_tokens=NUM_TOKENS, options=options)


async def random_neighbour(system: System, rng: random.Random) -> Any:
    prompt = "".join(rng.choices("abcdefgh \n", k=rng.choice([1, 5, 15, 16, 17, 60, 300])))
    options = {"temperature": rng.choice([0.0, 0.5, 1.5]), "seed": rng.randrange(20), "top_k": rng.choice([0, 1, 5])}
    source = rng.choice([GENERATE, FORK, LOOK])
    return await system.run(source, prompt=prompt, num_tokens=rng.randint(1, 12), options=options)


def ids_of(text: str) -> list[int]:
    return [256, *text.encode()]


def batches_of(system: System) -> list[Any]:
    assert isinstance(system.executor, WatchedExecutor)
    return system.executor.batches


def num_rows_of_seed(system: System) -> list[int]:
    """By batch: the rows that draw with the target's seed."""
    seed = OPTIONS["seed"]
    samplings = [[row.sampling for row in batch.all_rows if row.sampling is not None] for batch in batches_of(system)]
    return [sum(sampling.seed == seed for sampling in batch) for batch in samplings]
