"""Section: what weights in fewer bits save of a step, and what it costs if no row's bits depend on the others."""

from figures.report import Bench, Section
from figures.streams import run_batch, system_over
from loopwright.engine.cuda.judged import judged

BATCHES = (1, 32, 256)
WAYS = (
    ("bfloat16", False), ("bfloat16", True), ("int8", False), ("int4", False), ("fp8", False), ("int8", True),
)  # fmt: skip


async def cost(bench: Bench) -> None:
    """Each way is an engine of its own, one after the other; the better of two rounds, since what is new costs once."""
    if bench.device == "cpu":
        bench.say("(on the CPU all ways are float32: this tries the section alone)")
    heads = [head for batch in BATCHES for head in (f"TPOT ms at {batch}", "by bfloat16")]
    bench.table("weights", "class", "GB a step", *heads, "prompts, tokens/s", "by bfloat16")
    base: list[float] = []
    for dtype, is_deterministic in WAYS:
        if not bench.has_time(25):
            return
        on = "auto" if bench.device == "cpu" else dtype
        is_own = is_deterministic and bench.device != "cpu"
        async with system_over(bench.shape, bench.device, dtype=on, is_deterministic=is_own) as system:
            await run_batch(system, max(BATCHES), num_out=4)  # warm-up
            found = [
                1e3 * min([(await run_batch(system, batch, num_out=48)).tpot_s for _ in range(2)]) for batch in BATCHES
            ]
            found.append(64 * 128 / min([(await run_batch(system, 64, 128, 1)).ttft_s for _ in range(2)]))
            num_bytes = system.weight_bytes
        base = base or found
        cells = [cell for value, first in zip(found, base, strict=True) for cell in (value, value / first)]
        way = "deterministic" if is_deterministic else "fast"
        for batch, value, first in zip(BATCHES, found, base, strict=False):
            bench.found("cost", dtype, way, batch, value=value / first)
        bench.row(judged(dtype), way, num_bytes / 1e9, *cells)


COST = Section("cost", "Weights in fewer bits, and the deterministic class", 150, cost)
