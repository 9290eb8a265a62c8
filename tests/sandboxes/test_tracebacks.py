"""What a program's failure shows: its own lines, in every kind of error, readable and bounded; and no line of ours."""

import pytest

from loopwright.core.errors import BadRequest, LoopwrightError, ProgramError

from .conftest import Bench


def failure(bench: Bench, source: str, kind: type[LoopwrightError] = ProgramError) -> LoopwrightError:
    with pytest.raises(kind) as caught:
        bench.run(source)
    assert "loopwright/" not in caught.value.traceback
    assert "asyncio/" not in caught.value.traceback
    return caught.value


def test_half_a_surrogate_pair_in_an_errors_text_stays_readable(anywhere: Bench) -> None:
    error = failure(anywhere, "async def main():\n    raise ValueError('a\\ud800b')\n")
    assert error.message == "ValueError: a\\ud800b (program.py, line 2)"
    assert error.traceback.endswith("ValueError: a\\ud800b\n")


def test_half_a_surrogate_pair_in_an_error_of_ours_stays_readable(anywhere: Bench) -> None:
    source = "from loopwright import BadRequest\nasync def main():\n    raise BadRequest('\\udfff', hint='\\ud800')\n"
    error = failure(anywhere, source, BadRequest)
    assert (error.message, error.hint) == ("\\udfff", "\\ud800")


def test_a_very_long_text_is_cut_with_a_note(anywhere: Bench) -> None:
    error = failure(anywhere, "async def main():\n    raise ValueError('x' * 1_000_000 + 'the end')\n")
    assert "characters left out…] " in error.message
    assert error.message.endswith("the end (program.py, line 2)")
    assert len(error.message) < 2200
    assert 'File "program.py", line 2, in main' in error.traceback
    assert "[…992007 characters left out…] " in error.traceback
    assert len(error.traceback) < 10_000


def test_a_group_shows_the_lines_of_each_of_its_errors(anywhere: Bench) -> None:
    source = """
import asyncio
async def divide(by):
    await asyncio.sleep(0)
    return 1 / by
async def look_up():
    {}["missing"]
async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(divide(0))
        group.create_task(look_up())
"""
    error = failure(anywhere, source)
    assert error.message.startswith("ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)")
    for line in ('line 5, in divide', "return 1 / by", "ZeroDivisionError: division by zero", "line 7, in look_up",
                 "KeyError: 'missing'", "line 9, in main"):  # fmt: skip
        assert line in error.traceback


def test_a_chain_of_errors_shows_each_with_its_lines(anywhere: Bench) -> None:
    source = """
def first():
    raise KeyError("first")
def second():
    try:
        first()
    except KeyError:
        raise ValueError("second")
async def main():
    try:
        second()
    except ValueError as error:
        raise RuntimeError("third") from error
"""
    trace = failure(anywhere, source).traceback
    in_order = (
        *("line 3, in first", "KeyError: 'first'", "During handling", "line 8, in second", "ValueError: second"),
        *("direct cause", "line 13, in main", "RuntimeError: third"),
    )
    places = [trace.index(one) for one in in_order]
    assert places == sorted(places)


def test_deep_recursion_is_short_to_read(anywhere: Bench) -> None:
    error = failure(anywhere, "def f(n):\n    return f(n + 1)\nasync def main():\n    f(0)\n")
    assert error.message.startswith("RecursionError: maximum recursion depth exceeded")
    assert "more times]" in error.traceback
    assert error.traceback.count("return f(n + 1)") < 10


def test_a_syntax_error_shows_the_line_and_the_place_in_it(anywhere: Bench) -> None:
    error = failure(anywhere, "async def main():\n    return 1 +\n")
    assert error.message == "SyntaxError: invalid syntax (program.py, line 2)"
    assert 'File "program.py", line 2\n    return 1 +\n' in error.traceback
    assert "^" in error.traceback


def test_code_that_was_compiled_by_the_program_is_no_line_of_its_file(anywhere: Bench) -> None:
    error = failure(anywhere, "async def main():\n    exec('\\n\\n1 / 0')\n")
    assert error.message == "ZeroDivisionError: division by zero (program.py, line 2)"
