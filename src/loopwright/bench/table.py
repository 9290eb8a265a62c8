"""Renders rows for a terminal. Never measures or writes a file. Called by `command`."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from loopwright.bench.machine import Machine
from loopwright.bench.rows import Row


def render(title: str, command_line: str, machine: Machine, rows: Sequence[Row]) -> Group:
    """A table of one suite; a metric's name ends in its unit. The peer's columns are there only if a row has a peer,
    and the paper's if a row has its value."""
    has_peer = any(row.peer for row in rows)
    has_paper = any(row.paper for row in rows)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)  # 80 columns have to do, with a peer too
    for name in ("case", "metric"):
        table.add_column(name, no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    if has_peer:
        table.add_column("peer", no_wrap=True)
        table.add_column("its value", justify="right", no_wrap=True)
        table.add_column("ratio", justify="right", no_wrap=True)
    if has_paper:
        table.add_column("paper", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row, has_peer=has_peer, has_paper=has_paper))
    return Group(Text(title, style="bold"), table, Text(f"{command_line}\n{machine}\n", style="dim"))


def _cells(row: Row, *, has_peer: bool, has_paper: bool) -> list[str]:
    cells = [row.case, row.metric, _number(row.value)]
    if has_peer:
        cells += [row.peer or "", _number(row.peer_value), _number(row.ratio)]
    if has_paper:
        cells.append(row.paper or "")
    return cells


def _number(value: float | None) -> str:
    """Three digits that mean something, no exponent."""
    if value is None:
        return ""
    if abs(value) >= 100 or value.is_integer():
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3g}"
