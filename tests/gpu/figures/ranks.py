"""A section: the time from token to token where two GPUs share a model, as `tpot` measures it on one."""

from dataclasses import replace

import torch

from figures.decoding import tpot
from figures.report import Bench, Section
from figures.streams import system_over

NUM_RANKS = 2


async def two_ranks(bench: Bench) -> None:
    if bench.device == "cuda" and torch.cuda.device_count() < NUM_RANKS:
        bench.say(f"(left out: torch sees {torch.cuda.device_count()} GPU, and it takes {NUM_RANKS})")
        return
    async with system_over(bench.shape, bench.device, NUM_RANKS) as system:
        bench.say("Weights and floor are those of one rank.")
        await tpot(replace(bench, system=system))


RANKS = Section("ranks", "Two GPUs share a model", 60, two_ranks, ("llama-8b",))
