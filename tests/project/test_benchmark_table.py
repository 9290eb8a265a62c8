"""The table of docs/benchmarks.md, from rows as `loopwright bench techniques --json` writes them."""

from benchmark_table import BEGIN, DOCUMENT, END, table, with_table
from repository import read


def row(technique: str, metric: str, value: float, peer_value: float) -> dict[str, object]:
    ratio = value / peer_value if peer_value else None
    return {
        "case": f"technique={technique}", "metric": metric, "value": value, "peer_value": peer_value, "ratio": ratio
    }  # fmt: skip


def test_a_technique_is_a_line_and_one_that_is_behind_says_so():
    rows = [
        row("beam", "requests_per_s", 9.6, 10.0),
        row("beam", "latency_s", 0.1234, 0.1),
        row("react", "requests_per_s", 9.7, 10.0),
        row("react", "client_cpu_ms", 1234.5, 0),
    ]
    lines = table(rows, "Somewhere.").splitlines()
    assert "Somewhere." in lines
    assert lines[-2] == "| **beam** (behind) | 9.6 · 10 · **0.96** | 0.123 · 0.1 · 1.23 | – | – | – | – |"
    assert lines[-1] == "| react | 9.7 · 10 · **0.97** | – | – | 1234 · 0 · – | – | – |"


def test_another_table_takes_the_place_of_the_one_before_and_nothing_else():
    document = f"before\n{BEGIN}old\n{END}after\n"
    assert with_table(with_table(document, "new\n"), "newer\n") == f"before\n{BEGIN}newer\n\n{END}after\n"
    assert read(DOCUMENT).count(BEGIN) == read(DOCUMENT).count(END) == 1
