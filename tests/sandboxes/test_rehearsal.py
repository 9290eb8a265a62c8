"""Instances that wait have played a program of the runner's own. A run finds nothing of it."""

import asyncio
import gc
import json
from typing import TYPE_CHECKING, Any

import pytest

from loopwright.core.clock import SystemClock
from loopwright.runtime.limits import Limits
from loopwright.runtime.sandboxes.instance_pool import InstancePool
from loopwright.runtime.sandboxes.native import NativeSandbox
from loopwright.runtime.sandboxes.runner_build import RunnerFiles
from loopwright.runtime.sandboxes.wasm import WasmSandbox

from .fake_guest import FakeGuest

if TYPE_CHECKING:
    import weakref

SEEN = """
import asyncio, contextvars, linecache, random, sys, warnings
from loopwright.sdk.port import current_port
from loopwright.sdk.run_state import run_state

async def main(number):
    port, state = current_port(), run_state()
    first = await port.issue({"op": "echo", "value": "mine"})
    return {
        "number": number,
        "first": first,
        "names": state.take_names(3),
        "contexts": state.take_context_number(),
        "open": port.num_open,
        "tasks": len(asyncio.all_tasks()),
        "module": sys.modules["__program__"].__file__,
        "streams": [type(sys.stdout).__name__, sys.stdout is sys.stderr],
        "drawn": random.random(),
        "filters": len(warnings.filters),
        "recursion": sys.getrecursionlimit(),
    }
"""


async def seen_by(sandbox: WasmSandbox, number: int) -> tuple[dict[str, Any], FakeGuest]:
    guest = FakeGuest()
    result = await sandbox.run(SEEN, "seen.py", json.dumps({"number": number}), guest, Limits())
    return json.loads(result), guest


async def rehearsed(sandbox: WasmSandbox) -> None:
    async with asyncio.timeout(60):
        while sandbox.num_rehearsed == 0:  # noqa: ASYNC110 (its thread tells nobody)
            await asyncio.sleep(0.001)


@pytest.mark.wasm
def test_a_run_finds_nothing_of_the_rehearsal(runner_files: RunnerFiles) -> None:
    async def both() -> list[Any]:
        found = []
        for max_parked in (0, 1):
            sandbox = WasmSandbox(runner_files.compiled, max_parked)
            try:
                if max_parked:
                    await rehearsed(sandbox)
                found.append(await seen_by(sandbox, 7))
                sandbox.check_integrity()
            finally:
                await sandbox.close()
        return found

    (fresh, fresh_guest), (after, guest) = asyncio.run(both())
    assert fresh.pop("drawn") != after.pop("drawn"), "each run has random numbers of its own"
    assert after == fresh
    assert {name: after[name] for name in ("first", "number", "names", "contexts")} == {
        "first": "mine",
        "number": 7,
        "names": 1,
        "contexts": 0,
    }
    assert [op["op"] for op in guest.ops] == [op["op"] for op in fresh_guest.ops] == ["echo"]


@pytest.mark.wasm
def test_two_rehearsed_instances_draw_different_random_numbers(runner_files: RunnerFiles) -> None:
    async def drawn() -> list[float]:
        sandbox = WasmSandbox(runner_files.compiled, 2)
        try:
            values = []
            for number in range(2):
                await rehearsed(sandbox)
                values.append((await seen_by(sandbox, number))[0]["drawn"])
            return values
        finally:
            await sandbox.close()

    one, other = asyncio.run(drawn())
    assert one != other


@pytest.mark.wasm
def test_a_program_gets_one_that_has_rehearsed_and_code_of_a_model_one_that_has_not(runner_files: RunnerFiles) -> None:
    async def scenario() -> None:
        sandbox = WasmSandbox(runner_files.compiled, 2)
        pool = sandbox._pool
        try:
            await sandbox.run("1", "code.py", "{}", FakeGuest(), Limits(), form="snippet")  # makes plain ones wait, too
            async with asyncio.timeout(60):
                while pool.num_plain < 2 or pool.num_warmed < 2 or pool._plain.num_taken:  # noqa: ASYNC110 (as above)
                    await asyncio.sleep(0.001)  # until its thread has noticed the pause: what comes now begins a burst
            sandbox._num_live += 1  # so that nothing is made meanwhile
            await sandbox.run("1", "code.py", "{}", FakeGuest(), Limits(), form="snippet")
            assert (pool.num_warmed, pool.num_plain) == (2, 1)
            await seen_by(sandbox, 7)
            assert (pool.num_warmed, pool.num_plain) == (1, 1)
            sandbox._num_live -= 1
        finally:
            await sandbox.close()

    asyncio.run(scenario())


class FakeInstance:
    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_an_instance_whose_rehearsal_fails_is_closed_and_no_run_gets_it(caplog: pytest.LogCaptureFixture) -> None:
    made: list[FakeInstance] = []
    spoilt: list[FakeInstance] = []

    def make() -> FakeInstance:
        made.append(FakeInstance())
        return made[-1]

    def warm(instance: FakeInstance) -> FakeInstance:
        if not spoilt:
            spoilt.append(instance)
            raise RuntimeError("it trapped")
        return instance

    pool = InstancePool(make, warm, 2)  # type: ignore[arg-type]
    clock = SystemClock()
    end_s = clock.now_s() + 60
    while not spoilt or not spoilt[0].is_closed:
        assert clock.now_s() < end_s
    taken = [pool.take() for _ in range(3)]
    pool.check_integrity()
    pool.close()
    assert spoilt[0] not in taken
    assert not any(one.is_closed for one in taken)
    assert "could not be warmed" in caplog.text


def test_what_the_sdk_keeps_of_a_run_ends_with_it() -> None:
    """In this process, where run follows run, nothing of an old one stays."""
    kept: list[weakref.ref[object]] = []
    NativeSandbox.kept = kept  # type: ignore[attr-defined] (the program's way to this test)
    source = (
        "import weakref\nfrom loopwright.runtime.sandboxes.native import NativeSandbox\n"
        "from loopwright.sdk.run_state import run_state\n"
        "async def main():\n    NativeSandbox.kept.append(weakref.ref(run_state()))\n"
    )
    try:
        asyncio.run(NativeSandbox().run(source, "p.py", "{}", FakeGuest(), Limits()))
    finally:
        del NativeSandbox.kept  # type: ignore[attr-defined]
    gc.collect()
    assert [one() for one in kept] == [None]
