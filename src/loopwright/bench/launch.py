"""How long a program takes from launch to return when it does nothing. Never looks inside the runtime: it starts runs
and reads their events, as the server does. Run by `command`.

The source goes in as text every time, so checking it is part of what is measured. Cases: `case=sequential` (one after
another; median and 99th percentile of a round) and `case=burst/n=512` (all at once, until the last has returned).
"""

from math import ceil

from loopwright.bench.rows import LAUNCHES_PER_S, P50_MS, P99_MS, Row, case_name, measured
from loopwright.bench.suite import Measured, OpenSystem, Options, Suite
from loopwright.bench.together import all_of
from loopwright.core.clock import Clock, SystemClock
from loopwright.core.errors import InternalError, from_info
from loopwright.core.events import Finished
from loopwright.core.runs import Runs, RunSpec

NUM_SEQUENTIAL = 200
NUM_BURST = 512
NUM_WARM_UP = 32

NOOP = RunSpec(source='async def main() -> str:\n    return "done"\n', filename="noop.py")


async def measure(options: Options, open_system: OpenSystem) -> Measured:
    async with open_system(options.model) as system:
        rows = await measure_launches(system.runs, SystemClock(), options.num_rounds)
    return Measured(
        rows=tuple(rows),
        workload={
            "num_rounds": options.num_rounds,
            "num_warm_up": NUM_WARM_UP,
            "num_sequential": NUM_SEQUENTIAL,
            "num_burst": NUM_BURST,
        },
    )


SUITE = Suite(name="launch", title="bench launch: a no-op Python program, launch → return, warm", measure=measure)


async def measure_launches(
    runs: Runs, clock: Clock, num_rounds: int, num_sequential: int = NUM_SEQUENTIAL, num_burst: int = NUM_BURST
) -> list[Row]:
    """Rows of both cases; each value is the median over the rounds."""
    for _ in range(NUM_WARM_UP):
        await launch_s(runs, clock)
    p50s_ms, p99s_ms, rates = [], [], []
    for _ in range(num_rounds):
        latencies_s = sorted([await launch_s(runs, clock) for _ in range(num_sequential)])
        p50s_ms.append(1e3 * percentile(latencies_s, 0.50))
        p99s_ms.append(1e3 * percentile(latencies_s, 0.99))
        rates.append(num_burst / await burst_s(runs, clock, num_burst))
    sequential = case_name(case="sequential")
    return [
        measured("launch", sequential, P50_MS, p50s_ms),
        measured("launch", sequential, P99_MS, p99s_ms),
        measured("launch", case_name(case="burst", n=num_burst), LAUNCHES_PER_S, rates),
    ]


async def launch_s(runs: Runs, clock: Clock) -> float:
    """Seconds from starting one run to its final event. Raises the run's error if it failed."""
    started_s = clock.now_s()
    run_id = await runs.start(NOOP)
    async for event in runs.events(run_id):
        if isinstance(event, Finished):
            if event.code != "ok":
                raise from_info(event.error) if event.error else InternalError(f"a no-op run ended as {event.code}")
            return clock.now_s() - started_s
    raise InternalError(f"the events of run {run_id} ended without a final one")


async def burst_s(runs: Runs, clock: Clock, num_launches: int) -> float:
    """Seconds until the last of `num_launches` runs that start together has returned."""
    started_s = clock.now_s()
    await all_of(launch_s(runs, clock) for _ in range(num_launches))
    return clock.now_s() - started_s


def percentile(ordered: list[float], fraction: float) -> float:
    """The nearest-rank percentile of an ascending list."""
    return ordered[max(ceil(fraction * len(ordered)) - 1, 0)]
