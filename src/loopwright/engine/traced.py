"""Runs traced samplers: one graph, for all rows that have it, as one tensor computation. Never checks a graph.

Called by the sampler. A row's numbers do not depend on its neighbours: elementwise operations have no order, and every
sum runs from the first id to the last. What is wrong with one row is that row's failure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from loopwright.core.samplers import SamplerNode, SamplerRun, StateValue, TracedSampler
from loopwright.engine.draws import draw_each, uniform


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


@dataclass(frozen=True, slots=True)
class TensorState:
    """Implements core.samplers.SamplerState: numbers are [1], vectors [vocab_size]."""

    tensors: Mapping[str, Tensor]

    def values(self) -> dict[str, StateValue]:
        return {
            name: float(one) if len(one) == 1 else one.cpu().numpy().astype("<f8").tobytes()
            for name, one in self.tensors.items()
        }


def run_samplers(rows: Sequence[TracedRow]) -> list[TracedAnswer]:
    """One answer a row, in order; rows of one graph run together."""
    groups: dict[TracedSampler, list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(row.run.graph, []).append(place)
    answers: dict[int, TracedAnswer] = {}
    for graph, places in groups.items():
        answers.update(zip(places, _run_graph(graph, [rows[place] for place in places]), strict=True))
    return [answers[place] for place in range(len(rows))]


@dataclass(slots=True)
class _Running:
    """One graph under way. Values are [num_rows, 1] or [num_rows, vocab_size]."""

    rows: Sequence[TracedRow]
    vocab_size: int
    values: list[Tensor] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)  # by row

    def fail(self, are_wrong: Tensor, why: str) -> None:
        """Notes the rows [num_rows, 1] that are wrong; the first failure of a row counts."""
        for place in are_wrong.flatten().nonzero().flatten().tolist():
            self.failures.setdefault(place, why)

    @property
    def device(self) -> torch.device:
        return self.rows[0].scores.device

    def column(self, numbers: Sequence[float]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float64, device=self.device).view(-1, 1)


def _run_graph(graph: TracedSampler, rows: Sequence[TracedRow]) -> list[TracedAnswer]:
    running = _Running(rows, len(rows[0].scores))
    last_use = _last_uses(graph)
    nothing = torch.empty(0, 0)
    for place, node in enumerate(graph.nodes):
        inputs = [running.values[one] for one in node.inputs]
        running.values.append(_evaluate(running, graph, node, inputs))
        for one in node.inputs:
            if last_use[one] == place:
                running.values[one] = nothing  # a vector of a large vocabulary is too much to keep for every node
    result = running.values[graph.result]
    running.fail(result.isnan().any(-1, keepdim=True), "the result is not a number")
    next_values = {
        state.name: running.values[state.next].expand(-1, running.vocab_size if state.is_vector else 1)
        for state in graph.states
    }
    for name, value in next_values.items():
        running.fail(~value.isfinite().all(-1, keepdim=True), f"state {name!r} is not finite")
    return [
        TracedAnswer(
            result[place],
            # A copy: a view of one row would keep those of all.
            TensorState({name: value[place].clone() for name, value in next_values.items()}),
            running.failures.get(place),
        )
        for place in range(len(rows))
    ]


def _last_uses(graph: TracedSampler) -> dict[int, int]:
    last_use = {one: place for place, node in enumerate(graph.nodes) for one in node.inputs}
    for one in (graph.result, *(state.next for state in graph.states)):
        last_use[one] = len(graph.nodes)
    return last_use


def _evaluate(running: _Running, graph: TracedSampler, node: SamplerNode, inputs: Sequence[Tensor]) -> Tensor:
    simple = _SIMPLE.get(node.op)
    if simple is not None:
        return simple(*inputs)
    leaf = _LEAVES.get(node.op)
    if leaf is not None:
        return leaf(running, graph, node)
    match node.op:
        case "kth":
            return inputs[0].topk(node.k, dim=-1).values.amin(-1, keepdim=True)
        case "take":
            return _take(running, *inputs)
        case "draw":
            return _draw_all(running, inputs[0])
        case _:
            raise AssertionError(f"{node.op} has no meaning here")


def _states(running: _Running, graph: TracedSampler, node: SamplerNode) -> Tensor:
    is_vector = next(state.is_vector for state in graph.states if state.name == node.name)
    size = running.vocab_size if is_vector else 1
    return torch.stack([_state_of(row.run, node.name, size, running.device) for row in running.rows])


def _sparse(running: _Running, _: TracedSampler, node: SamplerNode) -> Tensor:
    vector = torch.zeros(running.vocab_size, dtype=torch.float64)  # on the CPU: entries are set one by one
    for token_id, value in node.entries:
        vector[token_id] += value
    return vector.to(running.device).expand(len(running.rows), -1)


def _state_of(run: SamplerRun, name: str, size: int, device: torch.device) -> Tensor:
    if run.state is not None:
        assert isinstance(run.state, TensorState), "a state comes back to the executor that made it"
        return run.state.tensors[name]
    value = run.initial[name]
    if isinstance(value, bytes):
        return torch.frombuffer(bytearray(value), dtype=torch.float64).to(device)
    return torch.full((size,), float(value), dtype=torch.float64, device=device)


def _take(running: _Running, vector: Tensor, number: Tensor) -> Tensor:
    index = number.nan_to_num(-1.0).clamp(0, running.vocab_size - 1).long()
    running.fail(index != number, f"take: an index is not a token id from 0 to {running.vocab_size - 1}")
    return vector.to(running.device).expand(len(running.rows), -1).gather(-1, index)


def _draw_all(running: _Running, weights: Tensor) -> Tensor:
    total = weights.sum(-1, keepdim=True)
    are_wrong = (weights < 0).any(-1, keepdim=True) | ~total.isfinite() | (total <= 0)
    running.fail(are_wrong, "draw: weights must be finite, none negative, and not all 0")
    numbers = running.column([uniform(row.seed, row.position) for row in running.rows])[:, 0]
    return draw_each(weights, numbers).double()[:, None]


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
    "max": lambda vector: vector.amax(-1, keepdim=True),
    "argmax": lambda vector: vector.argmax(-1, keepdim=True).double(),  # of equal values, the lowest id
    "mass_before": _mass_before,
}

_LEAVES: dict[str, Callable[[_Running, TracedSampler, SamplerNode], Tensor]] = {
    "scores": lambda running, _graph, _node: torch.stack([row.scores for row in running.rows]),
    "state": _states,
    "constant": lambda running, _, node: running.column([float(node.value or 0.0)] * len(running.rows)),
    "sparse": _sparse,
    "ids": lambda running, _graph, _node: torch.arange(
        running.vocab_size, dtype=torch.float64, device=running.device
    ).expand(len(running.rows), -1),
    "position": lambda running, _graph, _node: running.column([row.position for row in running.rows]),
    "uniform": lambda running, _graph, _node: running.column([uniform(row.seed, row.position) for row in running.rows]),
}
