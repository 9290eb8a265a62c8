"""Large programs are read as small ones are, by a process of their own while the event loop goes on."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from loopwright.core.errors import ProgramRejected
from loopwright.runtime import program_reader
from loopwright.runtime.program import MAX_READ_PROGRAMS, read_program
from loopwright.runtime.program_reader import MAX_CHARS_HERE, ProgramReader

HEAD = '''"""Looks things up."""
# /// program
# permissions = { http = ["api.example.org", "127.0.0.1:*"], children = ["helper"] }
# limits = { memory_mb = 32, seconds = 9.5 }
# ///
async def main(question: str, *, pair: tuple = (1, 2.5), words: list[str] = ["é", None]) -> str: ...
async def other(x: int = 3): ...
'''
PADDING = "# and so on\n" * (MAX_CHARS_HERE // 12 + 1)


@pytest.fixture
def num_processes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many processes were started."""
    started: list[int] = []
    start = asyncio.create_subprocess_exec

    async def counted(*arguments: Any, **options: Any) -> Any:
        process = await start(*arguments, **options)
        started.append(process.pid)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", counted)
    return lambda: len(started)


async def test_a_large_program_is_what_it_is_when_read_here(num_processes: Callable[[], int]) -> None:
    for entry in ("main", "other"):
        source = HEAD + PADDING
        assert await ProgramReader().read(source, "p.py", entry) == read_program(source, "p.py", entry)
    assert num_processes() == 2


async def test_a_small_program_is_read_here(num_processes: Callable[[], int]) -> None:
    assert await ProgramReader().read(HEAD, "p.py") == read_program(HEAD, "p.py")
    assert num_processes() == 0


async def test_the_event_loop_goes_on_meanwhile() -> None:
    turns: list[int] = []

    async def count() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await ProgramReader().read(HEAD + "x = [" + "1," * 100_000 + "]\n", "p.py")
    counting.cancel()
    assert len(turns) > 10  # as many as a process starts and parses in; one parsed here would leave one or two


REJECTED = {
    "syntax": HEAD + PADDING + "def f(:\n",
    "newer_syntax": HEAD + PADDING + "type X = int\n",
    "no_main": PADDING,
    "null_bytes": HEAD + PADDING + "\0",
    "half_a_surrogate_pair": HEAD + PADDING + "'\ud800'",
    "parentheses": HEAD + PADDING + "(" * 5000,
    "nested_lists": HEAD + PADDING + "x = " + "[" * 150 + "]" * 150 + "[0]" * 100_000,
    "minus_signs": HEAD + PADDING + "x = " + "-" * 500_000 + "1",
    "attributes": HEAD + PADDING + "x" + ".y" * 400_000,
    "calls_of_calls": HEAD + PADDING + "x" + "()" * 400_000,
    "additions": HEAD + PADDING + "x = " + "1+" * 400_000 + "1",
    "blocks": HEAD + PADDING + "".join(" " * depth + "if 1:\n" for depth in range(900)),
    "metadata": "# /// program\n# limits = { memory = 1 }\n# ///\nasync def main(): pass\n" + PADDING,
}


@pytest.mark.parametrize("name", list(REJECTED))
async def test_what_is_no_program_is_rejected_in_one_line_that_names_it(name: str) -> None:
    with pytest.raises(ProgramRejected, match=r"p\.py") as caught:
        await ProgramReader().read(REJECTED[name], "p.py")
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 300


async def test_what_is_too_large_starts_no_process(num_processes: Callable[[], int]) -> None:
    with pytest.raises(ProgramRejected, match="a program has at most 1048576"):
        await ProgramReader().read(HEAD + "#" * (1 << 20), "p.py")
    assert num_processes() == 0


async def test_many_that_ask_for_one_program_share_one_reading(num_processes: Callable[[], int]) -> None:
    reader = ProgramReader()
    programs = await asyncio.gather(*(reader.read(HEAD + PADDING, "p.py") for _ in range(20)))
    assert all(program is programs[0] for program in programs)
    assert num_processes() == 1


async def test_the_last_ones_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def read(source: str, filename: str, entry: str) -> object:
        asked.append(filename)
        return read_program(HEAD, filename, entry)

    monkeypatch.setattr(program_reader, "_read_elsewhere", read)
    reader = ProgramReader()
    for number in (*range(MAX_READ_PROGRAMS), 0, MAX_READ_PROGRAMS, 0, 1):
        await reader.read(PADDING, f"{number}.py")
    assert asked == [f"{number}.py" for number in (*range(MAX_READ_PROGRAMS + 1), 1)]
    assert len(reader._read) == MAX_READ_PROGRAMS


async def test_a_parser_that_dies_rejects_its_program_and_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    start = asyncio.create_subprocess_exec

    async def killed(*arguments: Any, **options: Any) -> Any:
        process = await start(*arguments, **options)
        os.kill(process.pid, signal.SIGSEGV)
        return process

    reader = ProgramReader()
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "create_subprocess_exec", killed)
        with pytest.raises(ProgramRejected, match="the parser ended with exit code -11"):
            await reader.read(HEAD + PADDING, "p.py")
    assert (await reader.read(HEAD + PADDING, "p.py")).description == "Looks things up."


async def test_a_reading_that_takes_too_long_or_is_cancelled_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    processes: list[asyncio.subprocess.Process] = []
    has_begun = asyncio.Event()
    start = asyncio.create_subprocess_exec

    async def kept(*arguments: Any, **options: Any) -> Any:
        processes.append(await start(*arguments, **options))
        has_begun.set()
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", kept)
    with monkeypatch.context() as patched:
        patched.setattr(program_reader, "MAX_READ_S", 0.0)
        with pytest.raises(ProgramRejected, match="takes longer than 0 s to parse"):
            await ProgramReader().read(HEAD + PADDING, "p.py")
    has_begun.clear()
    reading = asyncio.create_task(ProgramReader().read(HEAD + PADDING, "p.py"))
    await has_begun.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 2
