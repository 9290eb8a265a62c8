"""Sections: the time from token to token at control, by batch and by way of sampling, and what the host takes of it.

The floor is reading the weights once a step at the measured bandwidth of a copy on this device.
"""

import time
from collections.abc import Callable
from statistics import median

import msgspec
import torch

from figures import peers
from figures.report import Bench, Section
from figures.streams import NUM_IN, NUM_OUT, run_batch
from loopwright.core.calls import Sampling
from loopwright.core.samplers import TracedSampler
from loopwright.sdk import tensor
from loopwright.sdk.tracing import trace

ROUNDS = 2
HOT = {"temperature": 1.0, "seed": 1}
PEAKED = {
    "temperature": 0.05,
    "seed": 1,
}  # as sure as a trained model: its nucleus has few tokens, not tens of thousands


def counting(scores: tensor.Tensor, state: dict[str, tensor.Tensor]) -> tuple[tensor.Tensor, dict[str, tensor.Tensor]]:
    """The likeliest token, and a number that counts them."""
    return tensor.argmax(scores), {"count": state["count"] + 1}


def nucleus(scores: tensor.Tensor) -> tensor.Tensor:
    """top_p 0.9, by hand: it sorts the vocabulary."""
    weights = tensor.softmax(scores)
    return tensor.draw(tensor.where(tensor.mass_before(weights) < 0.9, weights, 0.0))


def sampler(function: Callable[..., object], **state: float) -> dict[str, object]:
    """Fields of a segment with a traced sampler."""
    graph = msgspec.convert(trace(function, state, 1 << 17), TracedSampler)
    return {"sampler": graph, "sampler_state": state}


SAMPLINGS: dict[str, dict[str, object]] = {
    "greedy": {},
    "temperature": {"sampling": Sampling(**HOT)},
    "top_k 50": {"sampling": Sampling(top_k=50, **HOT)},
    "top_p 0.9": {"sampling": Sampling(top_p=0.9, **HOT)},
    "top_p 0.9, peaked": {"sampling": Sampling(top_p=0.9, **PEAKED)},
    "top_k 50 and top_p 0.9": {"sampling": Sampling(top_k=50, top_p=0.9, **HOT)},
    "min_p 0.1": {"sampling": Sampling(min_p=0.1, **HOT)},
    "frequency penalty": {"sampling": Sampling(frequency_penalty=0.5, **HOT)},
    "typical_p 0.9": {"sampling": Sampling(typical_p=0.9, **HOT)},
    "top_logprobs 20": {"sampling": Sampling(top_logprobs=20)},
    "traced: argmax, counting": sampler(counting, count=0.0),
    "traced: a nucleus": sampler(nucleus) | {"sampling": Sampling(seed=1)},
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
        for name, value in (("tpot", 1e3 * best.tpot_s), ("steady", 1e3 * best.steady_s),
                            ("host", 1e3 * best.steady_host_s), ("host_mean", 1e3 * best.host_s),
                            ("core", best.tokens_per_core_s)):  # fmt: skip
            bench.found(name, bench.shape, batch, value=value)


async def sampling(bench: Bench) -> None:
    assert bench.system is not None
    bench.say("Random weights give a flat distribution: at temperature 1 a nucleus has tens of thousands of tokens.")
    greedy = {}
    bench.table("sampling", "batch", "TPOT ms", "steady ms", "over greedy")
    for batch in (32, 256):
        await run_batch(bench.system, batch, num_out=8)  # warm-up
        for name, fields in SAMPLINGS.items():
            if bench.has_time(batch / 25):
                found = await run_batch(bench.system, batch, **fields)
                greedy.setdefault(batch, found.steady_s)
                over_ms = 1e3 * (found.steady_s - greedy[batch])
                bench.row(name, batch, 1e3 * found.tpot_s, 1e3 * found.steady_s, over_ms)


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


TPOT = Section("tpot", "From token to token, at control", 45, tpot, shares_system=True)
SAMPLING = Section("sampling", "Other ways to sample", 30, sampling, shares_system=True)
