"""The native sandbox: the same program, and a callable, as a task of this process."""

import asyncio
import json
from typing import Any

import pytest

from loopwright.core.errors import ProgramError
from loopwright.runtime.limits import Limits
from loopwright.sdk.port import Port, current_port, kept, lasting

from .conftest import Bench
from .fake_guest import FakeGuest


async def shout(text: str) -> str:
    answer: str = await current_port().issue({"op": "echo", "value": text.upper()})
    return answer


async def stumble() -> None:
    raise ValueError("here")


@pytest.fixture
def native() -> Bench:
    return Bench("native", None)


def test_a_callable_runs_like_a_program(native: Bench) -> None:
    async def scenario(sandbox: Any) -> str:
        return await sandbox.run_callable(shout, '{"text": "hi"}', FakeGuest(), Limits())

    assert json.loads(native.drive(scenario)) == "HI"


def test_a_callable_that_raises_names_its_own_file(native: Bench) -> None:
    async def scenario(sandbox: Any) -> None:
        await sandbox.run_callable(stumble, "{}", FakeGuest(), Limits())

    with pytest.raises(ProgramError, match=r"^ValueError: here \(.*test_native.py, line \d+\)$"):
        native.drive(scenario)


def test_two_native_programs_have_a_port_each(native: Bench) -> None:
    guests = [FakeGuest(), FakeGuest()]

    async def scenario(sandbox: Any) -> list[str]:
        return [await sandbox.run_callable(shout, json.dumps({"text": str(n)}), guests[n], Limits()) for n in (0, 1)]

    assert native.drive(scenario) == ['"0"', '"1"']
    assert [guest.ops[0]["value"] for guest in guests] == ["0", "1"]


def test_what_comes_for_a_program_that_is_over_is_dropped_whatever_it_was_waiting_for() -> None:
    """A native program is told in a later turn of the loop, and may be over by then."""

    async def scenario() -> None:
        port = Port(lambda op: json.loads(op)["handle"], lambda stream, line: None)
        given_up = lasting(port.issue({"op": "forward_text", "handle": 1}))
        given_up.cancel()
        waits = port.issue({"op": "echo", "handle": 2})
        parts = port.stream({"op": "count", "handle": 3})
        port.close()
        port.deliver('[[1, "ok", 1], [2, "error", {}], [3, "part", 1], [3, "ok", 2], [4, "ok", 3]]')
        assert kept(given_up).cancelled()
        assert waits.cancelled()
        assert await parts.next_part() is None
        assert port.num_open == 0

    asyncio.run(scenario())


def test_a_task_that_a_native_program_leaves_behind_is_cut_off(native: Bench) -> None:
    guest = FakeGuest()
    source = (
        "import asyncio\nfrom loopwright.sdk.port import Port, current_port, kept, lasting\n"
        "async def main():\n"
        "    global task\n    task = asyncio.create_task(wait())\n    await asyncio.sleep(0)\n"
        "async def wait():\n    await current_port().issue({'op': 'never'})\n"
    )

    async def scenario(sandbox: Any) -> None:
        await sandbox.run(source, "p.py", "{}", guest, Limits())

    native.drive(scenario)  # asserts that no task is left
    assert guest.names() == ["never"]
