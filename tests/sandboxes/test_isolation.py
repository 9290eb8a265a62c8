"""What a program cannot do in the Wasm sandbox: reach the machine, hold others up, or outlive its run."""

import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest

from loopwright.core.errors import LimitExceeded, ProgramError
from loopwright.runtime.limits import Limits
from loopwright.runtime.sandboxes import wasm as wasm_sandbox
from loopwright.runtime.sandboxes.runner_build import RunnerFiles

from .conftest import Bench
from .fake_guest import FakeGuest
from .test_programs import program

MAIN = "async def main():\n    "


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return open('/etc/passwd').read()", "FileNotFoundError"),
        ("import os; return os.listdir('/')", "(OSError|FileNotFoundError|PermissionError|NotADirectory)"),
        ("open('/tmp/x', 'w')", "FileNotFoundError"),
        ("import socket; socket.create_connection(('127.0.0.1', 80), 1)", "(OSError|PermissionError|gaierror|Connect)"),
        ("import socket; socket.socket().bind(('127.0.0.1', 0))", "(OSError|PermissionError|AttributeError)"),
        ("import os; os.fork()", "AttributeError"),
        ("import ctypes", "ModuleNotFoundError"),
        ("import threading; threading.Thread(target=print).start()", "RuntimeError: can't start new thread"),
        ("import subprocess; subprocess.run(['ls'])", "OSError"),
        ("import multiprocessing.shared_memory", "ModuleNotFoundError"),
    ],
)
def test_the_machine_is_out_of_reach(wasm: Bench, body: str, error: str) -> None:
    with pytest.raises(ProgramError, match=f"^{error}") as caught:
        wasm.run(MAIN + body + "\n")
    assert "line 2)" in caught.value.message


def test_there_is_no_environment_no_argument_and_no_input(wasm: Bench) -> None:
    source = "import os, sys\n" + MAIN + "return [dict(os.environ), sys.argv[1:], sys.stdin.read()]\n"
    assert json.loads(wasm.run(source)) == [{}, [], ""]


def test_a_missing_import_says_what_the_sandbox_has(wasm: Bench) -> None:
    with pytest.raises(ProgramError) as caught:
        wasm.run("import json\nimport numpy\nasync def main(): pass\n")
    assert caught.value.message == "ModuleNotFoundError: No module named 'numpy' (program.py, line 2)"
    assert caught.value.hint == "the sandbox has only Python's standard library and loopwright"


def test_the_standard_library_is_there(wasm: Bench) -> None:
    modules = (
        "argparse, collections.abc, csv, datetime, decimal, difflib, email.mime.text, html.parser, http.client, "
        "importlib.metadata, json, logging.handlers, re, statistics, string, tomllib, unittest.mock, urllib.parse, "
        "urllib.request, xml.etree.ElementTree, zoneinfo, zlib, loopwright"
    )
    source = f"import {modules}\n{MAIN}return 'é'.encode('latin-1').decode('cp1252')\n"
    assert json.loads(wasm.run(source)) == "é"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import os\n" + MAIN + "os._exit(3)\n", "exit"),
        ("import os\n" + MAIN + "os.abort()\n", "aborted"),
        ("import select\n" + MAIN + "select.select([], [], [], 60)\n", "waited outside asyncio"),
        (
            "import sys\n" + MAIN + "sys.setrecursionlimit(10**7)\n    def f(n): return f(n + 1)\n    f(0)\n",
            "(nested too deeply|RecursionError|aborted)",
        ),
        (MAIN + "x = []\n    for _ in range(200_000): x = [x]\n    repr(x)\n", "(nested too deeply|RecursionError)"),
        ("import json\n" + MAIN + "json.loads('[' * 100_000 + ']' * 100_000)\n", "(nested too deeply|RecursionError)"),
        (MAIN + "def f(): return f()\n    f()\n", "RecursionError"),
    ],
)
def test_a_program_that_breaks_its_interpreter_breaks_nothing_else(wasm: Bench, source: str, message: str) -> None:
    async def scenario(sandbox: Any) -> str:
        with pytest.raises(ProgramError, match=message) as caught:
            await sandbox.run(source, "program.py", "{}", FakeGuest(), Limits())
        assert "\n" not in caught.value.message
        return await sandbox.run(MAIN + "return 1\n", "program.py", "{}", FakeGuest(), Limits())

    assert wasm.drive(scenario) == "1"


@pytest.mark.parametrize(
    "body",
    [
        "x = []\n    while True: x.append(bytearray(1 << 20))\n",
        "x = []\n    while True: x.append(str(len(x)) * 10)\n",
        "x = 'x' * (1 << 30)\n",
    ],
)
@pytest.mark.parametrize("memory_mb", [2, 48])
def test_memory_ends_at_its_limit(wasm: Bench, body: str, memory_mb: int) -> None:
    with pytest.raises(LimitExceeded, match=f"limit is {memory_mb} MiB"):
        wasm.run(MAIN + body, limits=Limits(memory_mb=memory_mb))


@pytest.mark.parametrize("num_padding", range(0, 6000, 1000))
@pytest.mark.parametrize(
    "body",
    [
        "sys.kept = kept = [None] * 100_000\n    for i in range(100_000): kept[i] = [i]\n",
        "async with asyncio.TaskGroup() as tasks: tasks.create_task(fill())\n",
    ],
    ids=["kept for ever", "by a task"],
)
def test_memory_that_is_full_to_the_last_byte_leaves_room_to_say_so(wasm: Bench, body: str, num_padding: int) -> None:
    """Small objects take every hole there is, and what holds them outlives the error. How much is left of the last page
    differs with the padding."""
    source = (
        "import asyncio, sys\nkept = []\n"
        f"async def fill():\n    kept.extend([None] * 100_000)\n    for i in range(100_000): kept[i] = [i]\n"
        f"async def main():\n    sys.padding = bytearray({num_padding})\n    {body}"
    )
    with pytest.raises(LimitExceeded, match="limit is 2 MiB"):
        wasm.run(source, limits=Limits(memory_mb=2))


def test_a_program_can_catch_the_end_of_its_memory_which_is_its_own_alone(wasm: Bench) -> None:
    source = MAIN + (
        "x = []\n    try:\n        while True: x.append(bytearray(1 << 20))\n"
        "    except MemoryError:\n        n = len(x); x.clear()\n        return 28 < n < 40\n"
    )
    assert wasm.run(source, limits=Limits(memory_mb=32)) == "true"


def test_computing_ends_at_its_limit(wasm: Bench) -> None:
    with pytest.raises(LimitExceeded, match=r"limit is 0\.1 s") as caught:
        wasm.run(MAIN + "while True: pass\n", limits=Limits(cpu_seconds=0.1))
    assert caught.value.field == "cpu_seconds"


def test_a_busy_program_lets_an_honest_one_finish(wasm: Bench) -> None:
    honest = program("total = 0\nfor n in range(20):\n    total += await issue(op='echo', value=n)\nreturn total")

    async def scenario(sandbox: Any) -> str:
        guest = FakeGuest()
        busy = asyncio.create_task(sandbox.run(MAIN + "while True: pass\n", "busy.py", "{}", guest, Limits()))
        result: str = await sandbox.run(honest, "program.py", "{}", FakeGuest(), Limits())
        assert not busy.done()
        busy.cancel()
        with pytest.raises(asyncio.CancelledError):
            await busy
        return result

    assert wasm.drive(scenario) == "190"


@pytest.mark.wasm
@pytest.mark.parametrize(("cpu_s", "max_calls"), [(0.0, 12), (0.003, 2)])
def test_a_tick_between_calls_of_a_chain_lets_nobody_in_unless_they_take_long(
    runner_files: RunnerFiles, monkeypatch: pytest.MonkeyPatch, cpu_s: float, max_calls: int
) -> None:
    """Ticks come with each call, the first of which ends a slice that was long enough for a turn."""
    monkeypatch.setattr(wasm_sandbox, "TICK_S", 3600.0)  # no others

    class TickedGuest(FakeGuest):
        def __init__(self) -> None:
            super().__init__()
            self.num_turns = 0
            self.calls_of_turn: Counter[int] = Counter()

        def submit(self, op: str) -> int:
            end_s = time.thread_time() + (cpu_s if self.ops else 2 * wasm_sandbox.MIN_SLICE_S)
            while time.thread_time() < end_s:
                pass
            engine.increment_epoch()
            self.calls_of_turn[self.num_turns] += 1
            return super().submit(op)

    async def scenario(sandbox: Any) -> None:
        nonlocal engine
        engine = sandbox._host._engine
        task = asyncio.create_task(sandbox.run(source, "program.py", "{}", guest, Limits()))
        while not task.done():
            await asyncio.sleep(0)
            guest.num_turns += 1
        assert await task == "11"

    engine: Any = None
    guest = TickedGuest()
    source = program("calls = [issue(op='echo', value=n) for n in range(12)]\nreturn await calls[-1]")
    Bench("fiber", runner_files).drive(scenario)
    assert max(guest.calls_of_turn.values()) == max_calls, guest.calls_of_turn


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "while True:\n    try:\n        await issue(op='never')\n    except BaseException:\n        pass",
        "while True: await asyncio.sleep(0)",
        "import time; time.sleep(3600)",
        "while True: print('x')",
        "await asyncio.gather(*(issue(op='never') for _ in range(100)))",
    ],
)
def test_a_cancelled_run_is_gone_wherever_it_was(wasm: Bench, body: str) -> None:
    async def scenario(sandbox: Any) -> None:
        run = asyncio.create_task(sandbox.run(program("print('here')\n" + body), "p.py", "{}", guest, Limits()))
        await guest.printed.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert sandbox.num_live == 0

    guest = FakeGuest()
    wasm.drive(scenario)


def test_a_run_cancelled_before_it_begins_leaves_nothing(anywhere: Bench) -> None:
    async def scenario(sandbox: Any) -> None:
        run = asyncio.create_task(sandbox.run(MAIN + "pass\n", "p.py", "{}", FakeGuest(), Limits()))
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    anywhere.drive(scenario)


def test_two_hundred_programs_run_together(wasm: Bench) -> None:
    source = program(
        "async with asyncio.TaskGroup() as group:\n"
        "    tasks = [group.create_task(asyncio.sleep(0.001, n)) for n in range(3)]\n"
        "return sum(task.result() for task in tasks) + await issue(op='later', turns=50, value=4)"
    )

    async def scenario(sandbox: Any) -> list[str]:
        runs = (sandbox.run(source, "p.py", "{}", FakeGuest(), Limits()) for _ in range(200))
        return await asyncio.gather(*runs)

    assert wasm.drive(scenario) == ["7"] * 200


def test_runs_share_no_state(wasm: Bench) -> None:
    source = "import json\nasync def main():\n    seen = hasattr(json, 'mark'); json.mark = 1\n    return seen\n"

    async def scenario(sandbox: Any) -> list[str]:
        return [await sandbox.run(source, "p.py", "{}", FakeGuest(), Limits()) for _ in range(12)]

    assert wasm.drive(scenario) == ["false"] * 12


def test_a_program_that_rewrites_its_runner_gets_a_plain_error(wasm: Bench) -> None:
    source = "import json\n" + MAIN + "json.dumps = lambda *a, **k: 'no json'\n    return 1\n"
    with pytest.raises(ProgramError, match=r"(not JSON|not in its contract|cannot be read)"):
        wasm.run(source)


def test_a_fault_of_the_host_ends_the_run_as_internal(wasm: Bench) -> None:
    class Broken(FakeGuest):
        def submit(self, op: str) -> int:
            raise ZeroDivisionError("ours")

    with pytest.raises(Exception, match="a call of the guest failed: ZeroDivisionError") as caught:
        wasm.run(program("await issue(op='echo')"), Broken())
    assert type(caught.value).__name__ == "InternalError"
