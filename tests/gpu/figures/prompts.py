"""Section: how many prompt tokens a second, for prompts of several lengths that come together. One token is sampled."""

from figures import peers
from figures.report import Bench, Section
from figures.streams import run_batch

CASES = ((64, 128), (64, 1024), (8, 8192))
ROUNDS = 3


async def prefill(bench: Bench) -> None:
    assert bench.system is not None
    goal = peers.GOAL_PREFILL_PER_S.get(bench.shape)
    if goal:
        bench.say(f"Goal {goal} tokens/s; {peers.VLLM}: {peers.VLLM_PREFILL_PER_S[bench.shape]}.")
    bench.table("prompts", "tokens/s, best", "tokens/s, all rounds", "TTFT p50 ms")
    for num_streams, num_in in CASES:
        fits = num_in < bench.system.controller.models()[0].max_context
        if fits and bench.has_time(num_streams * num_in * ROUNDS / 20_000):
            rounds = [await run_batch(bench.system, num_streams, num_in, 1) for _ in range(ROUNDS)]
            rates = [round(one.tokens_per_s * num_in) for one in rounds]
            best = max(rounds, key=lambda one: one.tokens_per_s)
            bench.found("prefill", bench.shape, f"{num_streams} of {num_in}", value=max(rates))
            bench.row(f"{num_streams} of {num_in}", max(rates), ", ".join(map(str, rates)), 1e3 * best.ttft_s)


PREFILL = Section("prefill", "Prompts", 25, prefill, shares_system=True)
