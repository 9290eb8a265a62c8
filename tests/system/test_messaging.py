"""Runs that talk to each other, to stores and to their client, natively and in the sandbox."""

from typing import Any

import pytest

from loopwright.core.errors import BadRequest, NotFound, Overloaded
from loopwright.core.events import Emit, Receive
from loopwright.core.runs import ClientInput, RunSpec
from loopwright.runtime import mailbox
from system_rig import RunningRun, System, byte_system, in_loop, until

SANDBOXES = ["native", pytest.param("wasm", marks=pytest.mark.wasm)]

HEAD = """
# /// program
# permissions = { channels = ["room/*", "jobs"], state = ["notes"] }
# limits = { max_state_bytes = 1000 }
# ///
import asyncio
from loopwright import (
    LimitExceeded, MessagesLost, PermissionDenied, Store, broadcast, emit, pull, push, receive, subscribe
)
"""


def program(body: str, parameters: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    return f"{HEAD}\nasync def main({parameters}):\n{lines}"


LISTENER = program(
    """
async with subscribe("room/1") as messages:
    emit("subscribed")
    return [await messages.next() for _ in range(3)]
"""
)
SPEAKER = program(
    """
reached = [await broadcast("room/1", {"n": n, "text": "é"}) for n in range(3)]
return reached
"""
)
WORKER = program(
    """
done = []
while (job := await pull("jobs")) != "stop":
    done.append(job)
    await asyncio.sleep(0)
return done
"""
)
PRODUCER = program('for n in range(20): await push("jobs", n)\nfor _ in range(3): await push("jobs", "stop")')


async def emitted(system: System, run: RunningRun) -> None:
    """Waits until the run has emitted something."""
    async for event in system.launcher.events(run.run_id):
        if isinstance(event, Emit):
            return


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_programs_talk_over_topics_and_queues(sandbox: str) -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            listeners = [await system.start(LISTENER, sandbox) for _ in range(2)]
            for one in listeners:
                await emitted(system, one)
            assert (await system.run(SPEAKER, sandbox)).result == [2, 2, 2]
            heard = [{"n": n, "text": "é"} for n in range(3)]
            assert [(await one.outcome()).result for one in listeners] == [heard, heard]

            workers = [await system.start(WORKER, sandbox) for _ in range(3)]
            assert (await system.run(PRODUCER, sandbox)).result is None  # and ends before they do
            done = [(await one.outcome()).result for one in workers]
            assert sorted(job for jobs in done for job in jobs) == list(range(20))
            assert all(jobs == sorted(jobs) for jobs in done)
            assert (await system.run(program('return await broadcast("room/1", 0)'), sandbox)).result == 0

    in_loop(scenario)


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_waits_that_are_given_up_lose_nothing(sandbox: str) -> None:
    source = program(
        """
async with subscribe("room/1") as messages:
    for wait in (lambda: pull("jobs"), messages.next, receive):
        for _ in range(3):
            try:
                async with asyncio.timeout(0.001):
                    await wait()
            except TimeoutError:
                pass
    emit("ready")
    waiting = asyncio.create_task(pull("jobs"))
    await asyncio.sleep(0)
    await push("jobs", 1)  # is lent at once, and its answer is on the way
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await push("jobs", 2)
    await broadcast("room/1", 3)
    return [waiting.cancelled(), await pull("jobs"), await pull("jobs"), await messages.next(), await receive()]
"""
    )

    async def scenario() -> None:
        async with byte_system() as system:
            run = await system.start(source, sandbox)
            await emitted(system, run)
            await system.launcher.send(run.run_id, ClientInput(("hello",)))
            outcome = await run.outcome()
            assert outcome.result == [True, 1, 2, 3, "hello"]
            assert sum(isinstance(event, Receive) for event in outcome.events) == 1  # asked again, said once

    in_loop(scenario)


def test_an_answer_that_came_and_was_not_looked_at_is_not_lost() -> None:
    source = program(
        """
await push("jobs", 1)
waiting = asyncio.create_task(pull("jobs"))
import time
await asyncio.sleep(0)
while not waiting.done() and len(asyncio.all_tasks()) < 2:
    await asyncio.sleep(0)
for _ in range(n):
    await asyncio.sleep(0)  # one of these is when the answer is there and the task has not seen it
waiting.cancel()
await asyncio.gather(waiting, return_exceptions=True)
return [waiting.result()] if not waiting.cancelled() else [await pull("jobs")]
""",
        "n: int",
    )

    async def scenario() -> None:
        async with byte_system() as system:
            for n in range(12):
                assert (await system.run(source, n=n)).result == [1], n

    in_loop(scenario)


def test_a_subscriber_that_does_not_keep_up_is_told_once_and_goes_on() -> None:
    source = program(
        """
async with subscribe("room/1", max_messages=4) as messages:
    for n in range(10):
        await broadcast("room/1", n)
    try:
        await messages.next()
    except MessagesLost as lost:
        return [lost.num_lost, [await messages.next() for _ in range(4)], str(lost)]
"""
    )

    async def scenario() -> None:
        async with byte_system() as system:
            num_lost, rest, text = (await system.run(source)).result
            assert (num_lost, rest) == (6, [6, 7, 8, 9])
            assert text == "6 messages of 'room/1' were lost before they were read"

    in_loop(scenario)


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_stores_keep_text(sandbox: str) -> None:
    source = program(
        """
own, notes = Store(), Store("notes")
await own.set("k", "mine")
await notes.set("k/1", "ü")
await notes.set("k/2", "")
found = [await notes.get("k/1"), await notes.get("no"), await notes.exists("k/2"), await notes.exists("no")]
found += [await notes.keys("k/"), await own.keys(), await notes.delete("k/2"), await notes.delete("k/2")]
found += [await notes.compare_and_set("k/1", "x", "y"), await notes.compare_and_set("k/1", "ü", "y")]
found += [await notes.compare_and_set("k/1", "y", None), await notes.compare_and_set("k/1", None, "last")]
return found
"""
    )
    read = program('return [await Store("notes").get("k/1"), await Store().keys()]')

    async def scenario() -> None:
        async with byte_system() as system:
            assert (await system.run(source, sandbox)).result == [
                "ü", None, True, False, ["k/1", "k/2"], ["k"], True, False, False, True, True, True,
            ]  # fmt: skip
            assert (await system.run(read, sandbox)).result == ["last", []]

    in_loop(scenario)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ('await broadcast("room", 1)', 'channels = ["room/*", "jobs", "room"], state = ["notes"]'),
        ('await push("other", 1)', 'channels = ["room/*", "jobs", "other"], state = ["notes"]'),
        ('await pull("other")', 'channels = ["room/*", "jobs", "other"], state = ["notes"]'),
        ('async with subscribe("roo/1"): pass', 'channels = ["room/*", "jobs", "roo/1"], state = ["notes"]'),
        ('await Store("note").get("k")', 'channels = ["room/*", "jobs"], state = ["notes", "note"]'),
        ('await Store("notes2").set("k", "v")', 'channels = ["room/*", "jobs"], state = ["notes", "notes2"]'),
    ],
)
def test_what_is_not_permitted_names_the_line_to_add(body: str, line: str) -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            final = (await system.run(program(body))).final
            assert final.code == "denied"
            assert final.error is not None
            assert final.error.hint == f"write in the program's metadata: permissions = {{ {line} }}"
            bare = program(body).replace("# permissions", "# # permissions")
            assert (await system.run(bare)).final.code == "denied"

    in_loop(scenario)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('await push("jobs", "x" * (1 << 20))', "'jobs' has 1048578 bytes; the limit is 1048576"),
        ('await broadcast("room/1", "x" * (1 << 20))', "'room/1' has 1048578 bytes; the limit is 1048576"),
        (
            'await Store("notes").set("k", "x" * 1000)',
            "the store 'notes' would hold 1065 bytes; the run's limit is 1000",
        ),
        ('await Store().set("k", "x" * 1000)', "the run's own store would hold 1065 bytes; the run's limit is 1000"),
    ],
)
def test_sizes_end_at_their_limits(body: str, message: str) -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            final = (await system.run(program(body))).final
            assert (final.code, message in str(final.error)) == ("limit", True), final.error

    in_loop(scenario)


@pytest.mark.parametrize(
    "op",
    [
        '{"op": "pull", "queue": "", "ticket": 1}',
        '{"op": "pull", "queue": "jobs", "ticket": -1}',
        '{"op": "subscribe", "topic": "room/1", "subscription": 1, "max_messages": 4097}',
        '{"op": "next_messages", "subscription": 77}',
        '{"op": "store_set", "store": "", "key": "k", "value": 3}',
        '{"op": "broadcast", "topic": "room/1"}',
        '{"op": "receive", "num_received": -1}',
    ],
)
def test_malformed_calls_are_errors_of_the_call(op: str) -> None:
    source = program(f"from loopwright.sdk.port import current_port\nawait current_port().issue({op})")

    async def scenario() -> None:
        async with byte_system() as system:
            assert (await system.run(source)).final.code == "bad_request"

    in_loop(scenario)


def test_a_run_that_is_cancelled_gives_back_what_it_held() -> None:
    careless = program(
        """
from loopwright.sdk.port import current_port
await push("jobs", "first")
await push("jobs", "second")
await current_port().issue({"op": "pull", "queue": "jobs", "ticket": 1})  # and never settles
async with subscribe("room/1"):
    emit("holds")
    await asyncio.gather(pull("room/queue"), asyncio.sleep(1000))
"""
    )

    async def scenario() -> None:
        async with byte_system() as system:
            run = await system.start(careless)
            await emitted(system, run)
            await system.launcher.cancel(run.run_id)
            assert (await run.outcome()).final.code == "cancelled"
            outcome = await system.run(program('return [await pull("jobs"), await pull("jobs")]'))
            assert outcome.result == ["first", "second"]

    in_loop(scenario)


ECHO = program(
    """
heard = []
while (message := await receive()) is not None:
    heard.append(message)
    emit(message)
return [heard, await receive()]
"""
)


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_program_hears_its_client_until_that_has_no_more_to_say(sandbox: str) -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            run = await system.start(ECHO, sandbox)
            sent: list[Any] = ["hello", {"n": 2}, False, 0, ""]
            for message in sent:
                await system.launcher.send(run.run_id, ClientInput((message,)))
            await until(lambda: asks(system, run) == 1)  # it has read them all
            await system.launcher.send(run.run_id, ClientInput(("last",), is_end=True))
            outcome = await run.outcome()
            assert outcome.result == [[*sent, "last"], None]
            assert [event.value for event in outcome.events if isinstance(event, Emit)] == [*sent, "last"]
            with pytest.raises(BadRequest, match="is over"):
                await system.launcher.send(run.run_id, ClientInput(("late",)))
            with pytest.raises(NotFound):
                await system.launcher.send("nobody", ClientInput(("x",)))  # type: ignore[arg-type]

    in_loop(scenario)


def test_a_program_that_is_answered_like_a_model_has_no_client_to_hear() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            run_id = await system.launcher.start(RunSpec(source=ECHO, sandbox="native", has_input=False))
            assert (await RunningRun(system.launcher, run_id).outcome()).result == [[], None]

    in_loop(scenario)


def test_what_a_program_does_not_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "MAX_WAITING_BYTES", 2 * (mailbox.MESSAGE_OVERHEAD_BYTES + 3))

    async def scenario() -> None:
        async with byte_system() as system:
            run = await system.start(program("await asyncio.sleep(1000)"))
            for _ in range(2):
                await system.launcher.send(run.run_id, ClientInput(("x",)))
            with pytest.raises(Overloaded, match="the limit is 262"):
                await system.launcher.send(run.run_id, ClientInput(("x",)))
            await system.launcher.send(run.run_id, ClientInput(is_end=True))
            with pytest.raises(BadRequest, match="input has ended"):
                await system.launcher.send(run.run_id, ClientInput(("x",)))

    in_loop(scenario)


def asks(system: System, run: RunningRun) -> int:
    """How often the run has asked for a message that was not there."""
    events = system.launcher._runs[run.run_id].events._feed._events
    return sum(isinstance(event, Receive) for event in events)
