"""What a program may take for granted: asyncio as it is everywhere, and files when its metadata says so."""

import pytest

from system_rig import byte_system, in_loop

SANDBOXES = ["native", pytest.param("wasm", marks=pytest.mark.wasm)]

ASYNCIO = """
import asyncio
from loopwright import Store

async def main():
    store, order = Store(), []

    async def step(name, seconds):
        await store.set(name, name)
        await asyncio.sleep(seconds)
        order.append(name)
        return name

    found = {}
    found["gather"] = await asyncio.gather(step("c", 0.02), step("a", 0.0), step("b", 0.01))
    found["order"] = sorted(order)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(step(str(n), 0)) for n in range(3)]
    found["group"] = [task.result() for task in tasks]
    try:
        async with asyncio.TaskGroup() as group:
            forever = group.create_task(asyncio.sleep(3600))
            group.create_task(fails())
    except* KeyError as failed:
        found["failed"] = [str(one) for one in failed.exceptions] + [forever.cancelled()]
    try:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(3600)
    except TimeoutError:
        found["timeout"] = True
    found["wait_for"] = await asyncio.wait_for(store.get("a"), 60)
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 0.01)
    except TimeoutError:
        found["wait_for_late"] = True
    queue = asyncio.Queue(1)

    async def fill():
        for n in range(5):
            await queue.put(n)
        await queue.put(None)

    filling, got = asyncio.create_task(fill()), []
    while (item := await queue.get()) is not None:
        got.append(item)
    await filling
    found["queue"] = got
    tasks = [asyncio.create_task(step("w", 0)), forever_task()]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    found["wait"] = [len(done), len(pending)]
    for task in pending:
        task.cancel()
    found["as_completed"] = sorted([await one for one in asyncio.as_completed([step("x", 0.01), step("y", 0)])])
    shielded = asyncio.create_task(step("s", 0.01))
    outer = asyncio.create_task(wait_shielded(shielded))
    await asyncio.sleep(0)
    outer.cancel()
    found["shield"] = [await shielded, (await asyncio.gather(outer, return_exceptions=True))[0].__class__.__name__]
    lock, inside = asyncio.Lock(), []

    async def alone(n):
        async with lock:
            inside.append(n)
            await store.get("a")
            inside.append(n)

    await asyncio.gather(*(alone(n) for n in range(3)))
    found["lock"] = inside
    loop = asyncio.get_running_loop()
    future, before = loop.create_future(), loop.time()
    loop.call_later(0.02, future.set_result, "called")
    found["call_later"] = [await future, loop.time() - before >= 0.019]
    return found

async def fails():
    raise KeyError("here")

def forever_task():
    return asyncio.create_task(asyncio.sleep(3600))

async def wait_shielded(task):
    await asyncio.shield(task)
"""


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_asyncio_does_what_it_does_everywhere(sandbox: str) -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            assert (await system.run(ASYNCIO, sandbox)).result == {
                "gather": ["c", "a", "b"],
                "order": ["a", "b", "c"],
                "group": ["0", "1", "2"],
                "failed": ["'here'", True],
                "timeout": True,
                "wait_for": "a",
                "wait_for_late": True,
                "queue": [0, 1, 2, 3, 4],
                "wait": [1, 1],
                "as_completed": ["x", "y"],
                "shield": ["s", "CancelledError"],
                "lock": [0, 0, 1, 1, 2, 2],
                "call_later": ["called", True],
            }

    in_loop(scenario)


FILES = """
# /// program
# limits = { max_file_bytes = 100_000 }
# ///
async def main(size: int):
    with open("notes.txt", "w") as file:
        file.write("x" * size)
    with open("notes.txt") as file:
        return len(file.read())
"""


@pytest.mark.wasm
def test_a_program_has_the_files_that_its_metadata_asks_for() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            assert (await system.run(FILES, "wasm", size=50_000)).result == 50_000
            final = (await system.run(FILES.replace("return", "while True: pass #"), "wasm", size=200_000)).final
            assert final.code == "limit"
            assert final.error is not None
            assert "its limit is 100000" in final.error.message
            final = (await system.run(FILES.replace("100_000", "0"), "wasm", size=1)).final
            assert final.code == "program_error"
            assert final.error is not None
            assert "max_file_bytes" in final.error.hint

    in_loop(scenario)
