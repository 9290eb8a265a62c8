"""Reading programs: metadata, signature, arguments."""

import pytest

from loopwright.core.errors import BadRequest, ProgramRejected
from loopwright.core.runs import Parameter
from loopwright.runtime.limits import Limits
from loopwright.runtime.program import read_program

AGENT = '''"""Looks things up."""

# /// program
# permissions = { http = ["api.example.org", "127.0.0.1:*"] }
# limits = { memory_mb = 32, seconds = 9.5 }
# ///

async def main(question: str, max_turns: int = 8, *, words: list[str] = ["a"]) -> str:
    return question
'''


def test_a_program_has_parameters_limits_permissions_and_a_description() -> None:
    program = read_program(AGENT, "agent.py")
    assert program.description == "Looks things up."
    assert program.parameters == (
        Parameter("question", "str", is_required=True),
        Parameter("max_turns", "int", is_required=False, default=8),
        Parameter("words", "list[str]", is_required=False, default=["a"]),
    )
    assert program.metadata.limits == Limits(memory_mb=32, seconds=9.5)
    assert program.metadata.permissions.http == ("api.example.org", "127.0.0.1:*")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def main(:\n", "p.py, line 1"),
        ("x = 1\n", "has no main"),
        ("def main(): pass\n", "line 1: main is not async"),
        ("async def main(*words): pass\n", "line 1: main takes *args"),
        ("async def main(a=object()): pass\n", "the default of 'a' is not a JSON value"),
        ("async def main[T](a: T): pass\n", "p.py, line 1"),  # Python 3.12 syntax
        ("a\0b", "p.py"),
        ("(" * 2000 + ")" * 2000, "p.py"),
        ("async def main(): pass\n" + "#" * (1 << 20), "a program has at most 1048576"),
        ("# /// program\n# limits = {\n# ///\nasync def main(): pass\n", "not TOML"),
        ("# /// program\n# limit = {}\n# ///\nasync def main(): pass\n", "unknown field `limit`"),
        ("# /// program\n# limits = { memory = 1 }\n# ///\nasync def main(): pass\n", "unknown field `memory`"),
        ('# /// program\n# permissions = { http = ["http://x"] }\n# ///\nasync def main(): pass\n', "http://x"),
        ("# /// program\n# limits = { memory_mb = -1 }\n# ///\nasync def main(): pass\n", "$.limits.memory_mb"),
        ("# /// program\n# limits = { seconds = nan }\n# ///\nasync def main(): pass\n", "$.limits.seconds"),
        ("# /// program\n# limits = { cpu_seconds = nan }\n# ///\nasync def main(): pass\n", "$.limits.cpu_seconds"),
        ("# /// program\n# limits = " + "[" * 5000 + "\n# ///\nasync def main(): pass\n", "not TOML"),
        ("# /// program\n# seconds = " + "9" * 5000 + "\n# ///\nasync def main(): pass\n", "not TOML"),
        ("async def main(a: b" + ".c" * 900 + "): pass\n", "p.py"),
        ("# /// program\n# ///\n" * 2 + "async def main(): pass\n", "metadata"),
    ],
)
def test_what_is_no_program_is_rejected_in_one_line(source: str, words: str) -> None:
    with pytest.raises(ProgramRejected) as caught:
        read_program(source, "p.py")
    assert words in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, "question"),
        ({"question": 1}, "question"),
        ({"question": "x", "max_turns": True}, "max_turns"),
        ({"question": "x", "max_turns": "3"}, "max_turns"),
        ({"question": "x", "other": 1}, "other"),
        ({"question": "x", "words": {}}, "words"),
    ],
)
def test_wrong_arguments_name_the_argument(arguments: dict[str, object], field: str) -> None:
    program = read_program(AGENT, "agent.py")
    with pytest.raises(BadRequest) as caught:
        program.check_arguments(arguments)
    assert caught.value.field == field
    assert "usage: main(question: str" in caught.value.message


def test_an_int_is_a_float_and_a_union_takes_either() -> None:
    program = read_program("async def main(a: float, b: int | None = None, c: Thing = 1): pass\n", "p.py")
    program.check_arguments({"a": 1, "b": None, "c": {"any": "thing"}})
    program.check_arguments({"a": 1.5, "b": 2})


def test_limits_are_capped_by_the_server() -> None:
    asked = Limits(memory_mb=4096, seconds=1.0)
    assert asked.capped(Limits(memory_mb=128, seconds=60.0)) == Limits(memory_mb=128, seconds=1.0)


@pytest.mark.parametrize(
    ("docstring", "description"),
    [
        ("Looks\n  things up.\n\nAnd more.", "Looks things up."),
        ("Looks\n \t\nup.", "Looks"),
        ("", ""),
        ("word " * 200, "word " * 99 + "…"),
    ],
)
def test_a_description_is_the_first_paragraph_in_one_line(docstring: str, description: str) -> None:
    assert read_program(f'"""{docstring}"""\nasync def main(): pass\n', "p.py").description == description


def test_a_description_can_be_sent_whatever_its_escapes_are() -> None:
    assert read_program('"""Half \\ud800."""\nasync def main(): pass\n', "p.py").description == "Half ?."


@pytest.mark.parametrize(
    ("block", "hint"),
    [
        ("# limits = { second = 3 }", "did you mean 'seconds'?"),
        ("# permission = { tools = [] }", "did you mean 'permissions'?"),
        ("# limits = { qqqq = 3 }", ""),
        ('# permissions = { tools = ["a"] }\n# permissions = { http = ["b.org"] }', "once each"),
    ],
)
def test_wrong_metadata_says_what_would_be_right(block: str, hint: str) -> None:
    with pytest.raises(ProgramRejected) as caught:
        read_program(f"# /// program\n{block}\n# ///\nasync def main(): pass\n", "p.py")
    assert hint in caught.value.hint
    assert bool(hint) == bool(caught.value.hint)
