"""Rows: their names, their comparison with peers and their JSON."""

import json
from pathlib import Path

import pytest

from loopwright.bench.rows import (
    LAUNCHES_PER_S,
    P50_MS,
    PeerValue,
    Row,
    beside_peers,
    case_name,
    measured,
    write_json,
)
from loopwright.core.errors import Unavailable

ROW = measured("launch", "case=sequential", P50_MS, [2.0, 9.0, 3.0])


def test_a_row_holds_the_median_and_how_many_measurements_it_is_of():
    assert (ROW.value, ROW.runs, ROW.unit, ROW.lower_is_better) == (3.0, 3, "ms", True)


def test_a_case_is_pairs_joined_by_a_slash():
    assert case_name(case="burst", n=512) == "case=burst/n=512"


@pytest.mark.parametrize("case", ["", "burst", "n=", "=512", "case=burst/", "case=a b", "a=b=c", "/n=512"])
def test_a_case_of_another_form_is_our_own_bug(case):
    with pytest.raises(AssertionError, match="pairs"):
        measured("launch", case, P50_MS, [1.0])


def test_a_row_without_a_peer_has_no_ratio():
    assert (ROW.peer, ROW.peer_value, ROW.ratio) == (None, None, None)


def test_the_ratio_is_our_value_over_the_peers():
    row = ROW.against("pie-server", 4.0)
    assert (row.peer, row.peer_value, row.ratio) == ("pie-server", 4.0, 0.75)


def test_where_both_took_turns_the_ratio_is_that_of_the_rounds():
    assert ROW.against("client", 4.0, 0.9).ratio == 0.9


def test_a_peer_that_measured_zero_gives_no_ratio():
    assert ROW.against("pie-server", 0.0).ratio is None


def test_a_row_comes_once_for_each_peer_that_measured_the_same_and_once_alone_if_none_did():
    burst = measured("launch", "case=burst/n=512", LAUNCHES_PER_S, [300.0])
    rows = beside_peers(
        [ROW, burst],
        {
            "pie-server": [PeerValue("case=sequential", "p50_ms", 4.0), PeerValue("case=burst/n=8", "p50_ms", 1.0)],
            "other": [PeerValue("case=sequential", "p50_ms", 6.0), PeerValue("case=sequential", "p99_ms", 1.0)],
        },
    )
    assert [(row.case, row.peer, row.ratio) for row in rows] == [
        ("case=sequential", "pie-server", 0.75),
        ("case=sequential", "other", 0.5),
        ("case=burst/n=512", None, None),
    ]


def test_the_json_file_is_a_list_of_rows_with_every_field(tmp_path: Path):
    write_json(tmp_path / "rows.json", [ROW, ROW.against("pie-server", 4.0)])
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [list(row) for row in rows] == [list(Row.__struct_fields__)] * 2
    assert rows[0]["peer"] is None
    assert rows[1] == {
        "suite": "launch",
        "case": "case=sequential",
        "metric": "p50_ms",
        "value": 3.0,
        "unit": "ms",
        "lower_is_better": True,
        "peer": "pie-server",
        "peer_value": 4.0,
        "ratio": 0.75,
        "runs": 3,
        "paper": None,
    }


def test_a_file_that_cannot_be_written_is_one_line_that_names_it(tmp_path: Path):
    (tmp_path / "rows.json").mkdir()
    with pytest.raises(Unavailable, match=r"cannot write .*rows\.json: Is a directory"):
        write_json(tmp_path / "rows.json", [ROW])
