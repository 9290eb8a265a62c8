"""How long running programs wait while many others are launched. Never launches them itself.

A round is a pause and a call that control answers; it takes from the end that the pause was to have to the answer.

Used by the launch suite.
"""

import asyncio
from collections.abc import Awaitable, Callable

from loopwright.bench.live import live_programs, next_emitted
from loopwright.core.ids import RunId
from loopwright.core.runs import Runs, RunSpec

NUM_NEIGHBOURS = 16
PAUSE_S = 0.01  # between two rounds of a neighbour: a token's time, so that all of them together do not fill the core

NEIGHBOUR = RunSpec(
    source=f"""
import asyncio, time
from loopwright import Queue, emit

async def main() -> None:
    queue = Queue()
    emit([])
    while True:
        rounds_s = []
        for _ in range(10):
            due_s = time.perf_counter() + {PAUSE_S}
            await asyncio.sleep({PAUSE_S})
            await queue.synchronize()
            rounds_s.append(time.perf_counter() - due_s)
        emit(rounds_s)
""",
    filename="neighbour.py",
)


async def rounds_beside(runs: Runs, act: Callable[[], Awaitable[object]], num_neighbours: int) -> list[float]:
    """Seconds of every round of each neighbour, from the batch of rounds that it was at when `act` began to one that it
    began after the end: no round that `act` held up is missing."""
    async with live_programs(runs, NEIGHBOUR, num_neighbours) as run_ids:
        is_over = asyncio.Event()
        seen = {info.run: info.num_events - 1 for info in await runs.runs()}
        async with asyncio.TaskGroup() as group:
            following = [group.create_task(_rounds_until(runs, run_id, seen[run_id], is_over)) for run_id in run_ids]
            await act()
            is_over.set()
        return [one_s for task in following for one_s in task.result()]


async def _rounds_until(runs: Runs, run_id: RunId, last_seq: int, is_over: asyncio.Event) -> list[float]:
    rounds_s: list[float] = []
    is_last = False
    while not is_last:
        is_last = is_over.is_set()
        emitted = await next_emitted(runs, run_id, last_seq)
        last_seq = emitted.seq
        rounds_s += emitted.value
    return rounds_s
