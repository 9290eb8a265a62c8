"""A section: the time from token to token where two GPUs share a model, as `tpot` measures it on one; and what each
collective of a step takes there."""

import subprocess
import time
from dataclasses import replace

import torch

from figures import collectives
from figures.decoding import tpot
from figures.report import Bench, Section
from figures.streams import system_over

NUM_RANKS = 2


async def two_ranks(bench: Bench) -> None:
    if bench.device == "cuda" and torch.cuda.device_count() < NUM_RANKS:
        bench.say(f"(left out: torch sees {torch.cuda.device_count()} GPU, and it takes {NUM_RANKS})")
        return
    say_collectives(bench)
    began_s = time.monotonic()
    async with system_over(bench.shape, bench.device, NUM_RANKS) as system:
        bench.say(f"Ready after {time.monotonic() - began_s:.0f} s. Weights and floor are those of one rank.")
        await tpot(replace(bench, system=system, prefix="together"))


def say_collectives(bench: Bench) -> None:
    """Without them the rest is still worth measuring."""
    try:
        found = collectives.measured(NUM_RANKS, bench.device)
    except subprocess.SubprocessError as error:
        bench.say(f"FAILED: collectives: {error}")
        return
    bench.table("µs, of a model like 8B, at rows", *collectives.ROWS)
    for name, times in found.items():
        bench.row(name, *times)
    bench.say()


RANKS = Section("ranks", "Two GPUs share a model", 55, two_ranks, num_gpus=NUM_RANKS)
