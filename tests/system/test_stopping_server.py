"""A server that is told to stop lets runs end that no request follows, for a while, and ends the rest, each once."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from loopwright.core.events import Finished
from loopwright.core.ids import RunId
from loopwright.core.runs import ClientInput, RunSpec, open_events
from loopwright.runtime.launcher import Launcher
from loopwright.server.app import create_app
from loopwright.server.http import serve
from loopwright.server.live_run import all_finished
from system_rig import byte_system, in_loop

WAITER = """
from loopwright import receive
async def main():
    return await receive()
"""


@dataclass
class Stopping:
    """A server with a run that waits for a message, told to stop."""

    runs: Launcher
    run_id: RunId
    serving: "asyncio.Task[signal.Signals | None]"
    told: list[str]  # what the server waits for, and has waited for

    def follow(self) -> "asyncio.Task[list[Finished]]":
        """All final events that the run has."""

        async def finals() -> list[Finished]:
            async with open_events(self.runs, self.run_id) as events:
                return [event async for event in events if isinstance(event, Finished)]

        return asyncio.create_task(finals())


@asynccontextmanager
async def stopping(grace_s: int, number: signal.Signals = signal.SIGTERM) -> AsyncIterator[Stopping]:
    async with byte_system() as system:
        runs, port = system.launcher, asyncio.get_running_loop().create_future()
        told: list[str] = []

        async def others_done() -> None:
            told.append("begun")
            await all_finished(runs)
            told.append("done")

        app = create_app(runs)
        serving = asyncio.create_task(
            serve(app, "127.0.0.1", 0, port.set_result, grace_s=grace_s, others_done=others_done)
        )
        try:
            run_id = await runs.start(RunSpec(source=WAITER, filename="waiter.py", sandbox="native"))
            await port
            os.kill(os.getpid(), number)
            await until(lambda: is_refused(port.result()))
            yield Stopping(runs, run_id, serving, told)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_true():  # noqa: ASYNC110 (nobody tells of it)
            await asyncio.sleep(0.001)


def is_refused(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return False
    except OSError:
        return True


def test_on_sigterm_runs_under_way_end_by_themselves() -> None:
    async def scenario() -> None:
        async with stopping(grace_s=600) as stopped:
            finals = stopped.follow()
            await until(lambda: bool(stopped.told))
            for _ in range(100):  # turns in which it could go on
                await asyncio.sleep(0)
            assert (stopped.told, stopped.serving.done()) == (["begun"], False)
            await stopped.runs.send(stopped.run_id, ClientInput(messages=("at last",)))
            assert await stopped.serving == signal.SIGTERM
            assert stopped.told == ["begun", "done"]
            (final,) = await finals
            assert (final.code, final.result) == ("ok", "at last")

    in_loop(scenario)


def test_who_outlives_the_grace_has_one_final_event() -> None:
    async def scenario() -> None:
        async with stopping(grace_s=0) as stopped:
            finals = stopped.follow()
            assert await stopped.serving == signal.SIGTERM
            assert not finals.done()
        (final,) = await finals  # the runtime is closed
        assert final.code == "cancelled"
        assert final.error is not None
        assert final.error.message == "the server is stopping"

    in_loop(scenario)


def test_a_second_signal_waits_for_nothing_and_an_interrupt_for_requests_alone() -> None:
    async def scenario() -> None:
        async with stopping(grace_s=600) as stopped:
            await until(lambda: bool(stopped.told))
            os.kill(os.getpid(), signal.SIGTERM)
            assert await stopped.serving == signal.SIGTERM
        async with stopping(grace_s=600, number=signal.SIGINT) as stopped:
            assert await stopped.serving == signal.SIGINT
            assert stopped.told == []

    in_loop(scenario)
