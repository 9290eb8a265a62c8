"""docs/programs.md shows the programs as they are, with what they cost now."""

import difflib
import re

import pytest
from cost_rig import cost_of
from gallery import GALLERY, gallery

from loopwright.runtime.program import read_program
from system_rig import PROGRAMS, program_source

PLAIN = """
from loopwright import Context

async def main(forks: int = 0):
    ctx = Context(seed=1)
    ctx.append("x" * 33)
    if forks:
        import asyncio
        children = [await ctx.fork() for _ in range(forks)]
        await asyncio.gather(*(one.generate(max_tokens=10, ignore_eos=True) for one in children))
    else:
        await ctx.generate(max_tokens=10, ignore_eos=True)
"""


def test_the_gallery_is_what_the_programs_are_and_cost() -> None:
    written, now = GALLERY.read_text(encoding="utf-8"), gallery()
    difference = "\n".join(difflib.unified_diff(written.splitlines(), now.splitlines(), "docs/programs.md", "now", n=0))
    assert written == now, f"run: make reference\n{difference[:2000]}"


def test_every_program_is_in_the_gallery_with_a_cost_or_a_reason() -> None:
    text = GALLERY.read_text(encoding="utf-8")
    for path in PROGRAMS.glob("*.py"):
        assert f"\n## {path.stem}\n" in text
        assert re.search(rf"^\| \[{path.stem}\]\(#{path.stem}\) \| (\d+ \| \d+ \||not measured: )", text, re.MULTILINE)


def test_plain_generation_takes_a_forward_and_a_row_for_each_token() -> None:
    cost = cost_of(read_program(PLAIN, "plain.py"))
    assert (cost.code, cost.num_asked, cost.num_forwards, cost.num_rows) == ("ok", 10, 10, 10)
    assert (cost.num_prompt_tokens, cost.num_pages) == (34, 3)  # a token of the model's own stands before the text


def test_forks_share_forwards_and_pages() -> None:
    cost = cost_of(read_program(PLAIN.replace("forks: int = 0", "forks: int = 4"), "forks.py"))
    assert (cost.num_asked, cost.num_rows) == (40, 41)  # and the row of the prompt
    assert cost.num_forwards <= 1 + 10 + 4  # forks begin a forward apart at most
    assert cost.num_pages <= 2 + 1 + 4  # two are full and shared; each has its last one


def test_a_run_that_waits_for_what_never_comes_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cost_rig.MAX_REAL_S", 0.1)
    source = "import asyncio\nasync def main(): await asyncio.Event().wait()"
    assert cost_of(read_program(source, "waits.py")).code == "cancelled"


def test_a_cost_is_the_same_every_time() -> None:
    program = read_program(program_source("tree_of_thought"), "tree_of_thought.py")
    assert cost_of(program) == cost_of(program)
