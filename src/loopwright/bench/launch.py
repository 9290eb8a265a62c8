"""How long programs take from launch to return, how many can live, and what launches do to those that run. Never looks
inside the runtime: it starts runs and reads their events, as the server does. Run by `command`.

The source goes in as text every time, as a client sends it. Cases: `case=first` (a no-op in a system that has just
started), `case=sequential` (the same, one after another), `case=program_200_lines/source=S` (a source that is `new` at
each launch, or `known`: launched before), `case=burst/n=512` (all at once, until the last has returned),
`case=neighbours/burst=N` (rounds of 16 running programs meanwhile; 0 is without a burst), and with `--live N` alone
`case=live/n=N`.
"""

import asyncio
import gc
from itertools import count
from math import ceil
from typing import TYPE_CHECKING

from loopwright.bench import paper
from loopwright.bench.live import WAITING, live_programs, page_table_bytes, settled_private_bytes
from loopwright.bench.neighbours import NUM_NEIGHBOURS, rounds_beside
from loopwright.bench.rows import (
    LAUNCHES_PER_S,
    NUM_LIVE,
    P50_MS,
    P99_MS,
    PAGE_TABLE_MB,
    PRIVATE_MB,
    Row,
    case_name,
    measured,
)
from loopwright.bench.suite import Measured, OpenSystem, Options, Suite
from loopwright.bench.together import all_of
from loopwright.core.clock import Clock, SystemClock
from loopwright.core.errors import InternalError, from_info
from loopwright.core.events import Finished
from loopwright.core.runs import Runs, RunSpec

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_SEQUENTIAL = 200
NUM_BURST = 512
NUM_WARM_UP = 32
NUM_BESIDE = 500  # launches at once beside running programs
QUIET_S = 1.0
NUM_LIVE_WARM_UP = 32

NOOP = RunSpec(source='async def main() -> str:\n    return "done"\n', filename="noop.py")

_STEP = """
async def step_{n}(state: dict[str, int], text: str = "a word and another") -> dict[str, int]:
    \"\"\"Counts the words of a text, and forgets those that are rare.\"\"\"
    counts = dict(state)
    for word in text.split():
        if word.startswith("#"):
            continue
        counts[word] = counts.get(word, {n}) + len(word)
    return {{word: count for word, count in counts.items() if count > {n}}}
"""
_MAIN = """
async def main() -> int:
    state: dict[str, int] = {}
    for step in (step_0, step_1, step_2):
        state = await step(state)
    print(state)
    if not state:
        raise ValueError("no words {n}")
    return len(state)
"""
NUM_STEPS = 21
_STEPS = "".join(_STEP.format(n=n) for n in range(NUM_STEPS)) + "\n\n"


def large(number: int) -> RunSpec:
    """One of many programs of 200 lines, no two of which are the same."""
    return RunSpec(source=_STEPS + _MAIN.replace("{n}", str(number)), filename="large.py")


async def measure(options: Options, open_system: OpenSystem) -> Measured:
    clock = SystemClock()
    async with open_system(options.model) as system:
        runs = system.runs
        if options.num_live:
            rows = [row for num_live in options.num_live for row in await measure_live(runs, num_live)]
        else:
            first_s = await launch_s(runs, clock)
            first = measured("launch", case_name(case="first"), P50_MS, [1e3 * first_s], paper.COLD_LAUNCH_MS)
            rows = [first, *await measure_launches(runs, clock, options.num_rounds)]
            rows += await measure_neighbours(runs, clock, options.num_rounds)
    return Measured(
        rows=tuple(rows),
        workload={
            "num_rounds": options.num_rounds,
            "num_warm_up": NUM_WARM_UP,
            "num_sequential": NUM_SEQUENTIAL,
            "num_burst": NUM_BURST,
        },
    )


SUITE = Suite(
    name="launch", title="bench launch: a Python program, launch → return; warm but the first", measure=measure
)


async def measure_launches(
    runs: Runs, clock: Clock, num_rounds: int, num_sequential: int = NUM_SEQUENTIAL, num_burst: int = NUM_BURST
) -> list[Row]:
    """Rows of programs that are launched one by one, and all at once; each value is the median over the rounds."""
    for _ in range(NUM_WARM_UP):
        await launch_s(runs, clock)
    numbers = count(1)
    known = large(0)
    await launch_s(runs, clock, known)
    sequential = case_name(case="sequential")
    specs: dict[str, Callable[[], RunSpec]] = {
        sequential: lambda: NOOP,
        case_name(case="program_200_lines", source="new"): lambda: large(next(numbers)),
        case_name(case="program_200_lines", source="known"): lambda: known,
    }
    latencies_s: dict[str, list[list[float]]] = {case: [] for case in specs}
    rates = []
    for _ in range(num_rounds):
        for case, spec in specs.items():
            latencies_s[case].append(sorted([await launch_s(runs, clock, spec()) for _ in range(num_sequential)]))
        rates.append(num_burst / await burst_s(runs, clock, num_burst))
    rows = []
    for case, rounds in latencies_s.items():
        for metric, fraction in ((P50_MS, 0.50), (P99_MS, 0.99)):
            values = [1e3 * percentile(one, fraction) for one in rounds]
            beside = paper.WARM_LAUNCH_MS if (case, metric) == (sequential, P50_MS) else None
            rows.append(measured("launch", case, metric, values, beside))
    return [*rows, measured("launch", case_name(case="burst", n=num_burst), LAUNCHES_PER_S, rates)]


async def measure_neighbours(
    runs: Runs,
    clock: Clock,
    num_rounds: int,
    num_launches: int = NUM_BESIDE,
    num_neighbours: int = NUM_NEIGHBOURS,
    quiet_s: float = QUIET_S,
) -> list[Row]:
    """Rows of running programs, beside nothing and beside a burst."""
    p99s_ms: dict[int, list[float]] = {0: [], num_launches: []}
    rates = []
    for _ in range(num_rounds):
        rounds_s = await rounds_beside(runs, lambda: asyncio.sleep(quiet_s), num_neighbours)
        p99s_ms[0].append(1e3 * percentile(sorted(rounds_s), 0.99))
        taken_s: list[float] = []

        async def burst(taken_s: list[float] = taken_s) -> None:
            taken_s.append(await burst_s(runs, clock, num_launches))

        rounds_s = await rounds_beside(runs, burst, num_neighbours)
        p99s_ms[num_launches].append(1e3 * percentile(sorted(rounds_s), 0.99))
        rates.append(num_launches / taken_s[0])
    rows = [
        measured("launch", case_name(case="neighbours", burst=burst), P99_MS, values)
        for burst, values in p99s_ms.items()
    ]
    return [*rows, measured("launch", case_name(case="neighbours", burst=num_launches), LAUNCHES_PER_S, rates)]


async def measure_live(runs: Runs, num_live: int) -> list[Row]:
    """Rows of so many programs that wait: how many were live at once, and what memory each of them added."""
    async with live_programs(runs, WAITING, NUM_LIVE_WARM_UP):
        pass  # what is made once for all
    gc.collect()
    before = await settled_private_bytes(), page_table_bytes()
    async with live_programs(runs, WAITING, num_live):
        num_running = sum(info.state == "running" for info in await runs.runs())
        added = await settled_private_bytes() - before[0], page_table_bytes() - before[1]
    case = case_name(case="live", n=num_live)
    return [
        measured("launch", case, NUM_LIVE, [float(num_running)], paper.NUM_LIVE),
        measured("launch", case, PRIVATE_MB, [added[0] / num_live / 1e6]),
        measured("launch", case, PAGE_TABLE_MB, [added[1] / num_live / 1e6]),
    ]


async def launch_s(runs: Runs, clock: Clock, spec: RunSpec = NOOP) -> float:
    """Seconds from starting one run to its final event. Raises the run's error if it failed."""
    started_s = clock.now_s()
    run_id = await runs.start(spec)
    async for event in runs.events(run_id):
        if isinstance(event, Finished):
            if event.code != "ok":
                raise from_info(event.error) if event.error else InternalError(f"a launch ended as {event.code}")
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
