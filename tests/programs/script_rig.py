"""Whole systems beside a model that says what a script says, for the tests of programs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

from loopwright.compose.config import RuntimeConfig
from loopwright.core.batch import Batch, StepResult
from loopwright.core.clock import Clock
from loopwright.core.control import ControlStats
from loopwright.core.events import Emit
from loopwright.core.runs import RunSpec
from loopwright.core.virtual_time import run_in_virtual_time
from loopwright.engine.scripted import NextToken, ScriptedExecutor
from system_rig import Outcome, RunningRun, System, byte_text, program_source, system_over

END_OF_TURN = 259
ANSWERS_AT = "assistant\n"

UNEXPORT = """
from loopwright import resources, unexport_context
async def main() -> int:
    lent = (await resources.exported_pages())["exports"]
    for one in lent:
        await unexport_context(one["name"])
    return len(lent)
"""
"""A program that takes back what others lend by name; it returns how many there were."""


class SteppedScript(ScriptedExecutor):
    """Runs a batch as it is submitted, and answers a second of virtual time later: what shares a step is then the same
    whatever else this machine does."""

    def submit(self, batch: Batch) -> Future[StepResult]:
        self.batches.append(batch)
        answer: Future[StepResult] = Future()
        asyncio.get_running_loop().call_later(1.0, answer.set_result, self._run(batch))
        return answer


def in_virtual_time(says: Callable[[str, str], str], scenario: Callable[[System], Awaitable[None]]) -> None:
    """A scenario beside such a model, as of `scripted_system`."""

    async def main(clock: Clock) -> None:
        engine = SteppedScript(turns(says), num_blocks=1024)
        runtime = RuntimeConfig(allows_native=True, needs_wasm=False, holds_deadline=False)  # a jump would be its end
        try:
            async with system_over(engine, byte_text(engine), runtime=runtime) as system:
                await scenario(system)
        finally:
            engine.close()

    run_in_virtual_time(main)


def turns(says: Callable[[str, str], str]) -> NextToken:
    """A model whose turn after the text `seen` is `says(seen, written)` in whole, of which `written` is out."""

    def next_token(history: tuple[int, ...]) -> int:
        text = bytes(token if token < 256 else 0 for token in history).decode(errors="replace")
        seen, _, written = text.rpartition(ANSWERS_AT)
        turn = says(seen, written)
        return ord(turn[len(written)]) if len(written) < len(turn) else END_OF_TURN

    return next_token


@asynccontextmanager
async def scripted_system(says: Callable[[str, str], str]) -> AsyncIterator[System]:
    async with engine_system(turns(says)) as system:
        yield system


@asynccontextmanager
async def engine_system(next_token: NextToken) -> AsyncIterator[System]:
    engine = ScriptedExecutor(next_token, num_blocks=1024)
    try:
        async with system_over(engine, byte_text(engine)) as system:
            yield system
    finally:
        engine.close()


async def run(system: System, name: str, **arguments: Any) -> tuple[Outcome, ControlStats]:
    """What came of it, and what it cost; the system is new."""
    outcome = await outcome_of(system, name, **arguments)
    return outcome, await system.controller.stats()


async def outcome_of(system: System, name: str, **arguments: Any) -> Outcome:
    """What came of it. All that is given goes to `main`, a seed too."""
    spec = RunSpec(source=program_source(name), arguments=arguments, sandbox="native", seed=0)
    return await RunningRun(system.launcher, await system.launcher.start(spec)).outcome()


def emitted(outcome: Outcome) -> list[Any]:
    return [event.value for event in outcome.events if isinstance(event, Emit)]
