"""Prints a table on stdout: fitted to a terminal, and never cut where a program reads it. Used by ps and model list."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

WIDE = 1000  # columns, where there is no terminal to fit


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str) -> None:
    """The cells are shown as they are: what looks like markup is none."""
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else WIDE
    Console(width=width, markup=False, highlight=False, emoji=False).print(table)
