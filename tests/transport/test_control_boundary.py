"""The control boundary: a control client and a control server speak over a real socket, in one process and in two."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from child_process import python_process
from eventually import eventually
from fake_control import MEASURED, FakeControl
from fake_runs import MODEL
from msgspec.structs import replace
from raw_peer import RawPeer

from loopwright.core.calls import (
    AllocatePages,
    CreateQueue,
    DistributionRequest,
    ForwardText,
    Generate,
    LogprobKind,
    QueueCall,
    Sampling,
    Synchronize,
)
from loopwright.core.control import ControlLimits
from loopwright.core.errors import BadRequest, Cancelled, InternalError, Overloaded, Unavailable
from loopwright.core.going_on import Next
from loopwright.core.ids import CallId, PageName, QueueName, RunId, TenantId
from loopwright.core.results import (
    CallInfo,
    CallTiming,
    Completion,
    DebugInfo,
    Distribution,
    Done,
    ExportInfo,
    ExportList,
    Forwarded,
    Imported,
    Progress,
    QueueInfo,
    Segment,
)
from loopwright.core.told_tokens import Whose
from loopwright.transport import control_messages as messages
from loopwright.transport import link
from loopwright.transport.addresses import socket_address, socket_folder
from loopwright.transport.control_client import ControlClient
from loopwright.transport.control_server import ControlServer
from loopwright.transport.link import BINDER

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

RUN = RunId("r")
QUEUE = QueueName(1)
SYNC = Synchronize(queue=QUEUE)
GENERATE = Generate(
    queue=QUEUE, pages=(), grow_from=PageName(0), kv_len=0, tokens=(1,), positions=(0,), sampling=Sampling()
)


@asynccontextmanager
async def serving(control: FakeControl) -> AsyncIterator[tuple[ControlServer, str]]:
    with socket_folder() as folder:
        server = ControlServer(control, socket_address(folder, "control"))
        is_ready = asyncio.Event()
        task = asyncio.create_task(server.serve(is_ready.set))
        await is_ready.wait()
        try:
            yield server, socket_address(folder, "control")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def connected(control: FakeControl) -> AsyncIterator[ControlClient]:
    async with serving(control) as (_, address):
        client = await ControlClient.connect(address, name="runtime-0")
        try:
            yield client
        finally:
            client.close()


async def test_a_client_learns_the_models_when_it_connects() -> None:
    async with connected(FakeControl()) as client:
        assert client.models() == (MODEL,)


async def test_calls_arrive_in_order_and_unchanged() -> None:
    control = FakeControl()
    generate = Generate(
        queue=QUEUE,
        pages=(PageName(3),),
        grow_from=PageName(9),
        kv_len=1,
        tokens=(1, 2),
        positions=(1, 2),
        sampling=Sampling(logit_bias={5: -1.5}, temperature=0.7, seed=2**61),
        stop=("\n", "é"),
        progress=True,
    )
    calls = [CreateQueue(queue=QUEUE), AllocatePages(queue=QUEUE, pages=(PageName(3),)), generate, SYNC]
    async with connected(control) as client:
        session = client.open(RUN, ControlLimits(max_pages=5), TenantId("somebody"))
        for number, call in enumerate(calls):
            session.submit(CallId(number), call)
        answered = 0
        while answered < len(calls):
            answered += len(await session.receive())
        assert control.limits[RUN] == ControlLimits(max_pages=5)
        assert control.tenants[RUN] == "somebody"
        assert control.sessions[RUN].calls == [(CallId(number), call) for number, call in enumerate(calls)]


async def test_calls_that_go_on_arrive_as_they_were_made_and_in_their_order() -> None:
    control = FakeControl()
    text = ForwardText(queue=QUEUE, pages=(), grow_from=PageName(9), kv_len=0, tokens=(1, 2, 3), positions=(0, 1, 2),
                       distributions=(DistributionRequest(k=5),))  # fmt: skip
    texts = [text]
    for kv_len, pages, grow_from in ((3, (9,), 10), (4, (9,), 10), (5, (9, 10), 11), (6, (9, 10), None)):
        texts.append(
            replace(text, kv_len=kv_len, pages=tuple(map(PageName, pages)), tokens=(kv_len,), positions=(kv_len,),
                    grow_from=None if grow_from is None else PageName(grow_from))
        )  # fmt: skip
    async with connected(control) as client:
        sessions = [client.open(RunId(name), ControlLimits()) for name in "ab"]
        for number, call in enumerate([CreateQueue(queue=QUEUE), *texts[:3], SYNC, *texts[3:], SYNC]):
            for session in sessions:
                session.submit(CallId(number), call)
            if number % 3 == 2:
                await asyncio.sleep(0)
        for session in sessions:
            answered = 0
            while answered < 8:
                answered += len(await session.receive())
        for name in "ab":
            calls = [call for _, call in control.sessions[RunId(name)].calls]
            assert calls == [CreateQueue(queue=QUEUE), *texts[:3], SYNC, *texts[3:], SYNC]


async def test_a_call_that_goes_on_from_nothing_is_refused_and_harms_nobody() -> None:
    control = FakeControl()
    async with connected(control) as client:
        session, other = client.open(RUN, ControlLimits()), client.open(RunId("other"), ControlLimits())
        client.go_on(session.session_id, CallId(1), Next(5, 0, None, has_grown=False))
        client.go_on(99, CallId(1), Next(5, 0, None, has_grown=False))
        other.submit(CallId(2), SYNC)
        [refused] = await session.receive()
        assert (refused.call_id, refused.error and refused.error.type) == (CallId(1), "BadRequest")
        [done] = await other.receive()
        assert done.error is None


async def test_a_fault_over_a_call_that_goes_on_is_its_own_error_and_those_behind_it_are_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    control = FakeControl()
    text = ForwardText(queue=QUEUE, pages=(PageName(9),), kv_len=0, tokens=(1,), positions=(0,))
    async with connected(control) as client:
        sessions = [client.open(RunId(name), ControlLimits()) for name in "ab"]
        for session in sessions:
            session.submit(CallId(0), text)
        for session in sessions:
            assert [one.error for one in await session.receive()] == [None]

        def fail(call_id: CallId, call: QueueCall) -> None:
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(control.sessions[RunId("a")], "submit", fail)
        for session in sessions:
            session.submit(CallId(1), replace(text, kv_len=1, positions=(1,)))
        [failed], [done] = [await session.receive() for session in sessions]
        assert (failed.call_id, failed.error and failed.error.type) == (CallId(1), "InternalError")
        assert (done.call_id, done.error) == (CallId(1), None)
    assert "a fault of ours" in caplog.text


async def test_results_arrive_in_order_and_unchanged() -> None:
    control = FakeControl(is_holding=True)
    distribution = Distribution(b"\x01\x00\x00\x00", b"\x00\x00\x80\xbf", 0.4, 0.6, True)
    results = [
        Progress((4,), (-0.5,)),
        Segment((4, 5), (-0.5, -1.0), 2, "", "stop", "\n", 7, 1),
        Forwarded(kv_len=3, num_pages=1, distributions=(distribution,), token=4, logprob=-0.25),
        Imported(5, 1, (0, 1, 2, 7, 8), (9,) * 5),
        ExportList((ExportInfo("doc", 5, 1, True),)),
        DebugInfo(
            num_pages=1, max_pages=2, num_page_names=3, num_embeds=0, max_embeds=4, num_open_calls=1, max_open_calls=9,
            queues=(QueueInfo(QUEUE, -1, (CallInfo(CallId(3), "generate", "running"),), BadRequest("no").info()),),
        ),
        Done(),
    ]  # fmt: skip
    async with connected(control) as client:
        session = client.open(RUN, ControlLimits())
        await eventually(lambda: RUN in control.sessions)
        for result in results:
            control.sessions[RUN].complete(CallId(1), result)
        got = []
        while len(got) < len(results):
            got += [completion.result for completion in await session.receive()]
        assert got == results


async def test_many_calls_of_one_turn_travel_in_few_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[list[bytes]] = []
    encode = link._encode_frame
    monkeypatch.setattr(link, "_encode_frame", lambda messages: (frames.append(messages), encode(messages))[1])
    async with connected(FakeControl()) as client:
        session = client.open(RUN, ControlLimits())
        frames.clear()
        for number in range(500):
            session.submit(CallId(number), SYNC)
        answered = 0
        while answered < 500:
            answered += len(await session.receive())
        assert len(frames) <= 4


async def test_what_completes_in_one_turn_for_many_sessions_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    encode = messages.encode

    def noted(message: messages.FromControl) -> bytes:
        if isinstance(message, messages.Completed):
            sizes.append(len(message.completions))
        return encode(message)

    monkeypatch.setattr(messages, "encode", noted)
    control = FakeControl(is_holding=True)
    async with connected(control) as client:
        sessions = {RunId(f"r{number}"): client.open(RunId(f"r{number}"), ControlLimits()) for number in range(40)}
        await eventually(lambda: len(control.sessions) == 40)
        for run_id, session in control.sessions.items():
            session.complete(CallId(1), Done())
            if run_id == "r7":
                session.complete(CallId(2), Done())
        got = {run_id: [one.call_id for one in await session.receive()] for run_id, session in sessions.items()}
    assert got == {run_id: [CallId(1), CallId(2)] if run_id == "r7" else [CallId(1)] for run_id in sessions}
    assert sizes == [41]


async def test_large_results_of_one_turn_travel_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.transport.control_server.MAX_MESSAGE_BYTES", 1500)
    control = FakeControl(is_holding=True)
    async with connected(control) as client:
        session = client.open(RUN, ControlLimits())
        await eventually(lambda: RUN in control.sessions)
        for number, size in enumerate((100, 300, 5000, 300, 100)):
            control.sessions[RUN].complete(CallId(number), Progress(tuple(range(size)), ()))
        got: list[Completion] = []
        while len(got) < 5:
            got += await session.receive()
    assert [one.call_id for one in got] == list(range(5))
    assert [one.error is not None for one in got] == [False, False, True, False, False]


async def test_an_interrupt_reaches_the_session() -> None:
    control = FakeControl(is_holding=True)
    async with connected(control) as client:
        session = client.open(RUN, ControlLimits())
        session.submit(CallId(4), SYNC)
        session.interrupt(CallId(4))
        await eventually(lambda: RUN in control.sessions and control.sessions[RUN].interrupted == [CallId(4)])


async def test_closing_a_session_closes_it_on_both_sides() -> None:
    control = FakeControl(is_holding=True)
    async with connected(control) as client:
        session = client.open(RUN, ControlLimits())
        waiting = asyncio.create_task(session.receive())
        await eventually(lambda: RUN in control.sessions)
        session.close()
        session.close()
        with pytest.raises(Cancelled):
            await waiting
        await eventually(lambda: control.sessions[RUN].is_closed)


async def test_a_refused_session_says_why() -> None:
    control = FakeControl()
    control.refuse = Overloaded("600 runs are open; at most 600 fit", hint="try again")
    async with connected(control) as client:
        with pytest.raises(Overloaded, match="600 runs are open"):
            await client.open(RUN, ControlLimits()).receive()


async def test_a_session_that_fails_hands_out_its_completions_first() -> None:
    control = FakeControl(is_holding=True)
    async with connected(control) as client:
        session = client.open(RUN, ControlLimits())
        await eventually(lambda: RUN in control.sessions)
        control.sessions[RUN].complete(CallId(1), Done())
        await eventually(lambda: control.sessions[RUN].num_received == 1)
        control.sessions[RUN].fail(InternalError("the step failed"))
        await eventually(lambda: control.sessions[RUN].is_closed)
        assert [one.call_id for one in await session.receive()] == [CallId(1)]
        with pytest.raises(InternalError, match="the step failed"):
            await session.receive()


async def test_news_of_a_remote_session_are_told_and_so_is_its_end_after_them() -> None:
    control = FakeControl(is_holding=True)
    async with connected(control) as client:
        session = client.open(RUN, ControlLimits())
        said: list[object] = []

        def take() -> None:
            try:
                said.extend(one.call_id for one in session.take())
            except InternalError as error:
                said.append(error.message)

        session.when_news(take)
        await eventually(lambda: RUN in control.sessions)
        control.sessions[RUN].complete(CallId(1), Done())
        await eventually(lambda: said == [CallId(1)])
        session.deliver(Completion(CallId(2), Done()))
        session.end(InternalError("the step failed"))
        await eventually(lambda: len(said) == 3)
        assert said == [CallId(1), CallId(2), "the step failed"]


async def test_a_refusal_that_is_there_when_submit_returns_can_be_taken_at_once() -> None:
    async with connected(FakeControl()) as client:
        session = client.open(RUN, ControlLimits())
        told: list[int] = []
        session.when_news(lambda: told.append(1))
        session.submit(CallId(1), AllocatePages(queue=QUEUE, pages=(PageName(2**80),)))
        assert [one.call_id for one in session.take()] == [CallId(1)]
        await asyncio.sleep(0)
        assert told == []


async def test_a_call_that_cannot_be_sent_completes_with_an_error() -> None:
    async with connected(FakeControl()) as client:
        session = client.open(RUN, ControlLimits())
        session.submit(CallId(1), AllocatePages(queue=QUEUE, pages=(PageName(2**80),)))
        (completion,) = await session.receive()
        assert completion.error is not None
        assert completion.error.code == "bad_request"


async def test_a_call_that_the_other_side_refuses_completes_with_an_error() -> None:
    async with connected(FakeControl()) as client:
        session = client.open(RUN, ControlLimits())
        session.submit(CallId(1), CreateQueue(queue=QUEUE, priority=99))
        (completion,) = await session.receive()
        assert completion.error is not None
        assert completion.error.type == BadRequest.__name__


async def test_stats_cross() -> None:
    async with connected(FakeControl()) as client:
        assert (await client.stats()).num_steps == 11


async def test_metrics_and_timings_cross_and_a_run_is_counted_under_its_program() -> None:
    control = FakeControl(is_holding=True)
    timing = CallTiming(1.0, None, 2.5, 3.0, prompt_tokens=4, cached_tokens=2, generated_tokens=1)
    async with connected(control) as client:
        assert await client.metrics() == MEASURED
        session = client.open(RUN, ControlLimits(), program="agent")
        session.submit(CallId(1), SYNC)
        await client.stats()  # everything sent before has arrived
        control.sessions[RUN].complete(CallId(1), Done(), timing)
        (completion,) = await session.receive()
        assert control.programs == ["agent"]
        assert completion.timing == timing


async def test_a_client_that_closes_has_its_sessions_closed_and_no_other() -> None:
    control = FakeControl(is_holding=True)
    async with serving(control) as (_, address):
        leaving = await ControlClient.connect(address, name="runtime-0")
        staying = await ControlClient.connect(address, name="runtime-1")
        leaving.open(RunId("a"), ControlLimits())
        staying.open(RunId("b"), ControlLimits())
        await eventually(lambda: len(control.sessions) == 2)
        leaving.close()
        await eventually(lambda: control.sessions[RunId("a")].is_closed)
        assert not control.sessions[RunId("b")].is_closed
        assert (await staying.stats()).num_steps == 11
        staying.close()


async def test_a_worker_reported_dead_has_its_sessions_closed() -> None:
    control = FakeControl(is_holding=True)
    async with serving(control) as (server, address):
        client = await ControlClient.connect(address, name="runtime-0")
        client.open(RUN, ControlLimits())
        await eventually(lambda: RUN in control.sessions)
        server.peer_died("runtime-7")
        assert not control.sessions[RUN].is_closed
        server.peer_died("runtime-0")
        assert control.sessions[RUN].is_closed
        client.close()


async def test_when_the_model_worker_goes_every_open_request_ends_and_new_ones_are_refused() -> None:
    control = FakeControl(is_holding=True)
    async with serving(control) as (_, address):
        client = await ControlClient.connect(address, name="runtime-0")
        session = client.open(RUN, ControlLimits())
        session.submit(CallId(1), SYNC)
        await eventually(lambda: RUN in control.sessions)
        waiting = asyncio.create_task(session.receive())
    with pytest.raises(InternalError, match="the model worker died"):
        await waiting
    assert not client.is_alive
    with pytest.raises(Unavailable):
        client.open(RunId("new"), ControlLimits())
    with pytest.raises(Unavailable):
        await client.stats()
    session.close()
    client.close()


async def test_a_model_worker_reported_dead_ends_every_session() -> None:
    async with connected(FakeControl(is_holding=True)) as client:
        session = client.open(RUN, ControlLimits())
        client.peer_died()
        with pytest.raises(InternalError, match="the model worker died"):
            await session.receive()


async def test_a_model_worker_that_never_comes_is_an_error_that_names_the_address() -> None:
    with socket_folder() as folder, pytest.raises(Unavailable, match="no model worker answered at /"):
        await ControlClient.connect(socket_address(folder, "nobody"), name="runtime-0", timeout_s=0.01)


@pytest.mark.parametrize("frame", [b"", b"\xff\xff", b"\x91\xc4\x02\xff\xff", b"\x93", b"\x91\xc4\x03\x91\xa1x"])
async def test_a_malformed_frame_is_dropped_and_the_service_goes_on(frame: bytes) -> None:
    async with serving(FakeControl()) as (_, address):
        peer = RawPeer(address)
        peer.send_frame(frame)
        peer.send_frame(frame)
        client = await ControlClient.connect(address, name="runtime-0")
        assert (await client.stats()).num_steps == 11
        client.close()
        peer.close()


async def test_a_client_that_takes_nothing_holds_up_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.transport.link.MAX_OUTBOX_BYTES", 1 << 16)
    control = FakeControl(is_holding=True)
    async with serving(control) as (_, address):
        slow = await ControlClient.connect(address, name="slow")
        brisk = await ControlClient.connect(address, name="brisk")
        session = slow.open(RUN, ControlLimits())
        await eventually(lambda: RUN in control.sessions)
        stream = slow._link._connections[BINDER]._transport
        stream.pause_reading()  # its loop never gets to its socket
        large, num_large = Progress(tuple(range(10_000)), ()), 1000  # about 30 kB each: more than all buffers hold
        for number in range(num_large):
            control.sessions[RUN].complete(CallId(number), large)
            await asyncio.sleep(0)
            if number % 100 == 0:
                assert (await brisk.stats()).num_steps == 11
        assert control.sessions[RUN].num_received < num_large  # the rest waits in control, not in the socket's memory
        whose = Whose([control.sessions[RUN].name], [CallId(0)], ["raw"])
        assert not control.sessions[RUN].reader.take_tokens(whose, (1,), (0.0,), ()), "a token would overtake the rest"

        stream.resume_reading()
        got: list[int] = []
        while len(got) < num_large:
            got += [completion.call_id for completion in await session.receive()]
        assert got == list(range(num_large))
        slow.close()
        brisk.close()


WORKER = """
import asyncio, sys
from fake_control import FakeControl
from loopwright.transport.control_server import ControlServer
asyncio.run(ControlServer(FakeControl(is_holding=True), sys.argv[1]).serve())
"""

CLIENT = """
import asyncio, sys
from loopwright.core.control import ControlLimits
from loopwright.transport.control_client import ControlClient
async def main():
    client = await ControlClient.connect(sys.argv[1], name="runtime-0")
    session = client.open("r", ControlLimits())
    await session.receive()
asyncio.run(main())
"""


async def test_a_killed_model_worker_ends_the_sessions_at_once() -> None:
    with socket_folder() as folder:
        address = socket_address(folder, "control")
        with python_process(WORKER, address) as worker:
            client = await ControlClient.connect(address, name="runtime-0")
            session = client.open(RUN, ControlLimits())
            session.submit(CallId(1), SYNC)
            await client.stats()
            waiting = asyncio.create_task(session.receive())
            worker.kill()
            with pytest.raises(InternalError, match="the model worker died"):
                await waiting
            client.close()


async def test_a_killed_runtime_worker_has_its_sessions_closed() -> None:
    control = FakeControl(is_holding=True)
    async with serving(control) as (_, address):
        with python_process(CLIENT, address) as worker:
            await eventually(lambda: RUN in control.sessions)
            worker.kill()
            await eventually(lambda: control.sessions[RUN].is_closed)


async def test_a_result_too_large_to_send_is_an_error_of_its_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.transport.control_server.MAX_MESSAGE_BYTES", 1000)
    control = FakeControl(is_holding=True)
    async with connected(control) as client:
        session = client.open(RUN, ControlLimits())
        await eventually(lambda: RUN in control.sessions)
        control.sessions[RUN].complete(CallId(1), Progress(tuple(range(1000)), ()))
        control.sessions[RUN].complete(CallId(2), Done())
        got = await session.receive()
        while len(got) < 2:
            got += await session.receive()
        assert got[0].error is not None
        assert got[0].error.code == "limit"
        assert got[1].result == Done()


async def test_tokens_of_many_sessions_come_as_one_message_and_are_each_sessions_own() -> None:
    control = FakeControl(is_holding=True)
    async with connected(control) as client:
        sessions = {name: client.open(RunId(name), ControlLimits()) for name in "abc"}
        await eventually(lambda: len(control.sessions) == 3)
        fakes = [control.sessions[RunId(name)] for name in "abc"]
        assert len({id(one.reader) for one in fakes}) == 1, "one reader, for all of a client"
        whose = Whose([one.name for one in fakes], [CallId(7), CallId(8), CallId(9)], ["raw", "processed", "raw"])
        assert fakes[0].reader.take_tokens(whose, (1, 2, 3), (-1.0, -2.0, -3.0), ())
        assert fakes[0].reader.take_tokens(whose, (4, 5, 6), (-4.0, -5.0, -6.0), (1,))
        fakes[1].complete(CallId(8), Done())
        got = {name: [] for name in sessions}
        while sum(map(len, got.values())) < 6:
            for name in got:
                if len(got[name]) < 2:
                    got[name] += await sessions[name].receive()
        assert got["a"] == [part(7, 1, "raw"), part(7, 4, "raw")]
        assert got["b"] == [part(8, 2, "processed"), Completion(CallId(8), Done())], "its second token was left out"
        assert got["c"] == [part(9, 3, "raw"), part(9, 6, "raw")]


async def test_a_completion_goes_before_tokens_that_came_after_it_and_tokens_of_a_closed_session_nowhere() -> None:
    control = FakeControl(is_holding=True)
    async with connected(control) as client:
        session, closed = client.open(RUN, ControlLimits()), client.open(RunId("other"), ControlLimits())
        await eventually(lambda: len(control.sessions) == 2)
        fakes = [control.sessions[RUN], control.sessions[RunId("other")]]
        closed.close()
        fakes[0].complete(CallId(1), Done())
        await asyncio.sleep(0)  # taken from the session, and not sent yet
        whose = Whose([one.name for one in fakes], [CallId(2), CallId(2)], ["raw", "raw"])
        assert fakes[0].reader.take_tokens(whose, (1, 2), (-1.0, -2.0), ())
        got = []
        while len(got) < 2:
            got += await session.receive()
        assert got == [Completion(CallId(1), Done()), part(2, 1, "raw")]


def part(call_id: int, token_id: int, kind: LogprobKind) -> Completion:
    """A token whose log-probability is as far below zero."""
    return Completion(CallId(call_id), Progress((token_id,), (-float(token_id),), logprob_kind=kind))


async def test_sessions_that_have_called_for_nothing_yet_are_expected_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loopwright.transport.control_server.ARRIVING_S", 1000.0)
    control = FakeControl(is_holding=True)
    async with connected(control) as client:
        one, other = client.open(RUN, ControlLimits()), client.open(RunId("other"), ControlLimits())
        await eventually(lambda: control.expected == [1, 2])
        one.submit(CallId(0), CreateQueue(queue=QUEUE))
        one.submit(CallId(1), GENERATE)
        one.submit(CallId(2), GENERATE)
        await eventually(lambda: len(control.sessions[RUN].calls) == 3)
        assert control.expected == [1, 2, 1], "a queue is nothing to run, and the second segment is no first call"
        monkeypatch.setattr("loopwright.transport.control_server.ARRIVING_S", 0.0)
        client.open(RunId("does other things"), ControlLimits())
        await eventually(lambda: control.expected == [1, 2, 1, 2, 1])
        other.close()
        await eventually(lambda: control.expected[-1] == 0)
