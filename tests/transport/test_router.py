"""The router over fake workers, and over real ones in other processes."""

import asyncio
from contextlib import ExitStack

import pytest
from child_process import python_process
from fake_runs import FakeRuns

from loopwright.core.errors import (
    BadRequest,
    InternalError,
    NotFound,
    Overloaded,
    PermissionDenied,
    ProgramRejected,
    Unavailable,
)
from loopwright.core.events import Event, Finished
from loopwright.core.ids import ONE_TENANT, RunId, TenantId
from loopwright.core.metrics import Measured, Series
from loopwright.core.runs import ClientInput, ProgramInfo, RunSpec, open_events
from loopwright.router import router as router_module
from loopwright.router.router import Router
from loopwright.transport.addresses import socket_address, socket_folder
from loopwright.transport.runs_client import RunsClient

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

HELLO = RunSpec(program="hello")


class FakeWorker(FakeRuns):
    """A worker in memory."""

    def __init__(self, name: str) -> None:
        super().__init__(prefix=name)
        self.is_alive = True

    def die(self) -> None:
        self.is_alive = False
        self.refuse_start = Unavailable("the runtime worker died")


async def read_all(runs: Router, run_id: RunId) -> list[Event]:
    return [event async for event in runs.events(run_id)]


async def test_whose_a_run_is_outlives_its_worker() -> None:
    worker, other = FakeWorker("a"), FakeWorker("b")
    router = Router([worker, other])
    run_id = await router.start(RunSpec(program="hello", tenant=TenantId("ann")))
    worker.started[0].finish()
    await read_all(router, run_id)
    worker.die()
    assert [(info.run, info.tenant) for info in await router.runs()] == [(run_id, "ann")]


async def test_runs_are_spread_evenly() -> None:
    workers = [FakeWorker("a"), FakeWorker("b"), FakeWorker("c")]
    router = Router(workers)
    await asyncio.gather(*(router.start(HELLO) for _ in range(9)))
    assert [len(worker.started) for worker in workers] == [3, 3, 3]


async def test_runs_that_wait_for_admission_count_as_load() -> None:
    first, second = FakeWorker("a"), FakeWorker("b")
    first.hold_start = asyncio.Event()
    router = Router([first, second])
    waiting = asyncio.create_task(router.start(HELLO))
    await asyncio.sleep(0)
    assert (await router.start(HELLO)).startswith("b")
    first.hold_start.set()
    assert (await waiting).startswith("a")


async def test_a_worker_whose_run_ended_gets_the_next() -> None:
    first, second = FakeWorker("a"), FakeWorker("b")
    router = Router([first, second])
    run_id = await router.start(HELLO)
    await router.start(HELLO)
    first.started[0].finish()
    await read_all(router, run_id)
    assert [await router.start(HELLO) for _ in range(2)] == ["a-1", "a-2"]


async def test_runs_that_nobody_read_are_counted_off_by_asking() -> None:
    first, second = FakeWorker("a"), FakeWorker("b")
    router = Router([first, second])
    for _ in range(4):
        await router.start(HELLO)
    for run in first.started:
        run.finish()
    await router.runs()
    assert [(await router.start(HELLO))[0] for _ in range(2)] == ["a", "a"]


async def test_a_run_is_found_by_its_id() -> None:
    first, second = FakeWorker("a"), FakeWorker("b")
    router = Router([first, second])
    await router.start(HELLO)
    run_id = await router.start(HELLO)
    await router.cancel(run_id)
    assert (first.cancelled, second.cancelled) == ([], [run_id])
    assert isinstance((await read_all(router, run_id))[-1], Finished)


async def test_a_run_that_another_process_started_is_found_by_asking() -> None:
    first, second = FakeWorker("a"), FakeWorker("b")
    run_id = await second.start(HELLO)
    second.started[0].finish()
    router = Router([first, second])
    assert len(await read_all(router, run_id)) == 2
    with pytest.raises(NotFound):
        await router.cancel(RunId("none"))


async def test_a_program_is_deployed_everywhere() -> None:
    workers = [FakeWorker("a"), FakeWorker("b")]
    router = Router(workers)
    info = await router.deploy("agent", "source", "agent.py", TenantId("ann"))
    assert [worker.owners for worker in workers] == [{"agent": "ann"}, {"agent": "ann"}]
    assert [worker.deployed for worker in workers] == [{"agent": info}, {"agent": info}]
    assert await router.programs() == (info,)


async def test_a_program_is_removed_everywhere_and_a_worker_that_comes_later_does_not_have_it() -> None:
    workers = [FakeWorker("a"), FakeWorker("b")]
    router = Router(workers)
    for name in ("agent", "other"):
        await router.deploy(name, "source", f"{name}.py", TenantId("ann"))
    await router.undeploy("agent", TenantId("ann"))
    assert [set(worker.deployed) for worker in workers] == [{"other"}, {"other"}]
    with pytest.raises(NotFound):
        await router.undeploy("agent", TenantId("ann"))
    late = FakeWorker("c")
    late.add_program("agent")  # as it read them from the disk, before
    await router.admit(late)
    assert set(late.deployed) == {"other"}
    await router.admit(FakeWorker("d"))  # which read them after


async def test_what_changes_while_a_worker_is_admitted_reaches_it() -> None:
    class Slow(FakeWorker):
        async def deploy(self, name: str, source: str, filename: str, tenant: TenantId = ONE_TENANT) -> ProgramInfo:
            info = await super().deploy(name, source, filename, tenant)
            if name == "first":  # before it is the router's
                await router.undeploy("first")
                await router.deploy("third", "source", "third.py")
            return info

    router = Router([FakeWorker("a")])
    for name in ("first", "second"):
        await router.deploy(name, "source", f"{name}.py")
    slow = Slow("b")
    await router.admit(slow)
    assert set(slow.deployed) == {"second", "third"}


class Reading(FakeWorker):
    """A worker that takes its time to read a program: as many turns of the loop as the test says, for each."""

    def __init__(self, name: str, *num_turns: int) -> None:
        super().__init__(name)
        self._num_turns = list(num_turns)
        self.is_told = asyncio.Event()
        self.may_read = asyncio.Event()
        self.may_read.set()

    async def deploy(self, name: str, source: str, filename: str, tenant: TenantId = ONE_TENANT) -> ProgramInfo:
        self.is_told.set()
        await self.may_read.wait()
        for _ in range(self._num_turns.pop(0) if self._num_turns else 0):
            await asyncio.sleep(0)
        if self.owners.get(name, tenant) != tenant:
            raise PermissionDenied("another tenant's")
        return await super().deploy(name, source, filename, tenant)


async def test_of_two_who_deploy_the_same_name_at_once_all_workers_have_the_same_program() -> None:
    workers = [Reading("a", 9, 1), Reading("b", 1, 9)]
    router = Router(workers)
    await asyncio.gather(*(router.deploy("agent", source, "agent.py") for source in ("first", "second")))
    assert [worker.deployed["agent"].description for worker in workers] == ["second"] * 2


async def test_of_two_tenants_who_deploy_the_same_name_at_once_one_has_it_everywhere() -> None:
    workers = [Reading("a", 9, 1), Reading("b", 1, 9)]
    router = Router(workers)
    deploying = (router.deploy("agent", who, "agent.py", TenantId(who)) for who in ("ann", "bob"))
    answers = await asyncio.gather(*deploying, return_exceptions=True)
    assert [worker.owners for worker in workers] == [{"agent": "ann"}] * 2
    assert [isinstance(answer, PermissionDenied) for answer in answers] == [False, True]


async def test_removing_beside_deploying_leaves_all_workers_with_it_or_none() -> None:
    workers = [Reading("a", 0, 9), Reading("b", 0, 1)]
    router = Router(workers)
    await router.deploy("agent", "first", "agent.py")
    await asyncio.gather(router.deploy("agent", "second", "agent.py"), router.undeploy("agent"))
    assert [worker.deployed for worker in workers] == [{}, {}]
    assert not router._turns, "nobody's turn is kept"


async def test_who_reads_a_large_program_keeps_nobody_waiting_who_deploys_another() -> None:
    worker = Reading("a")
    router = Router([worker])
    worker.may_read.clear()
    large = asyncio.create_task(router.deploy("large", "source", "large.py"))
    await worker.is_told.wait()
    small = asyncio.create_task(router.deploy("small", "source", "small.py"))
    worker.is_told.clear()
    await worker.is_told.wait()
    worker.may_read.set()
    await asyncio.gather(large, small)
    assert set(worker.deployed) == {"large", "small"}


async def test_a_worker_that_is_admitted_while_a_program_is_being_deployed_has_it_too() -> None:
    slow, late = Reading("a"), FakeWorker("b")
    router = Router([slow])
    slow.may_read.clear()
    deploying = asyncio.create_task(router.deploy("agent", "source", "agent.py", TenantId("ann")))
    await slow.is_told.wait()
    await router.admit(late)
    slow.may_read.set()
    await deploying
    assert late.owners == {"agent": "ann"}


async def test_a_name_that_changed_hands_while_a_worker_began_is_its_new_owners() -> None:
    class HasOlder(FakeWorker):
        async def deploy(self, name: str, source: str, filename: str, tenant: TenantId = ONE_TENANT) -> ProgramInfo:
            if self.owners.get(name, tenant) != tenant:
                raise PermissionDenied("another tenant's")
            return await super().deploy(name, source, filename, tenant)

    router = Router([FakeWorker("a")])
    await router.deploy("agent", "source", "agent.py", TenantId("bob"))
    late = HasOlder("b")
    await late.deploy("agent", "older", "agent.py", TenantId("ann"))
    await router.admit(late)
    assert late.owners == {"agent": "bob"}


async def test_lists_are_merged() -> None:
    router = Router([FakeWorker("a"), FakeWorker("b")])
    started = {await router.start(HELLO) for _ in range(4)}
    assert {info.run for info in await router.runs()} == started
    assert (await router.stats()).num_steps == 3


async def test_what_workers_measured_is_united_and_what_they_share_counts_once() -> None:
    first, second = FakeWorker("a"), FakeWorker("b")
    shared = Measured({"control": (Series("failed_steps", ("tiny",), 1.0),)})
    first.measured |= shared
    second.measured |= shared
    router = Router([first, second])
    assert set((await router.metrics()).sources) == {"a", "b", "control"}
    first.die()
    assert set((await router.metrics()).sources) == {"b", "control"}
    second.die()
    assert (await router.metrics()).sources == {}


async def test_a_full_worker_is_passed_over_and_all_full_is_overloaded() -> None:
    first, second = FakeWorker("a"), FakeWorker("b")
    first.refuse_start = Overloaded("full")
    router = Router([first, second])
    assert (await router.start(HELLO)).startswith("b")
    second.refuse_start = Overloaded("full")
    with pytest.raises(Overloaded):
        await router.start(HELLO)


async def test_a_rejected_program_is_rejected_once() -> None:
    first, second = FakeWorker("a"), FakeWorker("b")
    first.refuse_start = ProgramRejected("no main")
    with pytest.raises(ProgramRejected):
        await Router([first, second]).start(HELLO)
    assert second.started == []


async def test_a_dead_worker_is_left_out_and_all_dead_is_unavailable() -> None:
    first, second = FakeWorker("a"), FakeWorker("b")
    router = Router([first, second])
    first.die()
    assert [(await router.start(HELLO))[0] for _ in range(2)] == ["b", "b"]
    assert {info.run[0] for info in await router.runs()} == {"b"}
    second.die()
    with pytest.raises(Unavailable, match="no runtime worker is up"):
        await router.start(HELLO)


async def test_what_a_worker_told_before_it_died_stays_readable_and_only_its_live_runs_end_badly() -> None:
    worker, other = FakeWorker("a"), FakeWorker("b")
    router = Router([worker, other])
    done, live = await router.start(HELLO), await router.start(HELLO)
    if live.startswith("b"):
        live = await router.start(HELLO)
    worker.by_id[done].text("all of it")
    worker.by_id[done].finish("fine")
    worker.by_id[live].text("half of")
    complete = await read_all(router, done)
    async with open_events(router, live) as events:
        assert [(await anext(events)).seq for _ in range(2)] == [0, 1]
    worker.die()
    worker.by_id[live].fail(InternalError("the runtime worker died"))  # as its client says
    told = await read_all(router, live)
    assert [event.seq for event in told] == [0, 1, 2]
    assert isinstance(told[-1], Finished)
    assert told[-1].code == "internal"
    worker.by_id.clear()
    assert await read_all(router, live) == told
    assert await read_all(router, done) == complete
    assert {info.run: info.code for info in await router.runs() if info.run[0] == "a"} == {done: "ok", live: "internal"}
    await router.cancel(live)
    with pytest.raises(BadRequest, match="is over"):
        await router.send(live, ClientInput(("hello",), is_end=False))


async def test_a_worker_that_takes_a_dead_ones_place_has_its_programs_and_gets_the_next_run() -> None:
    first, second = FakeWorker("a"), FakeWorker("b")
    router = Router([first, second])
    await router.deploy("agent", "source", "agent.py", TenantId("ann"))
    for _ in range(2):
        await router.start(HELLO)
    first.die()
    second.die()
    with pytest.raises(Unavailable):
        await router.runs()
    third = FakeWorker("c")
    await router.admit(third)
    assert third.owners == {"agent": "ann"}
    assert set(third.deployed) == {"agent"}
    assert await router.start(HELLO) == "c-0"
    assert router.models() == third.models()


async def test_events_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "MAX_ENDED_RUNS", 2)
    worker = FakeWorker("a")
    worker.on_start = lambda run: run.finish()
    router = Router([worker])
    run_ids = [await router.start(HELLO) for _ in range(4)]
    for run_id in run_ids:
        assert len(await read_all(router, run_id)) == 2  # of those forgotten here, the worker tells
    worker.die()
    with pytest.raises(NotFound):
        await read_all(router, run_ids[0])
    assert len(await read_all(router, run_ids[3])) == 2


WORKER = """
import asyncio, sys
from child_process import python_process
from fake_runs import FakeRuns
from loopwright.transport.runs_server import RunsServer
runs = FakeRuns(lambda run: run.text("a"), prefix=sys.argv[1][-1])
asyncio.run(RunsServer(runs, sys.argv[1]).serve())
"""


async def test_with_real_workers_a_kill_ends_only_the_runs_of_the_killed() -> None:
    with socket_folder() as folder, ExitStack() as cleanup:
        addresses = [socket_address(folder, name) for name in ("a", "b")]
        processes = [cleanup.enter_context(python_process(WORKER, one)) for one in addresses]
        clients = [await RunsClient.connect(one, name="server-0") for one in addresses]
        for client in clients:
            cleanup.callback(client.close)
        router = Router(clients)
        doomed, spared = await router.start(HELLO), await router.start(HELLO)
        assert (doomed, spared) == ("a-0", "b-0")
        reading = asyncio.create_task(read_all(router, doomed))
        async with open_events(router, spared) as events:
            await anext(events)
            processes[0].kill()
            last = (await reading)[-1]
            assert isinstance(last, Finished)
            assert last.code == "internal"
            assert await router.start(HELLO) == "b-1"
            assert {info.run: info.code for info in await router.runs()}["a-0"] == "internal"
            assert {info.run for info in await router.runs()} == {"a-0", "b-0", "b-1"}
            assert await read_all(router, doomed) == await read_all(router, doomed)  # it stays readable
            await router.cancel(spared)
            assert [event.code async for event in events if isinstance(event, Finished)] == ["cancelled"]
