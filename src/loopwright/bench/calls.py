"""What a call costs a program: CPU of a round, and how long an answer takes. Never looks inside the runtime: programs
do the calls and say how long they took. Run by `command`.

Cases: `live=N/round=task`, CPU of the event loop's thread for a call that is awaited, while N programs do the same
(aim: 60 µs, and 200 µs with 900 live): a task of the runtime answers it later, so that the program is suspended.
`live=N/round=control` and `live=1/round=runtime` are the same with an answer that is there at once, by control and by
the runtime. `live=N/answered_by=runtime` and `…=control`, the median time to an answer, in one program beside N - 1
that wait.
"""

import gc
import time
from collections.abc import Callable
from typing import Any

from loopwright.bench import paper
from loopwright.bench.live import WAITING, live_programs, result_of
from loopwright.bench.rows import CALL_US, CPU_US, Row, case_name, measured
from loopwright.bench.suite import Measured, OpenSystem, Options, Suite
from loopwright.core.clock import Clock, SystemClock
from loopwright.core.errors import Unavailable
from loopwright.core.runs import Runs, RunSpec

NUM_ROUNDS = {
    (1, "runtime"): 2000,
    (1, "control"): 2000,
    (1, "task"): 2000,
    (900, "control"): 20,
    (900, "task"): 20,
}
"""Of each program, by how many are live and who answers."""
NUM_ROUNDS_BEFORE = 5  # of each program in the measurement that is subtracted: it holds the starts and the ends
NUM_LIVE = (1, 896)  # while one program measures its calls; it is one of them
NUM_CALLS = 500
MAX_WAIT_S = 60.0

_SUITE = "calls"

_ROUNDS = """
# /// program
# permissions = { channels = ["nobody"] }
# ///
import asyncio, time
from loopwright import Queue, emit
from loopwright.sdk.port import current_port

async def main(num_rounds: int, answered_by: str, start_s: float) -> None:
    port, queue = current_port(), Queue()
    await queue.synchronize()
    emit("ready")
    await asyncio.sleep(start_s - time.time())
    for _ in range(num_rounds):
        if answered_by == "control":
            await queue.synchronize()
        elif answered_by == "task":
            await port.issue({"op": "broadcast", "topic": "nobody", "value": None})
        else:
            await port.issue({"op": "cancel", "handle": 0})
"""
"""Its calls are the least ones: nothing to do, and an answer without content."""

_CALLS = """
import time
from statistics import median
from loopwright import Queue, tokenize

async def main(num_calls: int, answered_by: str) -> float:
    queue = Queue()
    await queue.synchronize()
    taken_s = []
    for _ in range(num_calls):
        started_s = time.perf_counter()
        if answered_by == "control":
            await queue.synchronize()
        else:
            await tokenize("a")
        taken_s.append(time.perf_counter() - started_s)
    return median(taken_s)
"""

_PAPER = {"runtime": paper.CALL_WITHOUT_QUEUE_US, "control": paper.CALL_IN_QUEUE_US}


async def measure(options: Options, open_system: OpenSystem) -> Measured:
    async with open_system(options.model) as system:
        rows = await measure_rounds(system.runs, SystemClock(), options.num_rounds)
        rows += await measure_calls(system.runs, options.num_rounds)
    return Measured(rows=tuple(rows), workload={})


SUITE = Suite(name=_SUITE, title="bench calls: what a call of a program costs", measure=measure)


async def measure_rounds(
    runs: Runs,
    clock: Clock,
    num_measurements: int,
    num_rounds: dict[tuple[int, str], int] = NUM_ROUNDS,
    cpu_s: Callable[[], float] = time.thread_time,
) -> list[Row]:
    """Rows of the CPU of a round; each value is the median over the measurements. `cpu_s` is the CPU time of the thread
    that this runs on, which is the event loop's and runs all programs."""
    values: dict[tuple[int, str], list[float]] = {case: [] for case in num_rounds}
    for _ in range(num_measurements):
        for (num_live, answered_by), num_more in num_rounds.items():
            few, many = [
                await rounds_cpu_s(runs, clock, cpu_s, num_live, {"num_rounds": num, "answered_by": answered_by})
                for num in (NUM_ROUNDS_BEFORE, NUM_ROUNDS_BEFORE + num_more)
            ]
            values[num_live, answered_by].append(1e6 * (many - few) / (num_live * num_more))
    return [
        measured(_SUITE, case_name(live=num_live, round=answered_by), CPU_US, one)
        for (num_live, answered_by), one in values.items()
    ]


async def rounds_cpu_s(
    runs: Runs, clock: Clock, cpu_s: Callable[[], float], num_live: int, arguments: dict[str, Any]
) -> float:
    """CPU seconds of the rounds of so many programs, which begin together, and of the programs' ends. Programs take a
    time that nobody knows to start: when it was longer than the wait, everything is done again with a longer one."""
    wait_s = 0.1 + 0.003 * num_live
    while wait_s < MAX_WAIT_S:
        start_s = clock.wall_s() + wait_s
        spec = RunSpec(source=_ROUNDS, arguments={**arguments, "start_s": start_s}, filename="rounds.py")
        async with live_programs(runs, spec, num_live) as run_ids:
            gc.collect()  # garbage of the launches
            if clock.wall_s() < start_s:
                before_s = cpu_s()
                for run_id in run_ids:
                    await result_of(runs, run_id)
                return cpu_s() - before_s
        wait_s *= 2
    raise Unavailable(f"{num_live} programs did not start within {MAX_WAIT_S:g} s", hint="measure on a quieter machine")


async def measure_calls(
    runs: Runs, num_measurements: int, num_lives: tuple[int, ...] = NUM_LIVE, num_calls: int = NUM_CALLS
) -> list[Row]:
    """Rows of the time of a call; each value is the median over the measurements."""
    rows = []
    for num_live in num_lives:
        async with live_programs(runs, WAITING, num_live - 1):
            gc.collect()
            for answered_by, beside in _PAPER.items():
                arguments = {"num_calls": num_calls, "answered_by": answered_by}
                spec = RunSpec(source=_CALLS, arguments=arguments, filename="calls.py")
                taken_s = [await result_of(runs, await runs.start(spec)) for _ in range(num_measurements)]
                case = case_name(live=num_live, answered_by=answered_by)
                rows.append(measured(_SUITE, case, CALL_US, [1e6 * one_s for one_s in taken_s], beside))
    return rows
