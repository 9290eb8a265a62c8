"""A short load: streams of clients that read, go and stop reading. `make load` runs the long one, and measures."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from load import Report, SteppingExecutor, endless, load, measure_added, served

from system_rig import in_loop, until


def test_a_short_load_leaks_no_task_socket_or_page_and_every_reader_has_its_text() -> None:
    async def scenario() -> None:
        report: Report = await load(seed=7, seconds=2.0, num_streams=40)
        assert not report.wrong, report.wrong[0]
        assert report.ended["read all"] > 20
        assert report.ended["went"] > 0
        assert report.ended["stopped reading"] > 0

    in_loop(scenario)


def leaked_task(kept: list[object]) -> None:
    kept.append(asyncio.create_task(asyncio.Event().wait()))


def leaked_socket(kept: list[object]) -> None:
    kept.append(socket.socket())


def leaked_file(kept: list[object]) -> None:
    kept.append(Path(__file__).open())  # noqa: SIM115 (it is to stay open)


@pytest.mark.parametrize("leak", [leaked_task, leaked_socket, leaked_file])
def test_what_stays_behind_is_found(leak: Callable[[list[object]], None]) -> None:
    kept: list[object] = []

    def once(share: float) -> None:
        if not kept:
            leak(kept)

    async def scenario() -> None:
        with pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match="leaked"), flatten_subgroups=True):
            await load(seed=7, seconds=0.1, num_streams=2, on_progress=once, settle_s=0.5)
        for one in kept:
            one.cancel() if isinstance(one, asyncio.Task) else one.close()  # type: ignore[attr-defined]

    in_loop(scenario)


def test_what_the_server_adds_is_measured_for_every_token_of_the_second_half() -> None:
    async def scenario() -> None:
        found = await measure_added(2, 20)
        assert len(found) >= 2
        assert min(found) > 0

    in_loop(scenario)


def test_the_pages_of_a_client_that_stops_reading_come_back_while_its_socket_is_open() -> None:
    async def scenario() -> None:
        async with served(SteppingExecutor()) as (system, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 14)
            writer.write(endless("x"))

            async def has_pages(expected: bool) -> bool:
                stats = await system.controller.stats()
                return (stats.num_free_blocks < stats.num_blocks, stats.num_live_runs == 1) == (expected, expected)

            await until(lambda: has_pages(True))
            await until(lambda: has_pages(False))
            (run,) = await system.launcher.runs()
            assert run.code == "cancelled"
            writer.transport.abort()

    in_loop(scenario)
