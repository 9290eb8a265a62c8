"""Sections that are suites of `loopwright bench`, each in a process of its own: who decides about a token, agents."""

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from figures.report import Bench, Section


def suite(*words: str, goals: str, case: str) -> Callable[[Bench], Awaitable[None]]:
    """`loopwright bench` with these words, over random weights of the section's shape; its table is the section's.
    `case` is a pattern for a row's case, whose group goes into the names of figures."""

    async def measure(bench: Bench) -> None:
        bench.say(f"Goals: {goals}.")
        with tempfile.TemporaryDirectory() as folder:
            rows = Path(folder, "rows.json")
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "loopwright", "bench", words[0], "--load", "dummy", "--shape", bench.shape,
                *words[1:], "--json", str(rows), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            await _follow(process, bench)
            for name, value in figures_of(rows, case).items():
                bench.found(words[0], bench.shape, name, value=value)

    return measure


async def _follow(process: asyncio.subprocess.Process, bench: Bench) -> None:
    """Says what it says, to its end. Raises RuntimeError if that is not a good one."""
    assert process.stdout is not None
    try:
        bench.say("```")
        async for line in process.stdout:
            bench.say(line.decode(errors="replace").rstrip())
        await process.wait()
    finally:
        bench.say("```")
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError(f"the suite ended with {process.returncode}")


def figures_of(path: Path, case: str) -> dict[str, float]:
    """By `GROUP/METRIC`: what is beside something else is what it is of that."""
    found = {}
    rows: list[Mapping[str, Any]] = json.loads(path.read_text())
    for row in rows:
        if match := re.search(case, row["case"]):
            found[f"{match[1]}/{row['metric']}"] = row["value"] if row.get("ratio") is None else row["ratio"]
    return found


MECHANISMS = Section(
    "mechanisms",
    "Who decides about a token",
    75,
    suite(
        "mechanisms", "--workers", "8", "--rounds", "3", case=r"mechanism=(\w+)",
        goals="segment 1.01 of the bare loop at most, watched 1.02; sampler 0.1 ms more, program 1.5 ms more at most",
    ),
)  # fmt: skip
AGENTS = Section(
    "agents",
    "Agents that call tools, as programs and as clients",
    100,
    suite(
        "agents", "--scale", "paper", "--workers", "8", "--rounds", "2", case=r"round_trip_ms=(\d+)",
        goals="the gain that arithmetic predicts",
    ),
)  # fmt: skip
