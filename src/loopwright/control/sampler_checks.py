"""Owns what a traced sampler may be: which operations take what, how large it is, and what may stand beside it.

Never runs one. Called by checks when a Generate is issued; each check raises a BadRequest that names the operation and
the limit.
"""

import math
from collections.abc import Mapping, Sequence

from loopwright.core.calls import Sampling
from loopwright.core.errors import BadRequest, LimitExceeded
from loopwright.core.executor import EngineShape
from loopwright.core.samplers import (
    MAX_SAMPLER_COST,
    MAX_SAMPLER_ENTRIES,
    OPERATION_COSTS,
    SamplerNode,
    StateValue,
    TracedSampler,
    is_vector_node,
)

_NUM_INPUTS: Mapping[str, int] = {
    "scores": 0, "state": 0, "constant": 0, "sparse": 0, "ids": 0, "position": 0, "uniform": 0,
    "add": 2, "subtract": 2, "multiply": 2, "divide": 2, "maximum": 2, "less": 2, "equal": 2, "where": 3,
    "exp": 1, "log": 1, "sum": 1, "max": 1, "argmax": 1, "take": 2, "kth": 1, "mass_before": 2, "draw": 1,
}  # fmt: skip
_OF_VECTORS: Mapping[str, Sequence[int]] = {
    "sum": (0,), "max": (0,), "argmax": (0,), "take": (0,), "kth": (0,), "mass_before": (0, 1), "draw": (0,),
}  # fmt: skip
"""Inputs that must be vectors."""

_FILTERS = ("temperature", "top_k", "typical_p", "top_p", "min_p")


def check_sampler(
    sampler: TracedSampler, initial: Mapping[str, StateValue], sampling: Sampling, shape: EngineShape
) -> None:
    """Operations, shapes, sizes and states fit each other, the model, and the fields of Sampling beside them."""
    vectors = {state.name: state.is_vector for state in sampler.states}
    shapes: list[bool] = []
    cost = num_entries = 0
    for place, node in enumerate(sampler.nodes):
        is_vector = _check_node(place, node, shapes, vectors, shape)
        if is_vector or any(shapes[one] for one in node.inputs):
            cost += OPERATION_COSTS.get(node.op, 1)
        num_entries += len(node.entries)
        shapes.append(is_vector)
        if cost > MAX_SAMPLER_COST:
            raise LimitExceeded(
                f"{_field(place)}: {node.op} brings the sampler's cost to {cost} passes over the vocabulary; the limit "
                f"is {MAX_SAMPLER_COST}",
                field="sampler",
                hint="mass_before costs the most: it sorts",
            )
    if num_entries > MAX_SAMPLER_ENTRIES:
        raise LimitExceeded(
            f"sampler.nodes: {num_entries} entries of sparse vectors; the limit is {MAX_SAMPLER_ENTRIES}",
            field="sampler",
        )
    _check_end("result", sampler.result, len(shapes))
    _check_states(sampler, initial, shapes, shape)
    if not shapes[sampler.result]:
        _check_beside_token(sampling)


def _check_node(
    place: int, node: SamplerNode, shapes: Sequence[bool], vectors: Mapping[str, bool], shape: EngineShape
) -> bool:
    """Whether the node is a vector."""
    if len(node.inputs) != _NUM_INPUTS[node.op]:
        raise _bad(place, f"{node.op} takes {_NUM_INPUTS[node.op]} inputs, and {len(node.inputs)} are given")
    for one in node.inputs:
        if one >= place:
            raise _bad(place, f"{node.op} reads node {one}, which does not come before it")
    for number in _OF_VECTORS.get(node.op, ()):
        if not shapes[node.inputs[number]]:
            raise _bad(place, f"{node.op} takes a vector as input {number}, and node {node.inputs[number]} is a number")
    if node.op == "take" and shapes[node.inputs[1]]:
        raise _bad(place, f"take takes a number as index, and node {node.inputs[1]} is a vector")
    _check_fields(place, node, vectors, shape)
    return is_vector_node(node, [shapes[one] for one in node.inputs], vectors)


def _check_fields(place: int, node: SamplerNode, vectors: Mapping[str, bool], shape: EngineShape) -> None:
    if node.op == "kth" and not 1 <= node.k <= shape.vocab_size:
        raise _bad(place, f"kth: k is {node.k}, which is not from 1 to the vocabulary's {shape.vocab_size}")
    if node.op == "constant" and (node.value is None or math.isnan(float(node.value))):
        raise _bad(place, f"constant: {node.value} is not a number")
    if node.op == "state" and node.name not in vectors:
        raise _bad(place, f"state: {node.name!r} is not one of {sorted(vectors)}")
    for token_id, value in node.entries:
        if not 0 <= token_id < shape.vocab_size:
            raise _bad(place, f"sparse: token {token_id} is not in the vocabulary of {shape.vocab_size}")
        if not math.isfinite(value):
            raise _bad(place, f"sparse: {value} of token {token_id} is not finite")


def _check_states(
    sampler: TracedSampler, initial: Mapping[str, StateValue], shapes: Sequence[bool], shape: EngineShape
) -> None:
    names = [state.name for state in sampler.states]
    if len(set(names)) < len(names) or set(names) != set(initial):
        raise BadRequest(
            f"sampler_state: {sorted(initial)} are given, and the sampler carries {sorted(names)}",
            field="sampler_state",
        )
    for state in sampler.states:
        _check_end(f"states.{state.name}", state.next, len(shapes))
        if shapes[state.next] and not state.is_vector:
            raise BadRequest(
                f"sampler.states: {state.name!r} is a number, and what it becomes is a vector", field="sampler.states"
            )
        value, num_bytes = initial[state.name], 8 * shape.vocab_size
        if isinstance(value, bytes) and (not state.is_vector or len(value) != num_bytes):
            raise BadRequest(
                f"sampler_state.{state.name}: {len(value)} bytes; a vector has {num_bytes}, a number none",
                field=f"sampler_state.{state.name}",
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise BadRequest(f"sampler_state.{state.name}: {value} is not finite", field=f"sampler_state.{state.name}")


def _check_end(name: str, node: int, num_nodes: int) -> None:
    if node >= num_nodes:
        raise BadRequest(f"sampler.{name}: node {node} of {num_nodes}", field=f"sampler.{name}")


def _check_beside_token(sampling: Sampling) -> None:
    """A sampler that gives the token itself leaves nothing to what acts on scores."""
    defaults = Sampling()
    for name in _FILTERS:
        if getattr(sampling, name) != getattr(defaults, name):
            raise BadRequest(
                f"sampling.{name}: the sampler gives the token itself, so {name} would do nothing",
                field=f"sampling.{name}",
                hint="have it return scores, or leave the option out",
            )
    if sampling.logprobs != "raw":
        raise BadRequest(
            "sampling.logprobs: the sampler gives the token itself, so there is no processed distribution",
            field="sampling.logprobs",
            hint='ask for "raw"',
        )


def _field(place: int) -> str:
    return f"sampler.nodes[{place}]"


def _bad(place: int, message: str) -> BadRequest:
    return BadRequest(f"{_field(place)}: {message}", field=_field(place))
