"""A short load: streams of clients that read, go and stop reading. `make load` runs the long one, and measures."""

import asyncio

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
