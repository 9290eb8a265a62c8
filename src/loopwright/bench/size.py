"""Counts lines of code, by layer and by example program. Never imports what it counts. Run by `command`.

A line counts when it holds code: blank lines, comments and docstrings do not.
"""

import io
import tokenize
from pathlib import Path

from loopwright.bench.paper import PROGRAM_LINES
from loopwright.bench.rows import LINES, Row, case_name, measured
from loopwright.bench.suite import Measured, OpenSystem, Options, Suite

_PACKAGE = Path(__file__).parents[1]
_PROGRAMS = Path(__file__).parents[3] / "programs"  # beside src/, in a checkout only

_LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER)


async def measure(options: Options, open_system: OpenSystem) -> Measured:
    return Measured(rows=tuple(measure_sizes(_PACKAGE, _PROGRAMS)), workload={})


SUITE = Suite(name="size", title="bench size: lines of code", measure=measure)


def measure_sizes(package: Path, programs: Path) -> list[Row]:
    """A row for each layer of the package, for the whole, and for each program."""
    layers = {
        layer.name: sum(num_code_lines(path.read_text()) for path in sorted(layer.rglob("*.py")))
        for layer in sorted(package.iterdir())
        if (layer / "__init__.py").is_file()
    }
    rows = [_row(case_name(layer=name), count) for name, count in layers.items()]
    rows.append(_row(case_name(layer="all"), sum(layers.values())))
    for path in sorted(programs.glob("*.py")):
        lines = PROGRAM_LINES.get(path.stem)
        paper = None if lines is None else str(lines)
        rows.append(_row(case_name(program=path.stem), num_code_lines(path.read_text()), paper))
    return rows


def num_code_lines(source: str) -> int:
    """Lines of `source` that hold code. A statement that is only a string is a docstring."""
    code_lines: set[int] = set()
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            if any(part.type != tokenize.STRING for part in statement):
                code_lines.update(line for part in statement for line in range(part.start[0], part.end[0] + 1))
            statement = []
        elif token.type != tokenize.COMMENT and token.type not in _LAYOUT:
            statement.append(token)
    return len(code_lines)


def _row(case: str, num_lines: int, paper: str | None = None) -> Row:
    return measured("size", case, LINES, [float(num_lines)], paper)
