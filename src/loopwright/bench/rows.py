"""Owns the one form of a measured value: a row, its metrics and its JSON. Never measures. Called by every suite.

A case is `key=value` pairs joined by "/". A peer is named only where it ran in the same command; a floor is a row of
its own, without peer and ratio.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeAlias

import msgspec

from loopwright.core.errors import Unavailable

_CASE = re.compile(r"[a-z][a-z0-9_]*=[^=/\s]+(/[a-z][a-z0-9_]*=[^=/\s]+)*")


@dataclass(frozen=True, slots=True)
class Metric:
    """What is measured. The name ends in its unit's short form."""

    name: str
    unit: str
    lower_is_better: bool


P50_MS = Metric("p50_ms", "ms", lower_is_better=True)
P99_MS = Metric("p99_ms", "ms", lower_is_better=True)
TTFT_MS = Metric("ttft_ms", "ms", lower_is_better=True)
LAUNCHES_PER_S = Metric("launches_per_s", "launches/s", lower_is_better=False)
TOKENS_PER_S = Metric("tokens_per_s", "tokens/s", lower_is_better=False)
REQUESTS_PER_S = Metric("requests_per_s", "requests/s", lower_is_better=False)
LATENCY_S = Metric("latency_s", "s", lower_is_better=True)
STEP_MS = Metric("step_ms", "ms", lower_is_better=True)
STEP_US = Metric("step_us", "µs", lower_is_better=True)
ROW_US = Metric("row_us", "µs", lower_is_better=True)
CALL_US = Metric("call_us", "µs", lower_is_better=True)
CPU_US = Metric("cpu_us", "µs", lower_is_better=True)
NUM_LIVE = Metric("num_live", "programs", lower_is_better=False)
PRIVATE_MB = Metric("private_mb_per_instance", "MB", lower_is_better=True)
PAGE_TABLE_MB = Metric("page_table_mb_per_instance", "MB", lower_is_better=True)
RATIO = Metric("ratio", "×", lower_is_better=False)
LINES = Metric("lines", "lines", lower_is_better=True)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One measured value. `ratio` = value / peer_value as measured, or, where both took turns, the median of the
    rounds' own ratios; `runs` is how many measurements `value` is the median of; `paper` is what the Pie paper
    reports for it, of its own machine and in our unit."""

    suite: str
    case: str
    metric: str
    value: float
    unit: str
    lower_is_better: bool
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    runs: int
    paper: str | None = None

    def __post_init__(self) -> None:
        assert _CASE.fullmatch(self.case), f"{self.case!r} is not key=value pairs joined by '/'"
        assert self.runs >= 1, f"{self.runs} runs"

    def against(self, peer: str, peer_value: float, ratio: float | None = None) -> "Row":
        """This row beside what `peer` measured for the same case and metric."""
        if ratio is None and peer_value:
            ratio = self.value / peer_value
        return msgspec.structs.replace(self, peer=peer, peer_value=peer_value, ratio=ratio)


class PeerValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a peer measured, in the unit of our metric of that name."""

    case: str
    metric: str
    value: float


PeerValues: TypeAlias = Mapping[str, Sequence[PeerValue]]
"""By the peer's name."""


def case_name(**pairs: str | int) -> str:
    """The name of a case: `case_name(case="burst", n=512)` is "case=burst/n=512"."""
    return "/".join(f"{key}={value}" for key, value in pairs.items())


def measured(suite: str, case: str, metric: Metric, values: Sequence[float], paper: str | None = None) -> Row:
    """A row with the median of `values`, one for each run."""
    return Row(
        suite=suite,
        case=case,
        metric=metric.name,
        value=median(values),
        unit=metric.unit,
        lower_is_better=metric.lower_is_better,
        runs=len(values),
        paper=paper,
    )


def beside_peers(rows: Sequence[Row], peer_values: PeerValues) -> list[Row]:
    """Each row once for every peer that measured the same case and metric, or once alone."""
    compared: list[Row] = []
    for row in rows:
        matches = [
            row.against(peer, one.value)
            for peer, values in peer_values.items()
            for one in values
            if (one.case, one.metric) == (row.case, row.metric)
        ]
        compared += matches or [row]
    return compared


def write_json(path: Path, rows: Sequence[Row]) -> None:
    """Writes the rows as a JSON list. Raises Unavailable when the file cannot be written."""
    text = msgspec.json.format(msgspec.json.encode(rows), indent=2)
    try:
        path.write_bytes(text + b"\n")
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error.strerror}", hint="give --json another file") from error
