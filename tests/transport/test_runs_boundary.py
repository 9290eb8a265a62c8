"""The runs boundary: a runs client and a runs server speak over a real socket, in one process and in two."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from child_process import python_process
from eventually import eventually
from fake_runs import MODEL, FakeRuns

from loopwright.core.clock import FakeClock
from loopwright.core.errors import BadRequest, NotFound, ProgramRejected, Unavailable
from loopwright.core.events import Event, Finished, Started, Text, TokenLogprob
from loopwright.core.ids import RunId, TenantId
from loopwright.core.runs import RunSpec, open_events
from loopwright.transport.addresses import socket_address, socket_folder
from loopwright.transport.runs_client import WINDOW, RunsClient
from loopwright.transport.runs_server import RunsServer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

HELLO = RunSpec(program="hello")


@asynccontextmanager
async def serving(runs: FakeRuns) -> AsyncIterator[str]:
    with socket_folder() as folder:
        address = socket_address(folder, "runs")
        is_ready = asyncio.Event()
        task = asyncio.create_task(RunsServer(runs, address).serve(is_ready.set))
        await is_ready.wait()
        try:
            yield address
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def connected(runs: FakeRuns) -> AsyncIterator[RunsClient]:
    async with serving(runs) as address:
        client = await RunsClient.connect(address, name="server-0", clock=FakeClock(5.0))
        try:
            yield client
        finally:
            client.close()


async def read_all(runs: RunsClient, run_id: RunId, after: int = -1) -> list[Event]:
    return [event async for event in runs.events(run_id, after)]


async def test_a_run_starts_and_its_events_arrive_unchanged() -> None:
    def script(run):
        run.text("Hel", "lo")
        run.emit({"large": 10**40, "none": None, "half": 0.5})
        top = TokenLogprob(7, "bytes:\\xf0", (0xF0,), -0.5)
        run.tokens(
            text="é", index=3, channel="reasoning", tokens=(7, 8), logprobs=(TokenLogprob(8, "", None, None, (top,)),)
        )
        run.finish({"n": 1})

    fake = FakeRuns(script)
    async with connected(fake) as client:
        assert client.models() == (MODEL,)
        spec = RunSpec(source="x = 1", filename="a.py", arguments={"n": 10**40, "s": "é"}, seed=3)
        run_id = await client.start(spec)
        assert fake.started[0].spec == spec
        assert await read_all(client, run_id) == fake.started[0].events
        assert await read_all(client, run_id, after=2) == fake.started[0].events[3:]
        assert await read_all(client, run_id, after=99) == fake.started[0].events[-1:]


async def test_events_arrive_while_the_run_goes_on() -> None:
    fake = FakeRuns()
    async with connected(fake) as client:
        run_id = await client.start(HELLO)
        async with open_events(client, run_id) as events:
            assert isinstance(await anext(events), Started)
            fake.started[0].text("a")
            event = await anext(events)
            assert isinstance(event, Text)
            assert event.text == "a"


async def test_a_reader_that_leaves_is_gone_on_the_other_side_too() -> None:
    fake = FakeRuns()
    async with connected(fake) as client:
        run_id = await client.start(HELLO)
        async with open_events(client, run_id) as events:
            await anext(events)
            assert fake.started[0].num_readers == 1
        await eventually(lambda: fake.started[0].num_readers == 0)
        assert fake.cancelled == []


async def test_a_slow_reader_is_sent_no_more_than_its_window() -> None:
    fake = FakeRuns()
    async with connected(fake) as client:
        run_id = await client.start(HELLO)
        run = fake.started[0]
        run.text(*(str(number) for number in range(10 * WINDOW)))
        run.finish()
        async with open_events(client, run_id) as events:
            await anext(events)
            await client.stats()  # everything sent before has arrived
            (stream,) = client._streams.values()
            assert len(stream._events) == WINDOW - 1
            rest = [event async for event in events]
        assert rest == run.events[1:]


async def test_errors_cross_with_their_type_and_field() -> None:
    fake = FakeRuns()
    async with connected(fake) as client:
        fake.refuse_start = ProgramRejected("line 3: invalid syntax", hint="fix it", traceback="tb")
        with pytest.raises(ProgramRejected) as caught:
            await client.start(HELLO)
        assert caught.value.info() == fake.refuse_start.info()
        with pytest.raises(NotFound):
            await client.cancel(RunId("none"))
        with pytest.raises(NotFound) as missing:
            await read_all(client, RunId("none"))
        assert missing.value.field == "run"


async def test_half_a_surrogate_pair_is_a_bad_request() -> None:
    async with connected(FakeRuns()) as client:
        with pytest.raises(BadRequest):
            await client.start(RunSpec(source="\ud800"))
        assert len(client._requests) == 0


async def test_programs_runs_and_stats_cross() -> None:
    fake = FakeRuns()
    async with connected(fake) as client:
        info = await client.deploy("agent", "source", "agent.py", TenantId("ann"))
        assert fake.owners == {"agent": "ann"}
        assert await client.programs() == (info,)
        await client.undeploy("agent", TenantId("ann"))
        assert await client.programs() == ()
        with pytest.raises(NotFound, match="no program 'agent' is deployed"):
            await client.undeploy("agent", TenantId("ann"))
        run_id = await client.start(HELLO)
        assert await client.runs() == await fake.runs()
        await client.cancel(run_id)
        assert fake.cancelled == [run_id]
        assert (await client.stats()).num_steps == 3
        assert await client.metrics() == fake.measured


async def test_a_start_given_up_before_its_answer_leaves_no_run_behind() -> None:
    fake = FakeRuns()
    fake.hold_start = asyncio.Event()
    async with connected(fake) as client:
        starting = asyncio.create_task(client.start(HELLO))
        await client.stats()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        fake.hold_start.set()
        await eventually(lambda: len(fake.cancelled) == 1)
        await client.stats()
        assert len(client._requests) == 0


async def test_a_start_whose_client_has_gone_leaves_no_run_behind() -> None:
    fake = FakeRuns()
    fake.hold_start = asyncio.Event()
    async with serving(fake) as address:
        client = await RunsClient.connect(address, name="server-0")
        starting = asyncio.create_task(client.start(HELLO))
        await client.stats()
        client.close()
        with pytest.raises(Unavailable):
            await starting
        other = await RunsClient.connect(address, name="server-1")
        await other.stats()  # the goodbye has been heard
        fake.hold_start.set()
        await eventually(lambda: len(fake.cancelled) == 1)
        other.close()


async def test_a_run_that_was_cancelled_is_not_cancelled_again_when_its_server_process_has_gone() -> None:
    fake = FakeRuns()
    async with serving(fake) as address:
        client = await RunsClient.connect(address, name="server-0", clock=FakeClock(0.0))
        left, live = await client.start(HELLO), await client.start(HELLO)
        await client.cancel(left)
        client.close()
        await eventually(lambda: live in fake.cancelled)
        assert fake.cancelled == [left, live]


@pytest.mark.parametrize("says_goodbye", [False, True])
async def test_what_a_server_process_started_and_no_other_is_cancelled_when_it_has_gone(says_goodbye: bool) -> None:
    fake = FakeRuns()
    async with serving(fake) as address:
        gone, other = [await RunsClient.connect(address, name=f"server-{number}") for number in range(2)]
        live, ended, unread, others = [await client.start(HELLO) for client in (gone, gone, gone, other)]
        reading = asyncio.create_task(read_all(gone, live))
        fake.by_id[ended].finish()
        assert isinstance((await read_all(gone, ended))[-1], Finished)
        async with open_events(other, live) as events:
            assert isinstance(await anext(events), Started)
            gone.close() if says_goodbye else gone._link.close()  # as when the process is killed
            assert [event.code async for event in events if isinstance(event, Finished)] == ["cancelled"]
        await eventually(lambda: len(fake.cancelled) == 2)
        assert set(fake.cancelled) == {live, unread}
        assert {run_id for run_id, run in fake.by_id.items() if not run.is_done} == {others}
        reading.cancel()
        other.close()


async def test_when_the_worker_goes_streams_get_a_final_event_and_requests_fail() -> None:
    fake = FakeRuns()
    async with serving(fake) as address:
        client = await RunsClient.connect(address, name="server-0", clock=FakeClock(5.0))
        run_id = await client.start(HELLO)
        fake.started[0].text("a")
        reading = asyncio.create_task(read_all(client, run_id))
        await client.stats()
        fake.hold_start = asyncio.Event()
        starting = asyncio.create_task(client.start(HELLO))
        await client.stats()
    *_, last = await reading
    assert isinstance(last, Finished)
    assert (last.seq, last.time_s, last.code) == (2, 5.0, "internal")
    assert last.error is not None
    assert "the runtime worker died" in last.error.message
    with pytest.raises(Unavailable):
        await starting
    with pytest.raises(Unavailable):
        await client.runs()
    (only,) = await read_all(client, run_id, after=1)
    assert isinstance(only, Finished)
    client.close()


@pytest.mark.parametrize("message", [b"", b"\xff", b'["start",1,{"program":3}]', b"[" * 100_000, b'["nonsense"]'])
async def test_a_malformed_message_is_dropped_and_the_service_goes_on(message: bytes) -> None:
    async with serving(FakeRuns()) as address:
        client = await RunsClient.connect(address, name="server-0")
        client._link.send(b"", message)
        assert (await client.stats()).num_steps == 3
        client.close()


WORKER = """
import asyncio, sys
from fake_runs import FakeRuns
from loopwright.transport.runs_server import RunsServer
asyncio.run(RunsServer(FakeRuns(lambda run: run.text("a")), sys.argv[1]).serve())
"""


async def test_a_killed_worker_ends_its_streams_at_once() -> None:
    with socket_folder() as folder:
        address = socket_address(folder, "runs")
        with python_process(WORKER, address) as worker:
            client = await RunsClient.connect(address, name="server-0")
            run_id = await client.start(HELLO)
            async with open_events(client, run_id) as events:
                kinds = [type(await anext(events)), type(await anext(events))]
                worker.kill()
                kinds += [type(event) async for event in events]
            assert kinds == [Started, Text, Finished]
            client.close()


async def test_the_socket_folder_is_private_and_goes_away() -> None:
    with socket_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        with pytest.raises(Unavailable, match="at most 107"):
            socket_address(folder, "x" * 200)
    assert not folder.exists()


async def test_an_address_that_cannot_be_bound_is_an_error_that_names_it() -> None:
    with pytest.raises(Unavailable, match="cannot listen on /nowhere"):
        await RunsServer(FakeRuns(), "/nowhere/at/all").serve()
