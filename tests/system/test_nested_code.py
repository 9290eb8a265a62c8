"""`sandbox.run`: generated code in a sandbox of its own computes and returns, and can do nothing else: whatever it
does, its program goes on, and so do its program's neighbours."""

import pytest

from loopwright.compose.config import RuntimeConfig
from system_rig import Outcome, byte_system, in_loop

HEAD = """
# /// program
# limits = { memory_mb = 48, cpu_seconds = 20, max_children = 3 }
# ///
import asyncio
from loopwright import Context, LimitExceeded, sandbox, log
SECRET = "the program's own"
"""


def run(body: str, sandbox: str = "wasm", runtime: RuntimeConfig | None = None) -> Outcome:
    kept: list[Outcome] = []
    source = HEAD + "async def main():\n" + "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))

    async def scenario() -> None:
        async with byte_system(runtime=runtime or RuntimeConfig(allows_native=True)) as system:
            kept.append(await system.run(source, sandbox))

    in_loop(scenario)
    return kept[0]


@pytest.mark.wasm
@pytest.mark.parametrize("sandbox", ["wasm", "native"])
def test_code_gets_its_inputs_and_gives_its_result_and_what_it_printed(sandbox: str) -> None:
    outcome = run(
        """
found = []
for code in ("print(x)\\nprint('b')\\nsum(x)", "result = {'y': x[0]}", "import math\\nmath.floor(2.5)", "pass",
        "def f(n):\\n    return n * 2\\nf(x[1])"):
    one = await sandbox.run(code, {"x": [1, 2, 3]})
    assert one.is_ok, one.error
    found.append([one.result, one.stdout])
return found
""",
        sandbox,
    )
    assert outcome.result == [[6, "[1, 2, 3]\nb\n"], [{"y": 1}, ""], [2, ""], [None, ""], [4, ""]]


@pytest.mark.wasm
def test_an_error_shows_the_lines_of_the_code_and_no_others() -> None:
    outcome = run(
        """
found = []
for code in ("def f(x):\\n    return 1 / x\\nf(0)", "x = (1 +\\n", "{1, 2}", "1 / 0"):
    one = await sandbox.run(code)
    found.append([one.result, one.error.code, one.error.message, one.error.traceback])
return found
"""
    )
    divided, syntax, not_json, last = outcome.result
    assert divided[:3] == [None, "program_error", "ZeroDivisionError: division by zero (code.py, line 2)"]
    assert 'File "code.py", line 3, in <module>\n    f(0)\n' in divided[3]
    assert 'File "code.py", line 2, in f\n    return 1 / x\n' in divided[3]
    assert divided[3].count("File ") == 2
    assert syntax[2] == "SyntaxError: '(' was never closed (code.py, line 1)"
    assert not_json[2].startswith("TypeError: the code's result is not JSON")
    assert 'File "code.py", line 1, in <module>\n    1 / 0\n' in last[3]


HOSTILE = {
    "loops": ("while True: pass", "limit", "computed for"),
    "allocates": ("kept = []\nwhile True: kept.append(bytearray(1 << 20))", "limit", "its limit is 8 MiB"),
    "exits": ("import os\nos._exit(0)", "program_error", "exit code 0"),
    "leaves": ("raise SystemExit(3)", "program_error", "SystemExit: 3"),
    "aborts": ("import os\nos.abort()", "program_error", "aborted"),
    "sleeps": ("import time\ntime.sleep(1000)", "deadline", "longer than its 1 s"),
    "returns": ("'x' * 200_000", "limit", "result has 200002 characters; the limit of its output is 65536"),
    "reads": ("open('/etc/passwd').read()", "program_error", "FileNotFoundError"),
    "dials": ("import socket\nsocket.create_connection(('127.0.0.1', 80))", "program_error", "gaierror"),
    "spies": ("import sys\n[SECRET]", "program_error", "name 'SECRET' is not defined"),
    "looks": ("sys.modules['__program__'].SECRET if (sys := __import__('sys')) else 0", "program_error", "SECRET"),
    "nests": ("'a' if (f := lambda: f()) and f() else 0", "program_error", "RecursionError"),
}  # fmt: skip


@pytest.mark.wasm
def test_hostile_code_ends_with_an_error_of_its_own_and_harms_nobody() -> None:
    body = f"""
codes = {dict((name, code) for name, (code, _, _) in HOSTILE.items())!r}
ctx = Context(seed=1)
ctx.append("alone")
alone = await ctx.generate(max_tokens=40, ignore_eos=True)
beside = Context(seed=1)
beside.append("alone")
writing = asyncio.create_task(beside.generate(max_tokens=40, ignore_eos=True))
found = {{}}
for name, code in codes.items():
    one = await sandbox.run(code, memory_mb=8, cpu_seconds=1, seconds=1 if name == "sleeps" else 100)
    found[name] = [one.result, one.error and one.error.code, one.error and one.error.message]
assert (await writing).tokens == alone.tokens
assert (await sandbox.run("1 + 1")).result == 2
return found
"""
    result = run(body).result
    for name, (_, code, message) in HOSTILE.items():
        assert result[name][:2] == [None, code], (name, result[name])
        assert message in result[name][2], (name, result[name])


@pytest.mark.wasm
def test_code_that_asks_its_host_is_refused() -> None:
    code = """
from loopwright.sdk.port import current_port
port = current_port()
handles = [port._submit('{"op":"describe"}'), port._submit("nonsense")]
events = __import__("wit_world").imports.host.wait(0)
[handles, "generated code may ask nothing of its host" in events, "ok" in events]
"""
    assert run(f"return (await sandbox.run({code!r})).result").result == [[1, 2], True, False]


@pytest.mark.wasm
def test_what_is_printed_beyond_the_limit_is_cut_with_a_note() -> None:
    outcome = run(
        """
one = await sandbox.run("for n in range(100): print('0123456789')", max_output_bytes=25)
return [one.stdout, one.result, one.is_ok]
"""
    )
    assert outcome.result == ["0123456789\n0123456789\n012\n[1075 more bytes were cut]\n", None, True]


LIMITS = """
async def refused(**limits):
    try:
        await sandbox.run("1", **limits)
    except LimitExceeded as error:
        return [error.field, error.message]
def sleeper(**limits):
    return asyncio.create_task(sandbox.run("import time\\ntime.sleep(1000)", **limits))
first = sleeper(memory_mb=40, cpu_seconds=15, seconds=60)
await asyncio.sleep(0)
found = [await refused(memory_mb=49), await refused(memory_mb=9)]
found += [await refused(cpu_seconds=6), await refused(seconds=301)]
others = [sleeper(memory_mb=1, cpu_seconds=1) for _ in range(2)]
await asyncio.sleep(0)
found.append(await refused(memory_mb=1, cpu_seconds=1))
for task in (first, *others):
    task.cancel()
await asyncio.wait([first, *others])
for _ in range(100):
    if await refused(memory_mb=48, cpu_seconds=1) is None:
        return found
    await asyncio.sleep(0.01)
"""


@pytest.mark.wasm
def test_pieces_of_code_share_their_programs_limits_and_give_them_back() -> None:
    found = run(LIMITS).result
    assert [field for field, _ in found] == ["memory_mb", "memory_mb", "cpu_seconds", "seconds", "max_children"]
    assert found[1][1] == "sandbox.run: memory_mb is 9; the program has 8 left of its 48"
    assert found[4][1] == "sandbox.run: 3 pieces of code are running; the limit is 3"


def test_without_the_wasm_sandbox_code_is_refused_and_never_executed() -> None:
    outcome = run(
        """
try:
    await sandbox.run("print('executed')")
except Exception as error:
    return [type(error).__name__, str(error)]
""",
        "native",
        RuntimeConfig(allows_native=True, needs_wasm=False),
    )
    assert outcome.result[0] == "Unavailable"
    assert "needs the Wasm sandbox" in outcome.result[1]
