"""Runs traced samplers: one graph, for all rows that have it, as one tensor computation. Never checks a graph.

Called by the sampler, and by what answers on a device. A row's numbers do not depend on its neighbours: elementwise
operations have no order, and every sum runs from the first id to the last. What is wrong with one row is its failure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.samplers import SamplerNode, SamplerRun, StateValue, TracedSampler
from loopwright.engine.draws import draw_each, uniform
from loopwright.engine.transfer import to_device


@dataclass(frozen=True, slots=True)
class TracedRow:
    """One row's question: `scores` float64 [vocab_size], -inf for what may not be chosen."""

    run: SamplerRun
    scores: Tensor
    seed: int
    position: int


@dataclass(frozen=True, slots=True)
class TracedAnswer:
    """`result` is [1], the token, or new scores [vocab_size]. With `failure`, it says what went wrong."""

    result: Tensor
    state: "TensorState"
    failure: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TensorState:
    """Implements core.samplers.SamplerState: one row of `columns`, in which numbers are [num_rows, 1] and vectors
    [num_rows, vocab_size]."""

    columns: Mapping[str, Tensor]
    row: int

    def values(self) -> dict[str, StateValue]:
        return {name: state_value(one[self.row].cpu().numpy()) for name, one in self.columns.items()}


def state_value(numbers: NDArray[np.float64]) -> StateValue:
    """A number [1] or a vector as a program gets it."""
    return float(numbers[0]) if len(numbers) == 1 else numbers.astype("<f8").tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class TracedRows:
    """Rows of one graph: `scores` as of TracedRow, [num_rows, vocab_size], or float32 that become so where it matters;
    `positions` and the `numbers` of their draws float64 [num_rows, 1]; what they carry, as of TensorState; and the
    graph's sparse vectors by their nodes' places."""

    scores: Tensor
    positions: Tensor
    numbers: Tensor
    states: Mapping[str, Tensor]
    sparse: Mapping[int, Tensor]

    @property
    def device(self) -> torch.device:
        return self.scores.device


@dataclass(frozen=True, slots=True, eq=False)
class TracedResults:
    """What a graph gave its rows: `result` [num_rows, 1] or [num_rows, vocab_size]. `checks`, [num_rows, 1] each, say
    whose each of `failures` is: booleans do, and numbers that are not finite, or of the result's that are NaN. They are
    of nodes, of the result at `of_result`, of states that are numbers, and of others, in this order."""

    result: Tensor
    states: Mapping[str, Tensor]
    checks: Sequence[Tensor]
    of_result: int
    failures: Sequence[str]

    @property
    def failed(self) -> Tensor:
        """Of each row what failed first, by its place in `failures` from 1 on, or 0: int64 [num_rows]."""
        found = torch.zeros(len(self.result), 1, dtype=torch.int64, device=self.result.device)
        for place, one in enumerate(self.checks):
            are_wrong = one
            if one.dtype != torch.bool:
                are_wrong = one.isnan() if place == self.of_result else ~one.isfinite()
            found = torch.where(are_wrong & (found == 0), place + 1, found)
        return found[:, 0]


def run_samplers(rows: Sequence[TracedRow]) -> list[TracedAnswer]:
    """One answer a row, in order; rows of one graph run together."""
    answers: dict[int, TracedAnswer] = {}
    for graph, places in by_graph([row.run for row in rows]).items():
        mine = [rows[place] for place in places]
        found = run_graph(graph, _together(graph, mine))
        failures = ("", *found.failures)
        for number, (place, failed) in enumerate(zip(places, found.failed.tolist(), strict=True)):
            # A copy: a view of one row would keep those of all.
            state = TensorState({name: one[number : number + 1].clone() for name, one in found.states.items()}, 0)
            answers[place] = TracedAnswer(found.result[number], state, failures[failed] or None)
    return [answers[place] for place in range(len(rows))]


def by_graph(runs: Sequence[SamplerRun]) -> dict[TracedSampler, list[int]]:
    """Which of the runs have which graph."""
    groups: dict[TracedSampler, list[int]] = {}
    for place, run in enumerate(runs):
        groups.setdefault(run.graph, []).append(place)
    return groups


def carried(
    graph: TracedSampler, runs: Sequence[SamplerRun], vocab_size: int, device: torch.device
) -> dict[str, Tensor]:
    """What the rows begin their token with, as of TensorState."""
    return {
        state.name: _carried(runs, state.name, vocab_size if state.is_vector else 1, device) for state in graph.states
    }


def sparse_vectors(graph: TracedSampler, vocab_size: int, device: torch.device) -> dict[int, Tensor]:
    """Of the graph's nodes, by place: float64 [vocab_size]."""
    nodes = [(place, node) for place, node in enumerate(graph.nodes) if node.op == "sparse"]
    return {place: _sparse_vector(node.entries, vocab_size, device) for place, node in nodes}


def run_graph(graph: TracedSampler, rows: TracedRows) -> TracedResults:
    """Runs the graph for its rows, and waits for nothing that it computes."""
    running = _Running(rows)
    last_use = _last_uses(graph)
    nothing = torch.empty(0, 0)
    for place, node in enumerate(graph.nodes):
        inputs = [running.values[one] for one in node.inputs]
        if node.op not in _OF_ANY_WIDTH:
            inputs = [running.widened(one) for one in inputs]
        running.values.append(_evaluate(running, place, node, inputs))
        for one in node.inputs:
            if last_use[one] == place:
                running.values[one] = nothing  # a vector of a large vocabulary is too much to keep for every node
    result, of_result = running.widened(running.values[graph.result]), len(running.checks)
    is_number = result.shape[1] == 1
    running.check(result if is_number else result.isnan().any(-1, keepdim=True), "the result is not a number")
    states = {
        state.name: running.widened(running.values[state.next]).expand(-1, running.vocab_size if state.is_vector else 1)
        for state in graph.states
    }
    for name, value in sorted(states.items(), key=lambda one: one[1].shape[1] > 1):
        is_number = value.shape[1] == 1
        running.check(value if is_number else ~value.isfinite().all(-1, keepdim=True), f"state {name!r} is not finite")
    return TracedResults(result, states, running.checks, of_result, running.failures)


@dataclass(slots=True)
class _Running:
    """One graph under way. Values are [num_rows, 1] or [num_rows, vocab_size]."""

    rows: TracedRows
    values: list[Tensor] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    checks: list[Tensor] = field(default_factory=list)  # as in TracedResults
    wide: Tensor | None = None  # the scores in float64, once somebody needs that

    @property
    def num_rows(self) -> int:
        return self.rows.scores.shape[0]

    @property
    def vocab_size(self) -> int:
        return self.rows.scores.shape[1]

    def check(self, column: Tensor, why: str) -> None:
        """Notes which rows are wrong, as a check of TracedResults; the first failure of a row counts."""
        self.failures.append(why)
        self.checks.append(column)

    def widened(self, value: Tensor) -> Tensor:
        """In float64; of what is not, there are the scores alone."""
        if value.dtype == torch.float64:
            return value
        if self.wide is None:
            self.wide = value.double()
        return self.wide

    def column(self, number: float) -> Tensor:
        return torch.full((self.num_rows, 1), number, dtype=torch.float64, device=self.rows.device)


def _together(graph: TracedSampler, rows: Sequence[TracedRow]) -> TracedRows:
    device, vocab_size = rows[0].scores.device, len(rows[0].scores)

    def column(numbers: Sequence[float]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float64, device=device).view(-1, 1)

    return TracedRows(
        torch.stack([row.scores for row in rows]),
        column([row.position for row in rows]),
        column([uniform(row.seed, row.position) for row in rows]),
        carried(graph, [row.run for row in rows], vocab_size, device),
        sparse_vectors(graph, vocab_size, device),
    )


def _last_uses(graph: TracedSampler) -> dict[int, int]:
    last_use = {one: place for place, node in enumerate(graph.nodes) for one in node.inputs}
    for one in (graph.result, *(state.next for state in graph.states)):
        last_use[one] = len(graph.nodes)
    return last_use


def _evaluate(running: _Running, place: int, node: SamplerNode, inputs: Sequence[Tensor]) -> Tensor:
    simple = _SIMPLE.get(node.op)
    if simple is not None:
        return simple(*inputs)
    leaf = _LEAVES.get(node.op)
    if leaf is not None:
        return leaf(running, node)
    match node.op:
        case "sparse":
            return running.rows.sparse[place].expand(running.num_rows, -1)
        case "kth":
            return inputs[0].topk(node.k, dim=-1).values.amin(-1, keepdim=True).double()
        case "take":
            return _take(running, *inputs)
        case "draw":
            return _draw_all(running, inputs[0])
        case _:
            raise AssertionError(f"{node.op} has no meaning here")


def _carried(runs: Sequence[SamplerRun], name: str, size: int, device: torch.device) -> Tensor:
    if (whole := _unchanged(runs, name)) is not None:
        return whole
    parts: dict[int, list[int]] = {}  # rows that carry what one step left are taken from there together
    for place, run in enumerate(runs):
        key = id(run.state.columns) if isinstance(run.state, TensorState) else -1 - place
        parts.setdefault(key, []).append(place)
    found = [_taken([runs[place] for place in places], name, size, device) for places in parts.values()]
    order = [place for places in parts.values() for place in places]
    together = torch.cat(found)
    if order == sorted(order):
        return together
    return together[to_device(np.argsort(order), device)]


def _unchanged(runs: Sequence[SamplerRun], name: str) -> Tensor | None:
    """The states of all rows as they lie, if they are those that one run of the graph left to its rows."""
    first = runs[0].state
    if not isinstance(first, TensorState) or len(runs) != len(first.columns[name]):
        return None
    for place, run in enumerate(runs):
        state = run.state
        if not isinstance(state, TensorState) or state.columns is not first.columns or state.row != place:
            return None
    return first.columns[name]


def _taken(runs: Sequence[SamplerRun], name: str, size: int, device: torch.device) -> Tensor:
    """Of runs whose states are rows of the same columns, or of one."""
    first = runs[0].state
    if len(runs) == 1 or not isinstance(first, TensorState):
        return _state_of(runs[0], name, size, device)
    rows = [run.state.row for run in runs if isinstance(run.state, TensorState)]
    return first.columns[name][to_device(np.array(rows, np.int64), device)]


@lru_cache(maxsize=32)
def _sparse_vector(entries: tuple[tuple[int, float], ...], vocab_size: int, device: torch.device) -> Tensor:
    vector = np.zeros(vocab_size)
    for token_id, value in entries:
        vector[token_id] += value
    return to_device(vector, device)


def _state_of(run: SamplerRun, name: str, size: int, device: torch.device) -> Tensor:
    """[1, size]."""
    if run.state is not None:
        assert isinstance(run.state, TensorState), "a state comes back to the executor that made it"
        return run.state.columns[name][run.state.row : run.state.row + 1]
    value = run.initial[name]
    if isinstance(value, bytes):
        return to_device(np.frombuffer(value, np.float64)[None], device)
    return torch.full((1, size), float(value), dtype=torch.float64, device=device)


def _take(running: _Running, vector: Tensor, number: Tensor) -> Tensor:
    index = number.nan_to_num(-1.0).clamp(0, running.vocab_size - 1).long()
    running.check(index != number, f"take: an index is not a token id from 0 to {running.vocab_size - 1}")
    return vector.expand(running.num_rows, -1).gather(-1, index).double()


def _draw_all(running: _Running, weights: Tensor) -> Tensor:
    total = weights.sum(-1, keepdim=True)
    are_wrong = (weights < 0).any(-1, keepdim=True) | ~total.isfinite() | (total <= 0)
    running.check(are_wrong, "draw: weights must be finite, none negative, and not all 0")
    return draw_each(weights, running.rows.numbers[:, 0]).double()[:, None]


def _sum(vector: Tensor) -> Tensor:
    """In order, as a loop would; torch.sum pairs terms by its own rule. On a GPU that is what it does."""
    return vector.sum(-1, keepdim=True) if vector.is_cuda else vector.cumsum(-1)[:, -1:]


def _mass_before(weights: Tensor, by: Tensor) -> Tensor:
    """For each id the sum of the weights of those that `by` puts before it: larger first, the lowest id on a tie."""
    order = by.argsort(dim=-1, descending=True, stable=True)
    ordered = weights.gather(-1, order).cumsum(-1)
    before = torch.cat([torch.zeros_like(ordered[:, :1]), ordered[:, :-1]], dim=-1)
    return torch.empty_like(before).scatter_(-1, order, before)


_SIMPLE: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "subtract": torch.subtract,
    "multiply": torch.multiply,
    "divide": torch.divide,
    "maximum": torch.maximum,
    "less": lambda one, other: (one < other).double(),
    "equal": lambda one, other: (one == other).double(),
    "where": lambda condition, one, other: torch.where(condition != 0, one, other),
    "exp": torch.exp,
    "log": torch.log,
    "sum": _sum,
    "max": lambda vector: vector.amax(-1, keepdim=True).double(),
    "argmax": lambda vector: vector.argmax(-1, keepdim=True).double(),  # of equal values, the lowest id
    "mass_before": _mass_before,
}

_OF_ANY_WIDTH = {"argmax", "max", "kth", "take"}
"""Operations that find one of the scores: in float32 they find the same one."""

_LEAVES: dict[str, Callable[[_Running, SamplerNode], Tensor]] = {
    "scores": lambda running, _: running.rows.scores,
    "state": lambda running, node: running.rows.states[node.name],
    "constant": lambda running, node: running.column(float(node.value or 0.0)),
    "ids": lambda running, _: torch.arange(running.vocab_size, dtype=torch.float64, device=running.rows.device).expand(
        running.num_rows, -1
    ),
    "position": lambda running, _: running.rows.positions,
    "uniform": lambda running, _: running.rows.numbers,
}
