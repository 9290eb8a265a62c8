"""Child programs: what they return, what they may do, how many there may be, and that none outlives its parent."""

import json
import re
from typing import Any

import pytest

from loopwright.compose.config import RuntimeConfig
from loopwright.core.events import Emit, Finished
from loopwright.core.runs import RunInfo
from loopwright.runtime.limits import Limits
from system_rig import Outcome, System, byte_system, in_loop, until

HEAD = """
# /// program
# permissions = { children = ["@self", "@source", "pupil"]PERMITTED }
# limits = { LIMITS }
# ///
import asyncio
from loopwright import *
"""

FAMILY = """
async def add(a: int, b: int) -> int:
    emit({"sum": a + b})
    return a + b

async def fail(message: str):
    raise BadRequest(message, hint="a hint", field="message")

async def hang():
    emit("here")
    await asyncio.Event().wait()

async def tree(depth: int):
    if depth:
        await (await spawn(tree, depth=depth - 1)).wait()
    else:
        await hang()
"""

EXPLAIN = """
def explained(error):
    return {"type": type(error).__name__, "code": error.code, "message": error.message, "hint": error.hint}
"""


def program(body: str, *, permitted: str = "", limits: str = "") -> str:
    main = "\n".join(f"    {line}" for line in body.strip().splitlines())
    head = HEAD.replace("PERMITTED", permitted).replace("LIMITS", limits)
    return f"{head}{FAMILY}{EXPLAIN}\nasync def main():\n{main}\n"


async def ended(system: System, body: str, **options: Any) -> Outcome:
    return await system.run(program(body, **options))


async def runs_of(system: System) -> list[RunInfo]:
    return list(await system.launcher.runs())


async def everybody_ended(system: System) -> None:
    async def is_done() -> bool:
        return all(one.state == "done" for one in await runs_of(system))

    await until(is_done)
    for one in await runs_of(system):
        events = [event async for event in system.launcher.events(one.run)]
        assert [isinstance(event, Finished) for event in events] == [False] * (len(events) - 1) + [True]


@pytest.mark.parametrize("sandbox", ["native", pytest.param("wasm", marks=pytest.mark.wasm)])
def test_a_child_returns_its_result_and_has_a_run_of_its_own(sandbox: str) -> None:
    body = """
kids = [await spawn(add, a=number, b=1) for number in range(3)]
kids.append(await children.spawn("pupil", name="Zoë"))
kids.append(await spawn("async def main(x: int):\\n    return x * 2\\n", x=21))
return {"ids": [one.run_id for one in kids], "results": [await one.wait() for one in kids]}
"""

    async def scenario() -> None:
        async with byte_system() as system:
            await system.launcher.deploy("pupil", 'async def main(name: str):\n    return f"hi {name}"\n', "pupil.py")
            parent = await system.start(program(body), sandbox)
            result = (await parent.outcome()).result
            assert result["results"] == [1, 2, 3, "hi Zoë", 42]
            infos = {one.run: one for one in await runs_of(system)}
            assert {infos[run].parent for run in result["ids"]} == {parent.run_id}
            assert infos[parent.run_id].parent is None
            assert [infos[run].program for run in result["ids"]] == ["program"] * 3 + ["pupil", "program-child"]
            first = [event async for event in system.launcher.events(result["ids"][0])]
            assert [event.value for event in first if isinstance(event, Emit)] == [{"sum": 1}]
            await everybody_ended(system)

    in_loop(scenario)


def test_how_a_child_ended_badly_is_a_typed_error_with_its_code() -> None:
    body = """
found = []
for child in [await spawn(fail, message="no"), await spawn("import nothing_such\\nasync def main(): pass\\n")]:
    for _ in range(2):  # it says so as often as it is asked
        try:
            await child.wait()
        except ChildFailed as error:
            found.append([error.code, type(error.error).__name__, error.run_id == child.run_id, error.hint])
cancelled = await spawn(hang)
cancelled.cancel()
try:
    await cancelled.wait()
except ChildFailed as error:
    found.append([error.code, type(error.error).__name__])
return found
"""

    async def scenario() -> None:
        async with byte_system() as system:
            found = (await ended(system, body)).result
            assert found[:2] == [["bad_request", "BadRequest", True, "a hint"]] * 2
            assert [one[:3] for one in found[2:4]] == [["program_error", "ProgramError", True]] * 2
            assert found[4] == ["cancelled", "Cancelled"]
            await everybody_ended(system)

    in_loop(scenario)


def test_a_childs_failure_that_nobody_catches_ends_the_parent_with_its_message() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            final = (await ended(system, 'await (await spawn(fail, message="too bad")).wait()')).final
            assert final.code == "program_error"
            assert final.error is not None
            assert "ended with bad_request: too bad" in final.error.message

    in_loop(scenario)


def test_the_parent_hears_what_a_child_emits_as_it_comes() -> None:
    body = """
child = await spawn(hang)
async for event in child.events():
    if event["type"] == "emit":
        heard = event["value"]
        break
child.cancel()
rest = [event["type"] async for event in child.events(after=1)]
return [heard, rest]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            assert (await ended(system, body)).result == ["here", ["done"]]

    in_loop(scenario)


def test_who_gives_up_waiting_may_wait_again() -> None:
    body = """
child = await spawn("import asyncio\\nasync def main():\\n    await asyncio.sleep(0.01)\\n    return 7\\n")
first = asyncio.create_task(child.wait())
await asyncio.sleep(0)
first.cancel()
return [await child.wait(), *await asyncio.gather(child.wait(), child.wait())]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            assert (await ended(system, body)).result == [7, 7, 7]

    in_loop(scenario)


# What may be spawned


@pytest.mark.parametrize(
    ("what", "name"),
    [("add, a=1, b=1", "@self"), ('"async def main():\\n  pass\\n"', "@source"), ('"pupil", name="x"', "pupil")],
)
def test_nothing_may_be_spawned_that_the_permissions_do_not_list(what: str, name: str) -> None:
    others = [one for one in ("@self", "@source", "pupil") if one != name]

    async def scenario() -> None:
        async with byte_system() as system:
            await system.launcher.deploy("pupil", "async def main(name: str):\n    return name\n", "pupil.py")
            source = program(f"await spawn({what})").replace('["@self", "@source", "pupil"]', str(others))
            final = (await system.run(source)).final
            assert final.code == "denied"
            assert final.error is not None
            assert f"may not spawn {name}; permitted: {', '.join(others)}" in final.error.message
            line = f"children = {json.dumps([*others, name])}"
            assert final.error.hint == f"write in the program's metadata: permissions = {{ {line} }}"
            assert len(await runs_of(system)) == 1

    in_loop(scenario)


def test_what_cannot_be_spawned_is_refused_before_it_is_a_run() -> None:
    body = """
found = []
for what, arguments in [
    (add, {"a": 1}), (add, {"a": 1, "b": "x"}), ("pupil", {}), ("def main():\\n", {}), (lambda: 1, {}), (EXPLAIN, {}),
]:
    try:
        await spawn(what, **arguments)
    except (BadRequest, errors.ProgramRejected) as error:
        found.append(type(error).__name__)
return found
"""

    async def scenario() -> None:
        async with byte_system() as system:
            found = (await ended(system, body.replace("EXPLAIN", '"async def main(:\\n"'))).result
            assert found == ["BadRequest", "BadRequest", "NotFound", "ProgramRejected", "BadRequest", "ProgramRejected"]
            assert len(await runs_of(system)) == 1

    in_loop(scenario)


def test_a_child_may_reach_only_what_its_parent_may_too() -> None:
    child = """
# /// program
# permissions = { http = ["127.0.0.1:*"], children = ["@self"] }
# ///
from loopwright import *
async def main():
    told = []
    for act in (lambda: http.get_text("http://127.0.0.1:9/"), lambda: spawn(main)):
        try:
            await act()
        except PermissionDenied as error:
            told.append([error.message, error.hint])
    return told
"""
    body = f"return await (await spawn({child!r})).wait()"

    async def scenario() -> None:
        async with byte_system() as system:
            source = program(body, permitted=', http = ["127.0.0.1:8"]').replace('"@self", ', "")
            told = (await system.run(source)).result
            assert len(told) == 2
            assert "127.0.0.1:9; permitted: 127.0.0.1:8" in told[0][0]
            assert "may not spawn @self; permitted: nothing" in told[1][0]
            assert all("list it in the metadata of both" in hint for _, hint in told)

    in_loop(scenario)


# How many, and how long


@pytest.mark.parametrize("sandbox", ["native", pytest.param("wasm", marks=pytest.mark.wasm)])
def test_a_fork_bomb_ends_at_the_limit_of_who_lit_it_and_neighbours_do_not_notice(sandbox: str) -> None:
    bomb = """
# /// program
# permissions = { children = ["@self"] }
# limits = { max_children = 5 }
# ///
from loopwright import *
import asyncio
async def main():
    while True:
        try:
            await spawn(main)
        except LimitExceeded as error:
            emit(error.message)
            await asyncio.Event().wait()
"""

    async def scenario() -> None:
        async with byte_system() as system:
            alone = (await system.chat("hello", max_tokens=8)).text
            lit = await system.start(bomb, sandbox)

            async def is_full() -> bool:
                runs = await runs_of(system)
                bombs = [one for one in runs if one.program == "program"]
                return len(bombs) == 6 and all(one.num_events == 2 for one in bombs)  # each was told of the limit

            await until(is_full)
            assert (await system.chat("hello", max_tokens=8)).text == alone
            assert len([one for one in await runs_of(system) if one.state == "running"]) == 6
            await system.launcher.cancel(lit.run_id)
            assert (await lit.outcome()).final.code == "cancelled"
            await everybody_ended(system)

    in_loop(scenario)


def test_a_line_of_descendants_has_an_end() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            final = (await ended(system, "await (await spawn(tree, depth=20)).wait()")).final
            assert final.error is not None
            assert "8 runs stand above the child; the limit is 8" in final.error.message
            assert len(await runs_of(system)) == 8
            await everybody_ended(system)

    in_loop(scenario)


def test_room_comes_back_when_a_child_ends() -> None:
    body = """
for number in range(100):
    await (await spawn(add, a=number, b=0)).wait()
a, b = await spawn(hang), await spawn(hang)
try:
    await spawn(hang)
except LimitExceeded as error:
    return explained(error)
"""

    async def scenario() -> None:
        async with byte_system() as system:
            other = (await system.run("async def main():\n    return 1\n")).events[0].run
            parent = await system.start(program(body, limits="max_children = 2"))
            told = (await parent.outcome()).result
            assert told["message"] == (
                f"the run {parent.run_id} has 2 child programs alive, those of its children included; its limit is 2"
            )
            assert "limits.max_children" in told["hint"]
            runs = [one.run for one in await runs_of(system)]
            assert other in runs
            assert len(runs) <= 64 + 4  # of many children the last ones alone are kept

    in_loop(scenario)


def test_a_childs_limits_are_what_it_asks_for_its_parent_has_and_the_server_gives() -> None:
    child = """
# /// program
# limits = { memory_mb = 500, max_pages = 3, seconds = 3000, max_children = 1000, max_output_bytes = 7000 }
# ///
async def main():
    pass
"""
    body = f"return (await spawn({child!r})).run_id"

    async def scenario() -> None:
        runtime = RuntimeConfig(allows_native=True, caps=Limits(memory_mb=512, max_pages=100))
        async with byte_system(runtime=runtime) as system:
            limits = "memory_mb = 40, seconds = 50, max_children = 4"
            run_id = (await ended(system, body, limits=limits)).result
            found = system.launcher._find(run_id).limits
            assert (found.memory_mb, found.max_pages, found.max_children) == (40, 3, 4)
            assert found.max_output_bytes == 7000
            assert 0 < found.seconds <= 50

    in_loop(scenario)


# What a tree may use

BURNING = """
# /// program
# permissions = { children = ["@self"] }
# limits = { cpu_seconds = 1, memory_mb = 8 }
# ///
import asyncio
from loopwright import *
async def burn(rounds: int, depth: int = 0):
    if depth:
        return await (await spawn(burn, rounds=rounds, depth=depth - 1)).wait()
    for _ in range(rounds): sum(range(1000))
async def main():
BODY
"""

BURNERS = {
    "beside each other": """
kids = [await spawn(burn, rounds=10**9) for _ in range(4)]
await asyncio.gather(*(kid.wait() for kid in kids))""",
    "far below": "await (await spawn(burn, rounds=10**9, depth=3)).wait()",
    "one after another": "while True: await (await spawn(burn, rounds=2000)).wait()",
    "pieces of code": "while True: await sandbox.run('while True: pass', cpu_seconds=0.1)",
}


@pytest.mark.wasm
@pytest.mark.parametrize("backend", ["fiber", "reentrant"])
@pytest.mark.parametrize("way", BURNERS)
def test_what_children_compute_is_charged_to_all_above_them(way: str, backend: str) -> None:
    lines = BURNERS[way].strip().splitlines()
    source = BURNING.replace("BODY", "\n".join(f"    {line}" for line in lines))
    said = r"computed for 1\.\d s, [01]\.\d s of it in what it started; its limit is 1 s"
    refused = r"cpu_seconds is 0\.1; the program has 0(\.0\d+)? left of its 1"  # pieces ask first

    async def scenario() -> None:
        runtime = RuntimeConfig(sandbox_backend=backend)  # type: ignore[arg-type]
        async with byte_system(runtime=runtime) as system:
            run = await system.start(source, "wasm")
            final = (await run.outcome()).final
            assert final.code == "limit"
            assert final.error is not None
            assert re.search(refused if way == "pieces of code" else said, final.error.message)
            assert final.error.field == "cpu_seconds"
            used_s = system.launcher._find(run.run_id).budget.cpu_used_s
            assert 0.9 <= used_s <= (1.5 if backend == "fiber" else 4)  # there it is counted by the wall clock
            await everybody_ended(system)
            codes = {one.code for one in await runs_of(system) if one.parent}
            assert codes <= {"cancelled", "limit", "ok", "program_error"}

    in_loop(scenario)


@pytest.mark.wasm
def test_a_childs_own_limit_ends_it_alone_and_its_parent_goes_on_with_what_is_left() -> None:
    spender = """
# /// program
# limits = { cpu_seconds = 0.2, memory_mb = 8 }
# ///
async def main():
    while True: pass
"""
    body = f"""
try:
    await (await spawn({spender!r})).wait()
except ChildFailed as error:
    return [error.code, str(error)]
"""

    async def scenario() -> None:
        async with byte_system(runtime=RuntimeConfig()) as system:
            run = await system.start(program(body), "wasm")
            code, message = (await run.outcome()).result
            assert code == "limit"
            assert "its limit is 0.2 s" in message
            assert 0.2 <= system.launcher._find(run.run_id).budget.cpu_used_s < 1

    in_loop(scenario)


def test_the_memory_that_a_tree_is_promised_has_one_limit() -> None:
    body = """
async def full(depth, levels):
    try:
        return await spawn(tree, depth=depth)
    except LimitExceeded as error:
        return explained(error)
kids = [await spawn(hang) for _ in range(2)]
first = await full(0, 0)
kids[0].cancel()
try:
    await kids[0].wait()
except ChildFailed:
    pass
kids.append(await spawn(hang))
return first
"""

    async def scenario() -> None:
        async with byte_system() as system:
            limits = "memory_mb = 10, tree_memory_mb = 30"
            run = await system.start(program(body, limits=limits))
            told = (await run.outcome()).result
            assert told["type"] == "LimitExceeded"
            assert "10 MiB are asked for" in told["message"]
            assert "hold 30 MiB; its limit is 30 MiB" in told["message"]
            assert "limits = { tree_memory_mb = 60 }" in told["hint"]
            again = (await ended(system, body, limits="memory_mb = 10, tree_memory_mb = 29")).final
            assert again.error is not None  # the second child does not fit
            assert "hold 20 MiB; its limit is 29 MiB" in again.error.message
            wide = (await ended(system, body, limits="memory_mb = 10, tree_memory_mb = 40")).final
            assert wide.error is not None  # what was spawned cannot be returned: all fitted
            assert "not JSON" in wide.error.message

    in_loop(scenario)


def test_a_grandchild_counts_for_the_memory_of_every_run_above_it() -> None:
    body = "await (await spawn(tree, depth=3)).wait()"

    async def scenario() -> None:
        async with byte_system() as system:
            run = await system.start(program(body, limits="memory_mb = 10, tree_memory_mb = 30"))
            final = (await run.outcome()).final
            assert final.error is not None
            assert "hold 30 MiB; its limit is 30 MiB" in final.error.message
            assert len(await runs_of(system)) == 3

    in_loop(scenario)


@pytest.mark.wasm
def test_pieces_of_code_count_for_the_memory_of_the_tree() -> None:
    body = """
child = await spawn(hang)
try:
    await sandbox.run("1", memory_mb=11)
except LimitExceeded as error:
    return [error.field, (await sandbox.run("1", memory_mb=10)).result]
"""

    async def scenario() -> None:
        async with byte_system(runtime=RuntimeConfig()) as system:
            limits = "memory_mb = 20, tree_memory_mb = 50"
            outcome = await system.run(program(body, limits=limits), "wasm")
            assert outcome.result == ["tree_memory_mb", 1]

    in_loop(scenario)


def test_a_program_has_no_more_memory_than_its_tree_and_the_server_caps_both() -> None:
    async def scenario() -> None:
        runtime = RuntimeConfig(allows_native=True, caps=Limits(memory_mb=50, tree_memory_mb=40))
        async with byte_system(runtime=runtime) as system:
            for limits, expected in (("memory_mb = 9, tree_memory_mb = 8", (8, 8)), ("tree_memory_mb = 99", (40, 40))):
                run = await system.start(program("pass", limits=limits))
                await run.outcome()
                found = system.launcher._find(run.run_id).limits
                assert (found.memory_mb, found.tree_memory_mb) == expected

    in_loop(scenario)


def test_what_forgotten_children_wrote_counts_no_more() -> None:
    body = """
for _ in range(100):
    await (await spawn("from loopwright import *\\nasync def main(): emit_text('x' * 4000)\\n")).wait()
"""

    async def scenario() -> None:
        async with byte_system() as system:
            assert (await ended(system, body)).final.code == "ok"
            assert len(await runs_of(system)) < 70
            system.launcher.check_integrity()  # it counts what is kept
            assert system.launcher._num_finished_bytes < 70 * 5000

    in_loop(scenario)


# None outlives its parent


@pytest.mark.parametrize("way", ["returns", "raises", "is cancelled", "is out of time"])
@pytest.mark.parametrize("sandbox", ["native", pytest.param("wasm", marks=pytest.mark.wasm)])
def test_when_a_parent_is_over_so_is_all_below_it(way: str, sandbox: str) -> None:
    end = {"returns": "return 1", "raises": "raise ValueError", "is out of time": "await hang()"}.get(
        way, "await hang()"
    )
    body = f"""
child = await spawn(tree, depth=3)
async for event in child.events():
    break
{end}
"""

    async def scenario() -> None:
        async with byte_system() as system:
            limits = "seconds = 2" if way == "is out of time" else ""
            parent = await system.start(program(body, limits=limits), sandbox)
            if way == "is cancelled":

                async def all_there() -> bool:
                    return len(await runs_of(system)) == 5

                await until(all_there)
                await system.launcher.cancel(parent.run_id)
            code = {"returns": "ok", "raises": "program_error", "is cancelled": "cancelled"}.get(way, "deadline")
            assert (await parent.outcome()).final.code == code
            assert [one.state for one in await runs_of(system) if one.state != "done"] == []  # before its own end
            codes = {one.code for one in await runs_of(system) if one.parent}
            assert codes <= ({"cancelled", "deadline"} if way == "is out of time" else {"cancelled"})
            await everybody_ended(system)

    in_loop(scenario)


def test_cancelling_reaches_all_descendants_at_once() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            parent = await system.start(program("await (await spawn(tree, depth=4)).wait()"))

            async def all_there() -> bool:
                return len(await runs_of(system)) == 6

            await until(all_there)
            await system.launcher.cancel(parent.run_id)
            tasks = [system.launcher._find(one.run).task for one in await runs_of(system)]
            assert all(task is not None and task.cancelling() for task in tasks)  # nobody else had a turn yet
            await parent.outcome()
            await everybody_ended(system)

    in_loop(scenario)


def test_a_child_of_somebody_else_is_not_to_be_heard_or_cancelled() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            victim = await system.start("import asyncio\nasync def main():\n    await asyncio.Event().wait()\n")
            body = f"""
found = []
child = children.Child.__new__(children.Child)
vars(child).update(run_id={str(victim.run_id)!r}, _port=children.current_port())
child.cancel()
try:
    async for event in child.events():
        found.append(event)
except NotFound as error:
    found.append(error.message)
return found
"""
            assert (await ended(system, body)).result == [f"run: {victim.run_id} is no child of this run"]
            assert [one.state for one in await runs_of(system)] == ["running", "done"]
            await system.launcher.cancel(victim.run_id)
            await victim.outcome()

    in_loop(scenario)


def test_a_run_with_a_seed_has_the_same_children_again() -> None:
    source = """
async def draw():
    ctx = Context()
    ctx.append("once")
    return (await ctx.generate(max_tokens=6, temperature=1.0, ignore_eos=True)).text
"""
    body = "return [await (await spawn(draw)).wait() for _ in range(2)]"

    async def scenario() -> None:
        async with byte_system() as system:
            whole = program(body) + source
            first, again, other = [(await system.run(whole, seed=seed)).result for seed in (3, 3, 4)]
            assert first == again != other
            assert first[0] != first[1]

    in_loop(scenario)
