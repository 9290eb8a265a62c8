"""Programs that stay: started, waited for until each says that it is there, and ended. Never measures time.

Used by the launch and calls suites, with the memory that they are measured by.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from loopwright.bench.together import all_of
from loopwright.core.errors import InternalError, Unavailable, from_info
from loopwright.core.events import Emit, Finished
from loopwright.core.ids import RunId
from loopwright.core.runs import Runs, RunSpec, open_events

SETTLING_S = 0.1
SETTLED_BYTES = 1 << 18  # less than an instance has

WAITING = RunSpec(
    source="""
import asyncio
from loopwright import emit, tokenize

async def main() -> None:
    await tokenize("It has done something,")
    emit("and now it waits.")
    await asyncio.Event().wait()
""",
    filename="waiting.py",
)


@asynccontextmanager
async def live_programs(runs: Runs, spec: RunSpec, num_live: int) -> AsyncIterator[Sequence[RunId]]:
    """So many runs of a program, each of which has emitted something. At the end they are cancelled."""
    run_ids = await all_of(runs.start(spec) for _ in range(num_live))
    try:
        await all_of(next_emitted(runs, run_id) for run_id in run_ids)
        yield run_ids
    finally:
        for run_id in run_ids:
            await runs.cancel(run_id)
        await all_of(ended(runs, run_id) for run_id in run_ids)


async def next_emitted(runs: Runs, run_id: RunId, after: int = -1) -> Emit:
    """The run's first emitted value with seq > after. Raises the run's error, or InternalError, if it ends before."""
    async with open_events(runs, run_id, after) as events:
        async for event in events:
            if isinstance(event, Emit):
                return event
            if isinstance(event, Finished):
                raise from_info(event.error) if event.error else InternalError(f"run {run_id} ended as {event.code}")
    raise InternalError(f"the events of run {run_id} ended without a final one")


async def ended(runs: Runs, run_id: RunId) -> Finished:
    """The run's final event."""
    async with open_events(runs, run_id) as events:
        async for event in events:
            if isinstance(event, Finished):
                return event
    raise InternalError(f"the events of run {run_id} ended without a final one")


async def result_of(runs: Runs, run_id: RunId) -> Any:  # noqa: ANN401 (JSON)
    """What the run returned. Raises its error if it failed."""
    final = await ended(runs, run_id)
    if final.code != "ok":
        raise from_info(final.error) if final.error else InternalError(f"run {run_id} ended as {final.code}")
    return final.result


async def settled_private_bytes() -> int:
    """`private_bytes` when it hardly changes: a thread closes what has served, and makes what waits for launches."""
    last = private_bytes()
    while True:
        await asyncio.sleep(SETTLING_S)
        now = private_bytes()
        if abs(now - last) <= SETTLED_BYTES:
            return now
        last = now


def private_bytes() -> int:
    """Bytes of memory that this process shares with nobody and that hold what it wrote."""
    return _kilobytes("/proc/self/smaps_rollup", "Private_Dirty:") << 10


def page_table_bytes() -> int:
    """Bytes of this process's page tables, which its private memory does not count."""
    return _kilobytes("/proc/self/status", "VmPTE:") << 10


def _kilobytes(path: str, name: str) -> int:
    try:
        lines = Path(path).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))
    except (OSError, StopIteration) as error:
        raise Unavailable(f"{path} does not say {name}", hint="private memory is measured on Linux") from error
