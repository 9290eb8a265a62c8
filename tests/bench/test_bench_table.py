"""The table: what a reader sees."""

import io

from rich.console import Console

from loopwright.bench.machine import Machine
from loopwright.bench.rows import LINES, P50_MS, measured
from loopwright.bench.table import render

MACHINE = Machine("A CPU", 2, 24 << 30, "Linux x86_64", "3.11.2")


def shown(rows) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(render("bench launch: title", "loopwright bench launch --json x", MACHINE, rows))
    return console.file.getvalue()


def test_a_table_names_the_suite_the_command_line_and_the_machine():
    text = shown([measured("launch", "case=sequential", P50_MS, [2.0])])
    assert "bench launch: title" in text
    assert "loopwright bench launch --json x" in text
    assert "A CPU, 2 cores, 24 GiB, Linux x86_64, Python 3.11.2" in text


def test_the_peers_columns_are_there_only_if_a_row_has_a_peer():
    row = measured("launch", "case=sequential", P50_MS, [2.0])
    assert "ratio" not in shown([row])
    compared = shown([row, row.against("pie-server", 4.0)])
    assert "ratio" in compared
    assert "pie-server" in compared
    assert "0.50" in compared


def test_numbers_have_about_three_digits_and_no_exponent():
    values = [0.01234, 0.5678, 12.345, 123456.7]
    text = shown([measured("size", f"n={index}", LINES, [value]) for index, value in enumerate(values)])
    for number in ("0.0123", "0.57", "12.3", "123,457"):
        assert number in text
