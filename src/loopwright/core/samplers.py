"""A sampler of a program as data: a small graph of tensor operations that chooses each token. Never runs one.

Traced by the sdk inside the program, checked by control when the call is issued, run by the engine for all its rows.

Every value is float64 and is either a *number* or a *vector* of one number for each token id; a number beside a vector
counts for every id. Comparisons give 1 and 0. docs/samplers.md says what each operation computes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Meta

SamplerOperation: TypeAlias = Literal[
    "scores", "state", "constant", "sparse", "ids", "position", "uniform",
    "add", "subtract", "multiply", "divide", "maximum", "less", "equal", "where", "exp", "log",
    "sum", "max", "argmax", "take", "kth", "mass_before", "draw",
]  # fmt: skip
"""Seven things that a sampler starts from, and seventeen that it does with them."""

Infinity: TypeAlias = Literal["inf", "-inf"]
"""JSON has no infinite numbers."""

MAX_SAMPLER_NODES = 256
MAX_SAMPLER_STATES = 16
MAX_SAMPLER_ENTRIES = 4096
"""Of all sparse vectors of one sampler."""
MAX_SAMPLER_COST = 1024
"""In passes over a vector of the vocabulary; see OPERATION_COSTS."""

OPERATION_COSTS: Mapping[str, int] = {"exp": 2, "log": 2, "sum": 2, "take": 0, "kth": 8, "draw": 4, "mass_before": 64}
"""What an operation on vectors costs, in additions of two vectors: 1 unless it is here."""

NodeIndex = Annotated[int, Meta(ge=0, lt=MAX_SAMPLER_NODES)]


class SamplerNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One operation. `inputs` are earlier nodes."""

    op: SamplerOperation
    inputs: Annotated[tuple[NodeIndex, ...], Meta(max_length=3)] = ()
    value: float | Infinity | None = None  # of a constant
    name: str = ""  # of a state
    entries: Annotated[tuple[tuple[int, float], ...], Meta(max_length=MAX_SAMPLER_ENTRIES)] = ()  # of a sparse vector
    k: Annotated[int, Meta(ge=0, lt=2**31)] = 0  # of kth


class TracedState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value that one token leaves to the next."""

    name: str
    is_vector: bool
    next: NodeIndex  # what it will be


class TracedSampler(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, cache_hash=True
):  # fmt: skip
    """The whole graph. `result` is a number, the token itself, or a vector of new scores."""

    nodes: Annotated[tuple[SamplerNode, ...], Meta(min_length=1, max_length=MAX_SAMPLER_NODES)]
    result: NodeIndex
    states: Annotated[tuple[TracedState, ...], Meta(max_length=MAX_SAMPLER_STATES)] = ()


StateValue: TypeAlias = float | bytes
"""A number, or a vector as [vocab_size] little-endian float64; a number for a vector fills it."""


class SamplerState(Protocol):
    """What a sampler carries, between two tokens of one text. Never changes. Made by the executor."""

    def values(self) -> dict[str, StateValue]:
        """The same as data."""
        ...


@dataclass(frozen=True, slots=True)
class SamplerRun:
    """A sampler's place in a row. With no `state` this is the text's first token, and `initial` counts."""

    graph: TracedSampler
    initial: Mapping[str, StateValue]
    state: SamplerState | None = None


def sampler_shapes(sampler: TracedSampler) -> list[bool]:
    """Whether each node is a vector. The sampler must have been checked."""
    vectors = {state.name: state.is_vector for state in sampler.states}
    shapes: list[bool] = []
    for node in sampler.nodes:
        shapes.append(is_vector_node(node, [shapes[one] for one in node.inputs], vectors))
    return shapes


def is_vector_node(node: SamplerNode, inputs: list[bool], state_vectors: Mapping[str, bool]) -> bool:
    """Whether a node is a vector, given whether its inputs are."""
    match node.op:
        case "scores" | "sparse" | "ids" | "mass_before":
            return True
        case "constant" | "position" | "uniform" | "sum" | "max" | "argmax" | "take" | "kth" | "draw":
            return False
        case "state":
            return state_vectors[node.name]
        case _:
            return any(inputs)
