"""A program that works with embeds and pages: its chains are single steps of the real engine, and equal the oracle."""

import asyncio
import random

import pytest

from loopwright.core.calls import Sampling
from system_rig import WatchedExecutor, byte_oracle, byte_system, in_loop

PROGRAM = """
from loopwright.sdk.resources import Queue

async def main(prompt: list[int], num_tokens: int, draw: int) -> list[list]:
    queue, pages, embeds = Queue(), list(range(100, 108)), list(range(200, 250))
    await queue.allocate_pages(pages)
    await queue.allocate_embeds(embeds)
    tokens, kv_len, found = prompt, 0, []
    for _ in range(num_tokens):
        places = range(kv_len, kv_len + len(tokens))
        inputs, output = embeds[: len(tokens)], embeds[-1]
        queue.embed_text(tokens, list(places), inputs)
        queue.forward(pages, kv_len, inputs, [output])
        sampled = queue.sample(output, {"temperature": 1.0, "seed": draw}, places[-1] + 1)
        distribution = queue.next_distribution(output, k=4)
        answer = await sampled
        kv_len, tokens = places[-1] + 1, [answer["token"]]
        found.append([answer["token"], answer["logprob"], len(await distribution)])
    return found
"""


@pytest.mark.parametrize("sandbox", ["native", pytest.param("wasm", marks=pytest.mark.wasm)])
def test_chains_of_three_programs_are_one_step_a_token_and_equal_the_oracle(sandbox: str) -> None:
    draw = random.Random(0)
    prompts = [[draw.randrange(1, 255) for _ in range(length)] for length in (3, 17, 40)]

    async def scenario() -> None:
        async with byte_system() as system:
            assert isinstance(system.executor, WatchedExecutor)
            alone = await system.run(PROGRAM, sandbox, prompt=prompts[0], num_tokens=6, draw=0)
            assert len(system.executor.batches) == 6
            programs = [
                system.run(PROGRAM, sandbox, prompt=prompt, num_tokens=6, draw=seed)
                for seed, prompt in enumerate(prompts)
            ]
            shared = [outcome.result for outcome in await asyncio.gather(*programs)]
        assert [one[0] for one in alone.result] == [one[0] for one in shared[0]]
        oracle = byte_oracle()
        for seed, (prompt, found) in enumerate(zip(prompts, shared, strict=True)):
            expected = oracle.generate(prompt, Sampling(temperature=1.0, seed=seed), max_tokens=6)
            assert [token for token, _, _ in found] == list(expected.tokens)
            assert [logprob for _, logprob, _ in found] == pytest.approx(expected.logprobs, abs=1e-5)

    in_loop(scenario)
