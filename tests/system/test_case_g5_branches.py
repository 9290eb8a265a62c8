"""Case G5. Eight branches are forked from one prefix and gathered: the prefix is run once, the branches share batches,
and each branch, drawn with its own seed, is what the one-request loop draws: unlike its siblings, and repeatable."""

import itertools

import pytest

from loopwright.core.calls import Sampling
from loopwright.core.control import ControlStats
from system_rig import byte_oracle, byte_system, in_loop

NUM_BRANCHES, NUM_TOKENS, PAGE_SIZE = 8, 24, 16
PREFIX = "Once upon a time there was a server that served programs and not prompts; it "

PROGRAM = """
import asyncio
from loopwright import Context
async def main(prefix: str, seeds: list[int], num_tokens: int):
    trunk = Context()
    trunk.append(prefix)
    forks = [await trunk.fork() for _ in seeds]
    turns = await asyncio.gather(*(
        fork.generate(max_tokens=num_tokens, temperature=1.0, top_p=0.95, seed=seed, ignore_eos=True)
        for fork, seed in zip(forks, seeds)
    ))
    return [turn.tokens for turn in turns]
"""


@pytest.mark.parametrize("sandbox", ["native", pytest.param("wasm", marks=pytest.mark.wasm)])
def test_branches_share_their_prefix_and_their_batches_and_go_ways_of_their_own(sandbox: str) -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            branches: list[list[int]] = []
            seeds = list(range(NUM_BRANCHES))
            for num_run in (len(PREFIX), len(PREFIX) % PAGE_SIZE):  # the second time its full pages are cached
                before = await system.controller.stats()
                outcome = await system.run(PROGRAM, sandbox, prefix=PREFIX, seeds=seeds, num_tokens=NUM_TOKENS)
                after = await system.controller.stats()
                assert num_prefilled(before, after) == num_run  # and its BOS, less the last token: each runs that
                assert mean_rows(before, after) >= 4
                branches += outcome.result
            first, again = branches[:NUM_BRANCHES], branches[NUM_BRANCHES:]
            assert first == again
            assert all(one != other for one, other in itertools.combinations(first, 2))
            for seed, branch in zip(seeds, first, strict=True):
                assert branch == alone(seed)

    in_loop(scenario)


def num_prefilled(before: ControlStats, after: ControlStats) -> int:
    return after.num_prefill_tokens - before.num_prefill_tokens


def mean_rows(before: ControlStats, after: ControlStats) -> float:
    return (after.num_rows - before.num_rows) / (after.num_steps - before.num_steps)


def alone(seed: int) -> list[int]:
    """What the one-request loop draws."""
    sampling = Sampling(temperature=1.0, top_p=0.95, seed=seed)
    return list(byte_oracle().generate([256, *PREFIX.encode()], sampling, NUM_TOKENS).tokens)
