"""What a program can do, the same in every sandbox."""

import json

import pytest

from loopwright.core.errors import BadRequest, OutOfPages, PermissionDenied, ProgramError

from .conftest import Bench
from .fake_guest import FakeGuest

CALLS = "import asyncio\nfrom loopwright.sdk.port import current_port\nissue = lambda **op: current_port().issue(op)\n"


def program(body: str) -> str:
    """CALLS, and an async main with this body."""
    return CALLS + "async def main():\n" + "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))


def test_main_takes_its_arguments_and_returns_its_result_as_json(anywhere: Bench) -> None:
    source = "async def main(question: str, turns: int = 2):\n    return {'q': question, 'turns': turns}\n"
    assert json.loads(anywhere.run(source, arguments='{"question": "héllo ✓"}')) == {"q": "héllo ✓", "turns": 2}


def test_a_call_gets_its_answer(anywhere: Bench) -> None:
    assert anywhere.run(program('return await issue(op="echo", value={"a": [1, "ü"]})')) == '{"a":[1,"\\u00fc"]}'


def test_calls_of_a_gather_are_open_together_and_keep_their_order(anywhere: Bench) -> None:
    guest = FakeGuest()
    source = program('return await asyncio.gather(*(issue(op="later", turns=9 - n, value=n) for n in range(8)))')
    assert json.loads(anywhere.run(source, guest)) == list(range(8))
    assert guest.names() == ["later"] * 8


def test_task_groups_timeouts_and_queues_work(anywhere: Bench) -> None:
    source = program(
        """
results = []
async with asyncio.TaskGroup() as group:
    tasks = [group.create_task(asyncio.sleep(0.001 * n, n)) for n in range(4)]
results += [task.result() for task in tasks]
try:
    async with asyncio.timeout(0.01):
        await issue(op="never")
except TimeoutError:
    results.append("timeout")
queue = asyncio.Queue()
async def put():
    await queue.put(await issue(op="echo", value="queued"))
task = asyncio.create_task(put())
results.append(await queue.get())
return results
"""
    )
    assert json.loads(anywhere.run(source)) == [0, 1, 2, 3, "timeout", "queued"]


def test_a_call_that_nobody_waits_for_any_more_is_cancelled(anywhere: Bench) -> None:
    guest = FakeGuest()
    source = program(
        """
try:
    async with asyncio.timeout(0.01):
        await issue(op="never")
except TimeoutError:
    return current_port().num_open
"""
    )
    assert anywhere.run(source, guest) == "0"
    assert guest.names() == ["never", "cancel"]
    assert guest.ops[1]["handle"] == 1
    assert guest.open == {}


def test_what_gives_back_goes_before_the_next_call_or_turn_and_not_at_all_when_main_is_over(anywhere: Bench) -> None:
    guest = FakeGuest()
    source = program(
        """
def defer(value):
    current_port().defer({"op": "echo", "value": value})
defer(1)
defer(2)
await issue(op="echo", value=3)
defer(4)
await asyncio.sleep(0)
await asyncio.sleep(0)
await issue(op="echo", value=5)
defer(6)
"""
    )
    anywhere.run(source, guest)
    assert [op["value"] for op in guest.ops] == [1, 2, 3, 4, 5]
    assert [op.get("answer", True) for op in guest.ops] == [False, False, True, False, True]


def test_what_gives_back_does_not_wait_for_a_call(anywhere: Bench) -> None:
    guest = FakeGuest()
    source = program(
        """
current_port().defer({"op": "echo", "value": 1})
try:
    async with asyncio.timeout(0.01):
        await asyncio.Event().wait()
except TimeoutError:
    current_port().post({"op": "echo", "value": 2})
    current_port().defer({"op": "echo", "value": 3})
    raise ValueError from None
"""
    )
    with pytest.raises(ProgramError):
        anywhere.run(source, guest)
    assert [op["value"] for op in guest.ops] == [1, 2]


def test_a_stream_gives_its_parts_and_then_its_end(anywhere: Bench) -> None:
    source = program(
        """
stream = current_port().stream({"op": "count", "n": 5})
parts = []
while (part := await stream.next_part()) is not None:
    parts.append(part)
return [parts, await stream.final()]
"""
    )
    assert json.loads(anywhere.run(source)) == [[0, 1, 2, 3, 4], "end"]


def test_a_stream_that_is_interrupted_ends_early(anywhere: Bench) -> None:
    guest = FakeGuest()
    source = program(
        """
stream = current_port().stream({"op": "count", "n": 1000000})
first = await stream.next_part()
stream.interrupt()
return [first, await stream.final(), current_port().num_open]
"""
    )
    assert json.loads(anywhere.run(source, guest)) == [0, "interrupted", 0]
    assert guest.open == {}


def test_a_loop_that_only_yields_still_hears_from_the_host(anywhere: Bench) -> None:
    source = program(
        """
call = issue(op="later", turns=20, value="heard")
while not call.done():
    await asyncio.sleep(0)
return call.result()
"""
    )
    assert anywhere.run(source) == '"heard"'


def test_tasks_left_behind_are_ended_with_the_program(wasm: Bench) -> None:
    guest = FakeGuest()
    source = program(
        """
async def forever():
    try:
        await issue(op="never")
    finally:
        print("ended")
task = asyncio.create_task(forever())
await asyncio.sleep(0)
"""
    )
    assert wasm.run(source, guest) == "null"
    assert guest.lines == [("stdout", "ended")]


def test_an_error_of_the_host_can_be_caught(anywhere: Bench) -> None:
    source = "from loopwright.sdk.errors import OutOfPages\n" + program(
        """
try:
    await issue(op="fail", error={"type": "OutOfPages", "code": "limit", "message": "9 of 9 pages", "retryable": True})
except OutOfPages as error:
    return [error.message, error.code, error.retryable]
"""
    )
    assert json.loads(anywhere.run(source)) == ["9 of 9 pages", "limit", True]


@pytest.mark.parametrize("kind", [PermissionDenied, OutOfPages, BadRequest])
def test_an_error_of_the_host_that_is_not_caught_ends_the_run_as_itself(anywhere: Bench, kind: type[Exception]) -> None:
    error = {"type": kind.__name__, "code": "x", "message": "no", "hint": "do this", "field": "f"}
    with pytest.raises(kind) as caught:
        anywhere.run(
            program("async with asyncio.TaskGroup() as group:\n    group.create_task(ask())").replace(
                "async def main", f'async def ask():\n    await issue(op="fail", error={error!r})\nasync def main'
            )
        )
    assert (caught.value.message, caught.value.hint, caught.value.field) == ("no", "do this", "f")  # type: ignore[attr-defined]
    assert "program.py" in caught.value.traceback  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["InternalError", "Cancelled", "DeadlineExceeded", "Unavailable", "LoopwrightError"])
def test_a_program_cannot_end_with_an_error_that_is_the_hosts_to_say(anywhere: Bench, kind: str) -> None:
    source = f"from loopwright.sdk import errors\nasync def main():\n    raise errors.{kind}('mine')\n"
    with pytest.raises(ProgramError, match="mine"):
        anywhere.run(source)


def test_an_uncaught_exception_shows_the_programs_own_lines(anywhere: Bench) -> None:
    source = "def helper(x):\n    return 1 / x\n\nasync def main():\n    return helper(0)\n"
    with pytest.raises(ProgramError) as caught:
        anywhere.run(source)
    assert caught.value.message == "ZeroDivisionError: division by zero (program.py, line 2)"
    trace = caught.value.traceback
    assert 'File "program.py", line 5, in main\n    return helper(0)' in trace
    assert 'File "program.py", line 2, in helper' in trace
    assert trace.count("File ") == 2
    assert trace.endswith("ZeroDivisionError: division by zero\n")


def test_causes_are_shown_without_foreign_lines(anywhere: Bench) -> None:
    source = (
        "import json\n\nasync def main():\n    try:\n        json.loads('[')\n"
        "    except ValueError as error:\n        raise RuntimeError('bad\\nsecond line') from error\n"
    )
    with pytest.raises(ProgramError) as caught:
        anywhere.run(source)
    assert caught.value.message == "RuntimeError: bad (program.py, line 7)"
    assert "JSONDecodeError" in caught.value.traceback
    assert "json/decoder" not in caught.value.traceback


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("async def main(:\n    pass\n", r"^SyntaxError: invalid syntax \(program.py, line 1\)$"),
        ("x = 1\n", "program.py has no function `main`; add"),
        ("main = 3\n", "program.py has no function `main`; add"),
        ("import sys\nasync def main():\n    sys.exit(3)\n", r"^SystemExit: 3 \(program.py, line 3\)"),
        ("raise SystemExit\nasync def main(): pass\n", r"^SystemExit \(program.py, line 1\)"),
        (
            "async def main():\n    return {1, 2}\n",
            r"main returned .* not JSON: \{1, 2\} is no JSON value; a list of it is",
        ),
        ("async def main():\n    return [float('nan')]\n", r"not JSON: \[0\]: nan is not a finite number"),
        ("async def main():\n    x = []; x.append(x); return x\n", "main returned .* not JSON: Circular"),
        ("async def main(x):\n    pass\n", "missing 1 required positional argument: 'x'"),
        ("class E(Exception):\n    def __str__(self): 1 / 0\nasync def main():\n    raise E\n", "cannot be shown"),
        ("import asyncio\nasync def main():\n    raise asyncio.CancelledError\n", "^CancelledError"),
        (
            "import asyncio\nasync def main():\n    asyncio.current_task().cancel()\n    await asyncio.sleep(1)\n",
            "Cancel",
        ),
    ],
)
def test_what_ends_a_program_is_said_in_one_line(anywhere: Bench, source: str, message: str) -> None:
    if anywhere.name == "native" and "current_task" in source:
        pytest.skip("a native program's task is the host's")
    with pytest.raises(ProgramError, match=message) as caught:
        anywhere.run(source)
    assert "\n" not in caught.value.message


def test_dataclasses_and_annotations_find_the_programs_module(anywhere: Bench) -> None:
    source = (
        "from __future__ import annotations\nimport dataclasses, typing\n"
        "@dataclasses.dataclass\nclass Point:\n    x: int\n    kind: typing.ClassVar[int] = 1\n"
        "async def main():\n    return [dataclasses.asdict(Point(2)), __name__]\n"
    )
    assert json.loads(anywhere.run(source)) == [{"x": 2}, "__program__"]


def test_printed_lines_and_logged_lines_reach_the_host(wasm: Bench) -> None:
    guest = FakeGuest()
    source = program(
        """
import sys
print("one", "two\\nthree", end="")
print(" four")
print("to stderr \\ud800", file=sys.stderr)
current_port().log("log", "logged")
print("x" * 300_000)
print("no newline", end="")
"""
    )
    wasm.run(source, guest)
    assert guest.lines == [
        ("stdout", "one two"), ("stdout", "three four"), ("stderr", "to stderr ?"), ("log", "logged"),
        ("stdout", "x" * 300_000), ("stdout", "no newline"),
    ]  # fmt: skip


def test_a_hundred_kilobytes_cross_both_ways(anywhere: Bench) -> None:
    assert anywhere.run(program('return len(await issue(op="echo", value="ü" * 100_000))')) == "100000"


def test_time_passes_in_asyncio_and_in_time_sleep(wasm: Bench) -> None:
    source = program(
        """
import time
start = time.monotonic()
call = issue(op="echo", value=7)
time.sleep(0.02)
middle = time.monotonic()
await asyncio.sleep(0.02)
return [middle - start >= 0.02, time.monotonic() - middle >= 0.02, await call]
"""
    )
    assert json.loads(wasm.run(source)) == [True, True, 7]


def test_random_numbers_differ_from_run_to_run(wasm: Bench) -> None:
    source = "import random, uuid\nasync def main():\n    return [random.random(), str(uuid.uuid4())]\n"
    first, second = wasm.run(source), wasm.run(source)
    assert not set(json.loads(first)) & set(json.loads(second))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("emit_text('\\ud800')", "emit_text: a text holds half of a surrogate pair, U+D800"),
        ("emit(float('nan'))", "emit: value: nan is not a finite number"),
        ("emit({'a': [Turn.nothing(3)]})", "emit: value.a[0]: Turn("),
        ("emit([{'a': {1}}])", "emit: value[0].a: {1} is no JSON value; a list of it is"),
        ("emit({(1, 2): 3})", "emit: value: the key (1, 2) is no text"),
        ("emit(asyncio.sleep(0))", " is no JSON value; write await before it"),
        ("emit_text(Turn.nothing(3))", "text: Turn("),
        ("x = []; x.append(x); emit(x)", "emit: Circular reference detected"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine 'sleep' was never awaited")
def test_what_json_cannot_hold_is_an_error_at_the_line_that_sends_it(anywhere: Bench, value: str, message: str) -> None:
    body = f"""
    import asyncio
    from loopwright import BadRequest, Turn, emit, emit_text
    try:
        {value}
    except BadRequest as error:
        emit_text("caught")
        return str(error)
"""
    assert message in anywhere.run(program(body))
