"""What the figures should be, beside what they were: the first table of the report. Never measures.

A section gives each figure a name (`Bench.found`); here the names have goals. A figure without one stands there all the
same, since it was asked for.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from figures import peers

SHORT = {"llama-1b": "1B", "llama-3b": "3B", "llama-8b": "8B"}
OF_PREDICTED = 0.95
Found: TypeAlias = Mapping[str, Sequence[float]]
"""Values by name; of several, the best counts."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Figures of one kind, by label: the name of each, and its limit; None is for a figure without a goal. A limit that
    is a name is that figure, and 95 % of it where it is the least."""

    title: str
    figures: Mapping[str, tuple[str, float | str | None]]
    is_least: bool = False  # the limit is the least that it should be, and not the most

    @property
    def has_limit(self) -> bool:
        return any(limit is not None for _, limit in self.figures.values())

    def row(self, found: Found) -> tuple[str, str, str, str, str]:
        """Title, labels, goals, what was found, and what follows."""
        got = {label: self._best(found, name) for label, (name, _) in self.figures.items()}
        limits = {label: _limit(found, limit, is_least=self.is_least) for label, (_, limit) in self.figures.items()}
        sign = "≥" if self.is_least else "≤"
        goal = " · ".join("–" if one is None else f"{sign} {one:,.5g}" for one in limits.values())
        return (
            self.title,
            " · ".join(got),
            goal if any(one is not None for one in limits.values()) else "",
            " · ".join(map(_written, got.values())),
            self._verdict(got, limits),
        )

    def _best(self, found: Found, name: str) -> float | None:
        values = found.get(name, ())
        return (max if self.is_least else min)(values) if values else None

    def _verdict(self, got: Mapping[str, float | None], limits: Mapping[str, float | None]) -> str:
        missed = [label for label, limit in limits.items() if limit is not None and (value := got[label]) is not None
                  and (value < limit if self.is_least else value > limit)]  # fmt: skip
        absent = [label for label, value in got.items() if value is None]
        if len(absent) == len(got):
            return "not measured"
        said = [f"**missed** at {', '.join(missed)}"] if missed else []
        if not missed and any(limit is not None and got[label] is not None for label, limit in limits.items()):
            said.append("met")
        return "; ".join([*said, *([f"not measured: {', '.join(absent)}"] if absent else [])])


def _limit(found: Found, limit: float | str | None, *, is_least: bool) -> float | None:
    if isinstance(limit, str):
        return (OF_PREDICTED if is_least else 1.0) * found[limit][-1] if limit in found else None
    return limit


def _written(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def _tpots(place: str, title: str) -> list[Goal]:
    return [
        Goal(f"TPOT of {SHORT[shape]}, ms, {title} (vLLM {' · '.join(map(str, peers.VLLM_TPOT_MS[shape]))})", {
            str(batch): (f"{place}/{shape}/{batch}", limit) for batch, limit in zip(peers.BATCHES, limits, strict=True)
        })
        for shape, limits in peers.GOAL_TPOT_MS.items()
    ]  # fmt: skip


def _requests(place: str, title: str) -> list[Goal]:
    """Whole requests: a first token that comes sooner and others that come later may be the same to who waits."""
    return [
        Goal(f"Whole request of {SHORT[shape]}, ms, {title}; goal: first token as at control, others as their goal", {
            str(batch): (f"{place}/{shape}/{batch}", f"request_allowed/{shape}/{batch}") for batch in peers.BATCHES
        })
        for shape in peers.GOAL_TPOT_MS
    ]  # fmt: skip


def _by_shape(title: str, name: str, limit: float | None, shapes: Sequence[str], *, is_least: bool = False) -> Goal:
    return Goal(title, {SHORT[one]: (name.format(one), limit) for one in shapes}, is_least)


_TWO, _ALL = ("llama-1b", "llama-8b"), ("llama-1b", "llama-3b", "llama-8b")
_PREFILL = peers.GOAL_PREFILL_PER_S["llama-8b"]
_DISTANCES = (0, 20, 100)

GOALS: tuple[Goal, ...] = (
    *_tpots("tpot", "at control"),
    *_tpots("worker", "at the model worker"),
    *_tpots("http", "over HTTP"),
    *_requests("request", "at control"),
    *_requests("request_http", "over HTTP"),
    Goal("Prompts of 8B, tokens/s", {one: (f"prefill/llama-8b/{one}", limit) for one, limit in
         (("64 of 128", _PREFILL), ("64 of 1024", _PREFILL), ("8 of 8192", None))}, is_least=True),
    _by_shape("Host CPU of a steady step of 256 rows, ms", "host/{}/256", 1.2, _TWO),
    _by_shape("Host CPU of a step, streams' beginnings and ends in it", "host_mean/{}/256", 1.2, _TWO),
    _by_shape("Tokens/s of a host core at 256 rows", "core/{}/256", None, _TWO, is_least=True),
    _by_shape("Segment, over the bare loop", "mechanisms/{}/segment/tpot_ms", 1.01, _ALL),
    _by_shape("Traced sampler, ms a token more", "mechanisms/{}/sampler/added_ms", 0.1, _ALL),
    _by_shape("Watched segment, over the bare loop", "mechanisms/{}/watched/tpot_ms", 1.02, _ALL),
    _by_shape("Program that chooses each token, ms more", "mechanisms/{}/program/added_ms", 1.5, _ALL),
    Goal("Agents: how many times a client's, at ms of distance; goal: 95 % of what arithmetic says", {
         str(ms): (f"agents/llama-1b/{ms}/gain", f"agents/llama-1b/{ms}/predicted_gain") for ms in _DISTANCES
         }, is_least=True),
    _by_shape("TTFT p99 beside 128 streams, ms", "ttft/{}", None, _TWO),
    _by_shape("Goodput, requests/s", "goodput/{}", None, _TWO, is_least=True),
    Goal("Divergence of real weights in fewer bits, nats", {
         one: (f"quality/{one}", 0.01) for one in ("int8", "int4", "fp8")}),
    Goal("Log-probabilities from float32, of their spread, worst batch up to 256", {
         "fast": ("noise/fast", None), "deterministic": ("noise/own", None)}),
    Goal("Batches up to 256 in which a deterministic row has other bits", {"1B": ("noise/unequal", 0.0)}),
    Goal("TPOT of 1B in the deterministic class, times the fast one's", {
         str(batch): (f"cost/bfloat16/deterministic/{batch}", None) for batch in (1, 32, 256)}),
    *(Goal(f"TPOT of 1B in `{dtype}`, times bfloat16's", {
           str(batch): (f"cost/{dtype}/fast/{batch}", None) for batch in (1, 32, 256)}) for dtype in ("int8", "int4")),
    Goal("TPOT of 3B, ms, at control", {str(one): (f"tpot/llama-3b/{one}", None) for one in peers.BATCHES}),
    Goal("TPOT of Qwen3-30B-A3B's sizes, ms, at control", {
         str(one): (f"tpot/qwen3-30b-a3b/{one}", None) for one in peers.BATCHES}),
    Goal("TPOT of 8B on two GPUs together, ms", {
         str(one): (f"together/tpot/llama-8b/{one}", None) for one in peers.BATCHES}),
)  # fmt: skip


def goals_table(found: Found) -> list[str]:
    """Lines of markdown."""
    shown = [one for one in GOALS if one.has_limit or any(name in found for name, _ in one.figures.values())]
    rows = [("", "at", "goal", "got", ""), ("---",) * 5, *(one.row(found) for one in shown)]
    return [*(f"| {' | '.join(row)} |" for row in rows), "", f"In brackets: {peers.VLLM}."]


def read_found(path: Path) -> dict[str, list[float]]:
    """What `Bench.found` wrote; nothing, if there is no file."""
    found: dict[str, list[float]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        name, value = json.loads(line)
        found.setdefault(name, []).append(value)
    return found
