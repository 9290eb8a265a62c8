"""What a program was started with. Never changes. Used by programs."""

from dataclasses import dataclass
from typing import Any

from loopwright.sdk import resources


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run: `arguments` are what the caller gave, before defaults."""

    run: str  # its id
    version: str  # of the server
    seed: int
    arguments: dict[str, Any]


async def run_facts() -> RunFacts:
    """The facts of the run that executes here."""
    data = await resources.describe(include=["arguments"])
    return RunFacts(data["run"], data["version"], data["seed"], data["arguments"])
