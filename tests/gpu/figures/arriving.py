"""Sections: requests that come one after the other. First tokens beside streams that run, and goodput by rate.

Arrivals are Poisson's, drawn from the report's seed before anything is measured. Nothing is told to control about what
is to come, and a request that comes late is not waited for.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from figures.report import Bench, Section, System, percentile
from figures.streams import Stream, prompts_of, run_batch, vocabulary

TTFT_LIMIT_S, ITL_LIMIT_S = 0.5, 0.03
NUM_RUNNING = 128
BESIDE_S, BESIDE_PER_S = 5.0, 10.0
GOODPUT_S = 6.0
RATES_PER_S = {"llama-1b": (60.0, 120.0, 180.0, 240.0), "llama-8b": (16.0, 32.0, 40.0, 48.0, 56.0)}
MIN_GOOD = 0.95
NUM_IN, NUM_OUT = 512, 128


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of requests: `num_good` had the first token and all others in time."""

    num_requests: int
    num_good: int
    ttfts_s: Sequence[float]
    gaps_s: Sequence[float]

    @property
    def share(self) -> float:
        return self.num_good / self.num_requests

    @classmethod
    def of(cls, streams: Sequence[Stream]) -> "Judged":
        """99 of 100 gaps of a good one are below the limit."""
        begun = [one for one in streams if one.times_s]
        good = [one for one in begun if one.ttft_s < TTFT_LIMIT_S and percentile(one.gaps_s, 0.99) < ITL_LIMIT_S]
        return cls(len(streams), len(good), [one.ttft_s for one in begun], [gap for one in begun for gap in one.gaps_s])


def arrivals_s(rate_per_s: float, duration_s: float, seed: int) -> list[float]:
    """Seconds from the beginning, ascending; at least one."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1 / rate_per_s, max(1, round(rate_per_s * duration_s)))
    return np.cumsum(gaps).tolist()  # type: ignore[no-any-return]


async def send_at(
    system: System, times_s: Sequence[float], prompts: Sequence[Sequence[int]], num_out: int
) -> list[Stream]:
    """Begins a stream at each of the times, and waits for none."""
    began_s = time.perf_counter()
    streams = []
    for when_s, prompt in zip(times_s, prompts, strict=True):
        await asyncio.sleep(max(0.0, began_s + when_s - time.perf_counter()))
        streams.append(Stream(system.controller, prompt, num_out))
    return streams


async def ttft(bench: Bench) -> None:
    system = bench.system
    assert system is not None
    await run_batch(system, 32, NUM_IN, num_out=4)  # warm-up
    times_s = arrivals_s(BESIDE_PER_S, BESIDE_S, bench.seed)
    prompts = prompts_of(len(times_s), NUM_IN, vocabulary(bench.shape), bench.seed)
    running = [
        Stream(system.controller, prompt, 8192) for prompt in prompts_of(NUM_RUNNING, 128, vocabulary(bench.shape))
    ]
    await asyncio.gather(*(one.begun for one in running))
    num_before = len(running[0].times_s)
    alone_s, began_s = time.perf_counter(), time.perf_counter() + 0.5
    await asyncio.sleep(began_s - alone_s)
    num_alone = len(running[0].times_s)
    found = await send_at(system, times_s, prompts, 16)
    await asyncio.gather(*(one.ended for one in found))
    beside = running[0].gaps_s[num_alone:]
    bench.say(
        f"{len(found)} requests of {NUM_IN} tokens at {BESIDE_PER_S:g} a second (Poisson, seed {bench.seed}) beside "
        f"{NUM_RUNNING} streams."
    )
    bench.table("", "p50 ms", "p99 ms")
    ttfts_s = [one.ttft_s for one in found]
    bench.row("TTFT of the new requests", *(1e3 * percentile(ttfts_s, share) for share in (0.5, 0.99)))
    bench.found("ttft", bench.shape, value=1e3 * percentile(ttfts_s, 0.99))
    for name, gaps_s in (("ITL of a stream beside them", beside),
                         ("ITL of it before they came", running[0].gaps_s[num_before:num_alone])):  # fmt: skip
        bench.row(name, *(1e3 * percentile(gaps_s, share) for share in (0.5, 0.99)))
    for one in running:
        one.close()


async def bound_per_s(system: System) -> float:
    """Requests a second that fill the device if each step takes as long as the ITL may be, nothing of the host's is
    seen and arrivals are even: a step costs what one of few rows does, and so much for each row and prompt's token."""
    await run_batch(system, 32, NUM_IN, num_out=4)  # warm-up
    prompts_per_s = max([(await run_batch(system, 32, NUM_IN, num_out=1)).tokens_per_s for _ in range(2)])
    few_s, many_s = [(await run_batch(system, num_rows, 128, num_out=24)).steady_s for num_rows in (8, 104)]
    row_s = max(0.0, many_s - few_s) / (104 - 8)
    request_s = 1 / prompts_per_s + (NUM_OUT - 1) * row_s
    return (1 - few_s / ITL_LIMIT_S) / request_s


async def goodput(bench: Bench) -> None:
    system = bench.system
    assert system is not None
    bench.say(
        f"Prompt {NUM_IN}, output {NUM_OUT}, Poisson arrivals for {GOODPUT_S:g} s a rate (seed {bench.seed}); good: "
        f"TTFT below {TTFT_LIMIT_S:g} s, and 99 of 100 gaps of a request below {1e3 * ITL_LIMIT_S:g} ms."
    )
    bound = await bound_per_s(system)
    bench.say(f"By what its steps take alone, the device can carry {bound:.1f} requests a second within that ITL.\n")
    bench.table("requests/s", "good", "good/s", "TTFT p50 ms", "p99", "ITL p50 ms", "p99")
    best = 0.0
    for rate in RATES_PER_S.get(bench.shape, (20.0,)):
        if not bench.has_time(1.7 * GOODPUT_S):
            break
        times_s = arrivals_s(rate, GOODPUT_S, bench.seed)
        prompts = prompts_of(len(times_s), NUM_IN, vocabulary(bench.shape), bench.seed)
        began_s = time.perf_counter()
        streams = await send_at(system, times_s, prompts, NUM_OUT)
        await asyncio.gather(*(one.ended for one in streams))
        judged = Judged.of(streams)
        good_per_s = judged.num_good / max(times_s[-1], 1e-9)
        best = max(best, good_per_s)
        bench.row(rate, f"{judged.share:.0%}", good_per_s,
                  *(1e3 * percentile(judged.ttfts_s, share) for share in (0.5, 0.99)),
                  *(1e3 * percentile(judged.gaps_s, share) for share in (0.5, 0.99)))  # fmt: skip
        if judged.share < MIN_GOOD or time.perf_counter() - began_s > 3 * GOODPUT_S:
            break
    bench.found("goodput", bench.shape, value=best)
    bench.say(f"\nGoodput: {best:.1f} requests/s at best, {best / bound:.0%} of that.")


TTFT = Section("ttft", "First tokens beside 128 streams", 20, ttft, shares_system=True)
GOODPUT = Section("goodput", "Goodput", 60, goodput, shares_system=True)
