"""`loopwright demo`, as `make demo` runs it, and how it fails elsewhere."""

from pathlib import Path

import pytest

from command_rig import run_command
from system_rig import PROGRAMS


@pytest.mark.model
@pytest.mark.wasm
def test_the_demo_searches_and_answers():
    done = run_command("demo", cwd=PROGRAMS.parent)
    assert done.status == 0
    lines = done.out.splitlines()
    assert [line.split(":")[0] for line in lines] == (
        ["Thought", "Action", "Observation", "Thought", "Action", "Answer"]
    )
    assert lines[2] == "Observation: The Seine flows through Paris, the capital of France."
    assert "Seine" in lines[-1]
    assert done.err.startswith('[emit] {"call": "search"')


def test_the_demo_elsewhere_says_which_program_it_lacks(tmp_path: Path):
    done = run_command("demo", cwd=tmp_path)
    assert (done.status, done.out) == (2, "")
    assert done.err == "loopwright: cannot read programs/react.py: No such file or directory\n"
