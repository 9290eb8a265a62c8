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
from figures.streams import NUM_IN, NUM_OUT, Timing, run_batch
from loopwright.core.calls import Sampling
from loopwright.core.samplers import TracedSampler
from loopwright.engine.cuda.dummy import shape_config
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
    bandwidth = copy_bandwidth(bench.device)
    floors_s = {batch: read_bytes(bench, system.weight_bytes, batch) / bandwidth for batch in peers.BATCHES}
    bench.say(
        f"{system.controller.models()[0].engine}. Prompt {NUM_IN}, output {NUM_OUT}, greedy, all streams at once, "
        f"best of {ROUNDS} rounds; {system.weight_bytes / 1e9:.2f} GB of weights a step of one row, "
        f"floor {1e3 * floors_s[1]:.2f} ms. "
        "Host: CPU of control's thread, on average, in a steady step, and for a stream's beginning and end."
    )
    await run_batch(system, max(peers.BATCHES), num_out=8)  # warm-up
    bench.table("batch", "TPOT ms", f"goal / {peers.VLLM}", "steady ms", "by the floor", "TTFT p50 ms",
                "request ms", "tokens/s", "host µs a step", "steady", "a stream", "process µs a step",
                "tokens/s of a host core")  # fmt: skip
    for batch in peers.BATCHES:
        rounds = [await run_batch(system, batch) for _ in range(ROUNDS)]
        best = min(rounds, key=lambda one: one.tpot_s)
        bench.row(
            batch, 1e3 * best.tpot_s, peers.beside(bench.shape, batch), 1e3 * best.steady_s,
            best.steady_s / floors_s[batch], 1e3 * best.ttft_s, 1e3 * best.request_s, round(best.tokens_per_s),
            round(1e6 * best.host_s), round(1e6 * best.steady_host_s), round(1e6 * best.stream_host_s),
            round(1e6 * best.process_s), round(best.tokens_per_core_s),
        )  # fmt: skip
        for name, value in (("tpot", 1e3 * best.tpot_s), ("steady", 1e3 * best.steady_s),
                            ("host", 1e3 * best.steady_host_s), ("host_mean", 1e3 * best.host_s),
                            ("core", best.tokens_per_core_s)):  # fmt: skip
            bench.found(name, bench.shape, batch, value=value)
        _found_request(bench, batch, best)


def _found_request(bench: Bench, batch: int, best: Timing) -> None:
    """A whole request, and what one may take by the goal: the first token as here, the others as the goal has them."""
    bench.found("request", bench.shape, batch, value=1e3 * best.request_s)
    if bench.shape in peers.GOAL_TPOT_MS:
        goal_ms = peers.GOAL_TPOT_MS[bench.shape][peers.BATCHES.index(batch)]
        allowed_ms = 1e3 * best.request_s + (NUM_OUT - 1) * (goal_ms - 1e3 * best.tpot_s)
        bench.found("request_allowed", bench.shape, batch, value=allowed_ms)


def read_bytes(bench: Bench, of_one_row: int, batch: int) -> float:
    """What a step reads of the weights: of experts more, the more rows there are, as if each row chose at random."""
    config = shape_config(bench.shape)
    if config.experts is None:
        return of_one_row
    itemsize = 2 if bench.device == "cuda" else 4
    each = 3 * config.hidden_size * config.experts.intermediate_size * itemsize
    share = config.experts.num_chosen / config.experts.num_experts
    num_read = config.experts.num_experts * (1 - (1 - share) ** batch)
    return of_one_row + config.num_layers * each * (num_read - config.experts.num_chosen)


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
