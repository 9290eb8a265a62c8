"""Writes the rows of `loopwright bench techniques --json FILE` into docs/benchmarks.md, as its table of figures.

Run by hand after a measurement that is worth showing, with a note that says where and when it was made:
`python tests/project/benchmark_table.py FILE.json "NOTE"`.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from repository import ROOT

DOCUMENT = ROOT / "docs" / "benchmarks.md"
BEGIN = "<!-- Written by `python tests/project/benchmark_table.py FILE.json`. -->\n"
END = "<!-- end -->\n"

HEAD = """
{note}

Each cell is the program's value, the client's, and their ratio. More requests a second is better, and less of all else.

| technique | requests/s | latency, s | server CPU, ms | client CPU, ms | forwards | prefill tokens |
|---|---|---|---|---|---|---|
"""
METRICS = ("requests_per_s", "latency_s", "server_cpu_ms", "client_cpu_ms", "forwards", "prefill_tokens")

BEHIND = 0.97  # of the client's requests a second


def table(rows: list[dict[str, Any]], note: str) -> str:
    """The table, a line for each technique; one that is behind the client is in bold."""
    cells: dict[str, dict[str, str]] = {}
    is_behind: dict[str, bool] = {}
    for row in rows:
        name = re.fullmatch(r"technique=(\w+)", row["case"])
        if name is None:
            continue
        ratio = "–" if row["ratio"] is None else f"{row['ratio']:.2f}"
        if row["metric"] == "requests_per_s":
            is_behind[name[1]] = row["ratio"] is not None and row["ratio"] < BEHIND
            ratio = f"**{ratio}**"
        cells.setdefault(name[1], {})[row["metric"]] = (
            f"{_number(row['value'])} · {_number(row['peer_value'])} · {ratio}"
        )
    lines = []
    for name, by_metric in cells.items():
        shown = f"**{name}** (behind)" if is_behind.get(name) else name
        lines.append(f"| {shown} | {' | '.join(by_metric.get(metric, '–') for metric in METRICS)} |\n")
    return HEAD.format(note=note) + "".join(lines)


def with_table(document: str, written: str) -> str:
    """The document with another table between its marks."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{written}\n{END}{after}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    rows = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    written = table(rows, sys.argv[2])
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8"), written), encoding="utf-8")
