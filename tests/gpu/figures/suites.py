"""Sections that are suites of `loopwright bench`, each in a process of its own: who decides about a token, agents."""

import asyncio
import sys
from collections.abc import Awaitable, Callable

from figures.report import Bench, Section


def suite(*words: str, goals: str) -> Callable[[Bench], Awaitable[None]]:
    """`loopwright bench` with these words, over random weights of the section's shape; its table is the section's."""

    async def measure(bench: Bench) -> None:
        bench.say(f"Goals: {goals}.")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "loopwright", "bench", words[0], "--load", "dummy", "--shape", bench.shape,
            *words[1:], stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
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

    return measure


MECHANISMS = Section(
    "mechanisms",
    "Who decides about a token",
    75,
    suite(
        "mechanisms", "--workers", "8", "--rounds", "3",
        goals="segment 1.01 of the bare loop at most, watched 1.02; sampler 0.1 ms more, program 1.5 ms more at most",
    ),
    ("llama-1b", "llama-8b", "llama-3b"),
)  # fmt: skip
AGENTS = Section(
    "agents",
    "Agents that call tools, as programs and as clients",
    100,
    suite("agents", "--scale", "paper", "--workers", "8", "--rounds", "1", goals="the gain that arithmetic predicts"),
    ("llama-1b",),
)
