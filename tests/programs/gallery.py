"""Writes docs/programs.md: every program of programs/ with what it does, what it costs and its code.

Run by `make reference`; a test compares the file with what this would write. A new program is taken up by itself.
"""

import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # for a run as a script

from cost_rig import Cost, cost_of

from loopwright.runtime.program import Program, read_program
from system_rig import PROGRAMS

GALLERY = PROGRAMS.parent / "docs" / "programs.md"

INTRODUCTION = """# Programs

<!-- Written by `make reference` from programs/; do not edit. -->

Each file of `programs/` is a technique as one short program, with tests of its own. Run one with
`loopwright run programs/NAME.py`, or put it on a server with `loopwright deploy`; the parameters of `main` are its
flags, and those without a default must be given: `--help` behind the file lists them.
[benchmarks.md](benchmarks.md) says how fast the paper's are beside a client that does the same over HTTP.

## What they cost

Each ran once with the defaults of its parameters, alone, beside a small model with random weights whose tokens are
single bytes. So texts are longer than a tokenizer would make them and mean nothing, and guesses are seldom right;
the shape of the work is what counts. *Asked* is how often the program asked what comes next, for a token or a
distribution. **Plain generation takes one forward for each**, as `completion` does: what is less comes from
branches that share a forward, tokens that a grammar forces, and drafts that were accepted. *Rows* are what these
forwards ran, pieces of prompts too. *Prompt tokens* ran several in a row: plain generation runs its prompt once,
and so does a program that forks. *Pages*, of 16 tokens, are the most that were held at once.

| program | asked | forwards | asked a forward | rows | prompt tokens | pages |
|---|---|---|---|---|---|---|
"""


def gallery() -> str:
    """What stands in docs/programs.md."""
    programs = [read_program(path.read_text(encoding="utf-8"), path.name) for path in sorted(PROGRAMS.glob("*.py"))]
    costs = [f"| [{_name(one)}](#{_name(one)}) | {_costs(one)} |\n" for one in programs]
    return "".join([INTRODUCTION, *costs, *map(_section, programs)])


def _costs(program: Program) -> str:
    permissions = program.metadata.permissions
    if permissions.http or permissions.tools:
        return "not measured: it calls tools | | | | |"
    if "sandbox.run(" in program.source:
        return "not measured: it runs code in a sandbox | | | | |"
    cost = cost_of(program)
    return _cells(cost) if cost.code == "ok" else f"not measured: it ends as `{cost.code}` here | | | | |"


def _cells(cost: Cost) -> str:
    ratio = f"{cost.num_asked / cost.num_forwards:.1f}" if cost.num_forwards else "–"
    numbers = (cost.num_asked, cost.num_forwards, ratio, cost.num_rows, cost.num_prompt_tokens, cost.num_pages)
    return " | ".join(str(one) for one in numbers)


def _section(program: Program) -> str:
    link = f"[programs/{program.filename}](../programs/{program.filename})"
    said = ast.get_docstring(ast.parse(program.source)) or ""
    return f"\n## {_name(program)}\n\n{said}\n\n{link}:\n\n```python\n{_code(program)}\n```\n"


def _name(program: Program) -> str:
    return Path(program.filename).stem


def _code(program: Program) -> str:
    """The source without its docstring, which stands above."""
    lines = program.source.splitlines()
    first = ast.parse(program.source).body[0]
    before, after = lines[: first.lineno - 1], lines[first.end_lineno :]
    return "\n".join([*before, *after]).strip("\n")


if __name__ == "__main__":
    GALLERY.write_text(gallery(), encoding="utf-8")
