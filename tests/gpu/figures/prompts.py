"""Section: how many prompt tokens a second, for prompts of several lengths that come together. One token is sampled.

Right behind each round torch multiplies by the matrices of all layers and does nothing else: a board's products are as
fast as its power allows just then, so a rate is to be read beside that.
"""

import time

import torch
from torch.nn.functional import linear

from figures import peers
from figures.products import sizes_of
from figures.report import Bench, Section
from figures.streams import run_batch
from loopwright.engine.cuda.dummy import shape_config

CASES = ((64, 128), (64, 1024), (8, 8192))
ROUNDS = 3
AT_ONCE = 8192  # tokens that torch multiplies by itself


async def prefill(bench: Bench) -> None:
    assert bench.system is not None
    goal = peers.GOAL_PREFILL_PER_S.get(bench.shape)
    if goal:
        bench.say(f"Goal {goal} tokens/s; {peers.VLLM}: {peers.VLLM_PREFILL_PER_S[bench.shape]}.")
    with torch.inference_mode():
        alone = Alone(bench.shape, torch.device(bench.device))
    bench.table("prompts", "tokens/s, best", "tokens/s, all rounds", "torch's products alone", "TFLOP/s", "TTFT p50 ms")
    for num_streams, num_in in CASES:
        fits = num_in < bench.system.controller.models()[0].max_context
        if fits and bench.has_time(num_streams * num_in * ROUNDS / 16_000):
            rounds, floors = [], []
            for _ in range(ROUNDS):
                rounds.append(await run_batch(bench.system, num_streams, num_in, 1))
                floors.append(alone.tokens_per_s())
            rates = [round(one.tokens_per_s * num_in) for one in rounds]
            best = max(rounds, key=lambda one: one.tokens_per_s)
            case = f"{num_streams} of {num_in}"
            bench.found("prefill", bench.shape, case, value=max(rates))
            bench.found("prefill_alone", bench.shape, case, value=max(floors))
            per_s = max(floors) * alone.token_flops / 1e12
            told = [", ".join(str(round(one)) for one in some) for some in (rates, floors)]
            bench.row(case, max(rates), *told, per_s, 1e3 * best.ttft_s)


class Alone:
    """The products of all layers, on one layer's random weights."""

    def __init__(self, shape: str, device: torch.device) -> None:
        config = shape_config(shape)
        self._num_layers, self._device = config.num_layers, device
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        sizes = list(sizes_of(config).values())
        self._weights = [torch.randn(*one, device=device).mul_(one[1] ** -0.5).to(dtype) for one in sizes]
        self._vectors = {size: torch.randn(AT_ONCE, size, device=device).to(dtype) for _, size in sizes}
        self.token_flops = 2 * self._num_layers * sum(one.numel() for one in self._weights)

    def tokens_per_s(self) -> float:
        """Of AT_ONCE tokens."""
        with torch.inference_mode():
            self._wait()
            began_s = time.perf_counter()
            for _ in range(self._num_layers):
                for weights in self._weights:
                    linear(self._vectors[weights.shape[1]], weights)
            self._wait()
            return AT_ONCE / (time.perf_counter() - began_s)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


PREFILL = Section("prefill", "Prompts", 30, prefill, shares_system=True)
