"""Sections: the time from token to token at control, by batch and by way of sampling, and what the host takes of it.

The floor is reading the weights once a step at the measured bandwidth of a copy on this device.
"""

import time
from statistics import median

import torch

from figures import peers
from figures.report import Bench, Section
from figures.streams import NUM_IN, NUM_OUT, run_batch
from loopwright.core.calls import Sampling

ROUNDS = 2
SAMPLINGS = {
    "greedy": Sampling(),
    "temperature": Sampling(temperature=1.0, seed=1),
    "top_k 50": Sampling(temperature=1.0, top_k=50, seed=1),
    "top_p 0.9": Sampling(temperature=1.0, top_p=0.9, seed=1),
    "frequency penalty": Sampling(temperature=1.0, frequency_penalty=0.5, seed=1),
    "top_logprobs 20": Sampling(top_logprobs=20),
}


async def tpot(bench: Bench) -> None:
    system = bench.system
    assert system is not None
    floor_s = system.weight_bytes / copy_bandwidth(bench.device)
    bench.say(
        f"{system.controller.models()[0].engine}. Prompt {NUM_IN}, output {NUM_OUT}, greedy, all streams at once, "
        f"best of {ROUNDS} rounds; {system.weight_bytes / 1e9:.2f} GB of weights a step, floor {1e3 * floor_s:.2f} ms. "
        "Host: CPU of control's thread, on average, in a steady step, and for a stream's beginning and end."
    )
    await run_batch(system, max(peers.BATCHES), num_out=8)  # warm-up
    bench.table("batch", "TPOT ms", f"goal / {peers.VLLM}", "steady ms", "by the floor", "TTFT p50 ms", "tokens/s",
                "host µs a step", "steady", "a stream", "process µs a step", "tokens/s of a host core")  # fmt: skip
    for batch in peers.BATCHES:
        rounds = [await run_batch(system, batch) for _ in range(ROUNDS)]
        best = min(rounds, key=lambda one: one.tpot_s)
        bench.row(
            batch, 1e3 * best.tpot_s, peers.beside(bench.shape, batch), 1e3 * best.steady_s, best.steady_s / floor_s,
            1e3 * best.ttft_s, round(best.tokens_per_s), round(1e6 * best.host_s), round(1e6 * best.steady_host_s),
            round(1e6 * best.stream_host_s), round(1e6 * best.process_s), round(best.tokens_per_core_s),
        )  # fmt: skip


async def sampling(bench: Bench) -> None:
    assert bench.system is not None
    bench.table("batch 32, sampling", "TPOT ms", "steady ms")
    for name, one in SAMPLINGS.items():
        if bench.has_time(3):
            found = await run_batch(bench.system, 32, sampling=one)
            bench.row(name, 1e3 * found.tpot_s, 1e3 * found.steady_s)


def copy_bandwidth(device: str) -> float:
    """Bytes a second, read and written."""
    source = torch.empty(1 << (30 if device == "cuda" else 24), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(10):
        began_s = time.perf_counter()
        target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began_s)
    return 2 * source.numel() / median(times)


TPOT = Section(
    "tpot", "From token to token, at control", 45, tpot, ("llama-1b", "llama-8b", "llama-3b"), shares_system=True
)
SAMPLING = Section("sampling", "Other ways to sample", 20, sampling, ("llama-1b",), shares_system=True)
