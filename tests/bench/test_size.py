"""Counting lines of code."""

from pathlib import Path

from loopwright.bench.paper import PROGRAM_LINES
from loopwright.bench.registry import SUBJECTS, SUITE_MODULES, load_suites
from loopwright.bench.size import measure_sizes, num_code_lines

SOURCE = '''"""A docstring
of two lines."""

# a comment
import os  # counted


def name() -> str:
    """Not counted."""
    text = """counted,
    both lines"""
    return (
        text

    )
'''


def test_code_counts_and_docstrings_comments_and_blank_lines_do_not():
    # import, def, two of the string that is a value, three of the return: its blank line holds nothing
    assert num_code_lines(SOURCE) == 1 + 1 + 2 + 3


def test_a_file_without_code_has_no_lines():
    assert num_code_lines('"""Only this."""\n') == 0


def test_layers_programs_and_the_whole_are_counted(tmp_path: Path):
    for name, source in {
        "package/core/__init__.py": "",
        "package/core/ids.py": "a = 1\nb = 2\n",
        "package/core/deep/more.py": "c = 3\n",
        "package/sdk/__init__.py": "d = 4\n",
        "package/not_a_layer/notes.py": "e = 5\n",
        "programs/hello.py": "f = 6\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    rows = measure_sizes(tmp_path / "package", tmp_path / "programs")
    assert [(row.case, row.value) for row in rows] == [
        ("layer=core", 3),
        ("layer=sdk", 1),
        ("layer=all", 4),
        ("program=hello", 1),
    ]


def test_the_papers_programs_are_shown_beside_their_lines_and_none_is_longer():
    programs = Path(__file__).parents[2] / "programs"
    rows = {row.case.removeprefix("program="): row for row in measure_sizes(programs, programs)}
    assert len(PROGRAM_LINES) == 19
    for name, lines in PROGRAM_LINES.items():
        assert (rows[name].paper, rows[name].value <= lines) == (str(lines), True), name
    assert rows["hello"].paper is None


def test_every_suite_loads_under_its_own_name():
    assert [suite.name for suite in load_suites("all")] == list(SUITE_MODULES) == list(SUBJECTS)
