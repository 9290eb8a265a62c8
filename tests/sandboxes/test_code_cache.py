"""Compiled once, executed many times: a later launch does what the first one did, and no program decides what another
one executes."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from loopwright.core.errors import LoopwrightError, ProgramError
from loopwright.runtime.limits import Limits
from loopwright.runtime.sandboxes.code_cache import CodeCache

from .conftest import Bench
from .fake_guest import FakeGuest

Launch = Callable[..., Awaitable[str]]

ONE = "async def main():\n    return 1\n"
TWO = "async def main():\n    return 2\n"


def launches(bench: Bench, scenario: Callable[[Any, Launch], Awaitable[Any]]) -> Any:
    """Drives a scenario with a sandbox and what launches a source in it."""

    async def drive(sandbox: Any) -> Any:
        async def launch(source: str, filename: str = "p.py", arguments: str = "{}", form: str = "program") -> str:
            result: str = await sandbox.run(source, filename, arguments, FakeGuest(), Limits(), form=form)
            return result

        return await scenario(sandbox, launch)

    return bench.drive(drive)


def test_what_is_kept_is_what_a_later_launch_executes(wasm: Bench) -> None:
    async def scenario(sandbox: Any, launch: Launch) -> None:
        assert [await launch(ONE), await launch(TWO)] == ["1", "2"]
        codes = sandbox._codes._codes
        first, second = codes
        codes[first], codes[second] = codes[second], codes[first]
        assert [await launch(ONE), await launch(TWO)] == ["2", "1"]

    launches(wasm, scenario)


def test_a_burst_of_one_source_keeps_it_once(wasm: Bench) -> None:
    async def scenario(sandbox: Any, launch: Launch) -> None:
        for _ in range(5):
            await launch(ONE)
        assert len(sandbox._codes) == 1

    launches(wasm, scenario)


def test_form_source_and_filename_are_told_apart(wasm: Bench) -> None:
    lines = "async def main(): return 1 / 0"

    async def scenario(sandbox: Any, launch: Launch) -> list[str]:
        said = []
        for filename in ("a.py", "b.py", "a.py"):
            with pytest.raises(ProgramError) as caught:
                await launch(lines, filename)
            said.append(caught.value.message)
        assert await launch("main = 5\nmain", "a.py", form="snippet") == "5"
        with pytest.raises(ProgramError, match="no function `main`"):
            await launch("main = 5\nmain", "a.py")
        assert len(sandbox._codes) == 4
        return said

    said = launches(wasm, scenario)
    assert said == [f"ZeroDivisionError: division by zero ({name}.py, line 1)" for name in "aba"]


def test_a_source_that_does_not_compile_is_refused_each_time_and_not_kept(wasm: Bench) -> None:
    async def scenario(sandbox: Any, launch: Launch) -> None:
        for _ in range(2):
            with pytest.raises(ProgramError, match=r"^SyntaxError: invalid syntax \(p.py, line 2\)$") as caught:
                await launch("async def main():\n    return 1 +\n")
            assert 'File "p.py", line 2\n    return 1 +\n' in caught.value.traceback
        assert len(sandbox._codes) == 0

    launches(wasm, scenario)


FORGED = """
import base64, marshal
from wit_world.imports import host
evil = compile("async def main(**arguments):\\n    return 'forged'\\n", "p.py", "exec")
host.keep(base64.b64encode(marshal.dumps((evil, []))).decode())
"""
ATTEMPTS = {
    "at_its_first_line": FORGED + ONE,
    "in_main": "async def main():\n" + "".join(f"    {line}\n" for line in FORGED.splitlines()) + "    return 1\n",
    "with_what_its_arguments_say": "async def main(code):\n    exec(code)\n    return 1\n",
}


@pytest.mark.parametrize("attempt", list(ATTEMPTS))
def test_a_program_cannot_choose_what_later_launches_of_its_source_execute(wasm: Bench, attempt: str) -> None:
    source = ATTEMPTS[attempt]
    arguments = json.dumps({"code": FORGED} if "(code)" in source else {})

    async def scenario(sandbox: Any, launch: Launch) -> None:
        for _ in range(2):  # while it is compiled, and with what was kept then
            with pytest.raises(ProgramError, match="called a function of its runner's"):
                await launch(source, arguments=arguments)
            assert len(sandbox._codes) == 1
        if "(code)" in source:
            assert await launch(source, arguments='{"code": "pass"}') == "1"

    launches(wasm, scenario)


def test_a_program_that_rewrites_its_runner_spoils_nothing_for_the_next(wasm: Bench) -> None:
    source = """
import binascii, builtins, marshal, sys
async def main(spoil):
    if spoil:
        binascii.a2b_base64 = marshal.loads = builtins.compile = builtins.exec = lambda *a, **k: 1 / 0
        sys.modules["loopwright.sdk.program"].load_main = None
    return spoil
"""

    async def scenario(sandbox: Any, launch: Launch) -> list[str]:
        return [await launch(source, arguments=f'{{"spoil": {spoil}}}') for spoil in ("true", "false", "true", "false")]

    assert launches(wasm, scenario) == ["true", "false", "true", "false"]


ALIKE = {
    "a_class_and_its_pickle": """
import dataclasses, inspect, pickle
@dataclasses.dataclass
class Point:
    x: int
async def main():
    return [pickle.loads(pickle.dumps(Point(3))).x, inspect.getsource(Point), Point.__module__]
""",
    "constants": """
async def main():
    "Its docstring."
    a, b = (1, 2.5, "x" * 3, b"y", frozenset({1}), ...), 1_000_000_007
    return [repr(a), b is 1_000_000_007, main.__doc__, __name__, __file__, 1e400 > 1, repr(-0.0), "\\N{BULLET}é"]
""",
    "an_error_in_a_nested_function": """
async def main():
    def inner(text: "note"):
        return [int(word) for word in text]
    return inner("1x")
""",
    "an_error_at_the_first_line": "1 / 0\nasync def main(): ...\n",
    "annotations_that_are_text": """
from __future__ import annotations
async def main(x: 1 / 0 = 2):
    return main.__annotations__["x"]
""",
    "a_warning_of_the_compiler": "async def main():\n    return ['\\d', 1 is 1]\n",
    "functions_nested_deeply": "f = " + "lambda: " * 750 + "1\nasync def main():\n    return f()()() is not None\n",
    "nothing_to_run": "",
    "surrogates": "async def main():\n    return '\\ud800' == chr(0xd800)\n",
}


@pytest.mark.parametrize("name", list(ALIKE))
def test_later_launches_say_and_print_what_the_first_one_did(wasm: Bench, name: str) -> None:
    async def scenario(sandbox: Any) -> list[Any]:
        endings = []
        for _ in range(3):
            guest = FakeGuest()
            try:
                ending: Any = await sandbox.run(ALIKE[name], "p.py", "{}", guest, Limits())
            except LoopwrightError as error:
                ending = error.info()
            endings.append((ending, guest.lines))
        return endings

    first, *later = wasm.drive(scenario)
    assert later == [first, first]


def test_what_the_stack_may_not_do_for_is_compiled_each_time(wasm: Bench) -> None:
    async def scenario(sandbox: Any, launch: Launch) -> None:
        assert await launch(ALIKE["functions_nested_deeply"]) == "true"
        assert len(sandbox._codes) == 0

    launches(wasm, scenario)


def test_a_warning_of_the_compiler_shows_its_line_at_each_launch(wasm: Bench) -> None:
    async def scenario(sandbox: Any) -> list[tuple[str, str]]:
        await sandbox.run(ALIKE["a_warning_of_the_compiler"], "p.py", "{}", FakeGuest(), Limits())
        guest = FakeGuest()
        await sandbox.run(ALIKE["a_warning_of_the_compiler"], "p.py", "{}", guest, Limits())
        return guest.lines

    lines = wasm.drive(scenario)
    assert ("stderr", "  return ['\\d', 1 is 1]") in lines
    assert any(text.startswith("p.py:2: SyntaxWarning: ") for _, text in lines)


def put(cache: CodeCache, source: str, code: str) -> None:
    cache.find("program", source, "p.py")[1](code)
    cache.check_integrity()


def kept(cache: CodeCache, *sources: str) -> list[str]:
    return [cache.find("program", source, "p.py")[0] for source in sources]


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    cache = CodeCache(max_bytes=30, max_code_bytes=10)
    for source in "abc":
        put(cache, source, source * 10)
    assert kept(cache, "a") == ["a" * 10]
    put(cache, "d", "d" * 10)
    assert kept(cache, "a", "b", "c", "d") == ["a" * 10, "", "c" * 10, "d" * 10]


def test_large_code_pushes_nothing_out_and_nothing_is_no_code() -> None:
    cache = CodeCache(max_bytes=30, max_code_bytes=10)
    put(cache, "a", "a" * 10)
    put(cache, "b", "b" * 11)
    put(cache, "c", "")
    assert kept(cache, "a", "b", "c") == ["a" * 10, "", ""]
    assert len(cache) == 1


def test_of_two_that_compiled_the_same_at_once_the_first_counts() -> None:
    cache = CodeCache()
    (_, first), (_, second) = cache.find("program", "a", "p.py"), cache.find("program", "a", "p.py")
    first("one")
    second("two")
    assert kept(cache, "a") == ["one"]
    cache.check_integrity()


def test_no_two_keys_are_the_same_text() -> None:
    cache = CodeCache()
    cache.find("program", "b", "a")[1]("one")
    assert cache.find("program", "", "ab")[0] == cache.find("program", "ab", "")[0] == ""
