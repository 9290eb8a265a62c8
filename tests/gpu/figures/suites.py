"""Sections that are suites of `loopwright bench`, each in a process of its own: who decides about a token, agents."""

import asyncio
import sys
from collections.abc import Awaitable, Callable

from figures.report import Bench, Section


def suite(*words: str) -> Callable[[Bench], Awaitable[None]]:
    """`loopwright bench` with these words, over random weights of the section's shape; its table is the section's."""

    async def measure(bench: Bench) -> None:
        if bench.device != "cuda":
            bench.say("(left out: the suites take the GPU by themselves)")
            return
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "loopwright", "bench", words[0], "--model", f"dummy:{bench.shape}", *words[1:],
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            bench.say("```")
            async for line in process.stdout:
                bench.say(line.decode(errors="replace").rstrip())
        finally:
            bench.say("```")
            if process.returncode is None:
                process.kill()
                await process.wait()

    return measure


MECHANISMS = Section(
    "mechanisms",
    "Who decides about a token",
    60,
    suite("mechanisms", "--workers", "8", "--rounds", "2"),
    ("llama-1b", "llama-8b", "llama-3b"),
)
AGENTS = Section(
    "agents",
    "Agents that call tools, as programs and as clients",
    60,
    suite("agents", "--scale", "paper", "--rounds", "1"),
    ("llama-1b",),
)
