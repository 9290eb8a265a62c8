"""Turns a program's sampler function into the graph that the engine runs. Never runs the function on numbers.

Called by Context when a segment begins. The function is called once, with tensors that only note what is done to them.
"""

import base64
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from loopwright.sdk import argument_check, tensor
from loopwright.sdk.errors import Untraceable
from loopwright.sdk.tensor import Filled, Tensor, running_in, stop_running

MAX_NODES = 256
"""Operations of one sampler."""

Node: TypeAlias = dict[str, Any]
State: TypeAlias = Mapping[str, Any]  # float, Filled, or a sequence of one float for each token id
Sampler: TypeAlias = Callable[..., Any]

_OUR_MODULES = frozenset({__name__, tensor.__name__, argument_check.__name__})
_VECTORS = frozenset({"scores", "sparse", "ids", "mass_before"})
_NUMBERS = frozenset({"constant", "position", "uniform", "sum", "max", "argmax", "take", "kth", "draw"})
_TAKES_VECTOR = frozenset({"sum", "max", "argmax", "take", "kth", "mass_before", "draw"})  # as first input


class Trace:
    """Implements tensor.Evaluator: payloads are numbers of nodes."""

    def __init__(self, function: Sampler, vocab_size: int) -> None:
        self.nodes: list[Node] = []
        self._function = function
        self._vocab_size = vocab_size
        self._known: dict[str, Tensor] = {}  # equal operations are one node

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def apply(self, op: str, *inputs: Tensor, **fields: Any) -> Tensor:  # noqa: ANN401 (per operation)
        for one in inputs:
            if one.evaluator is not self:
                self.refuse(f"{op} of a tensor from an earlier call of the sampler; carry it in the state")
        if op in _TAKES_VECTOR and not inputs[0].is_vector:
            self.refuse(f"{op} takes a vector, and this is a number")
        if op == "constant" and fields["value"] != fields["value"]:
            self.refuse("a constant that is not a number")
        node = {"op": op, "inputs": [one.payload for one in inputs], **fields}
        known = self._known.get(key := repr(node))
        if known is None:
            if len(self.nodes) == MAX_NODES:
                self.refuse(f"{op} is operation {MAX_NODES + 1}; the limit is {MAX_NODES}")
            self.nodes.append(node)
            is_vector = op in _VECTORS or (op not in _NUMBERS and any(one.is_vector for one in inputs))
            known = self._known[key] = Tensor(self, len(self.nodes) - 1, is_vector)
        return known

    def state(self, name: str, is_vector: bool) -> Tensor:
        """What the sampler finds under a name."""
        self.nodes.append({"op": "state", "inputs": [], "name": name})
        return Tensor(self, len(self.nodes) - 1, is_vector)

    def number(self, tensor: Tensor, why: str) -> NoReturn:
        self.refuse(f"it needs {why}")

    def numbers(self, tensor: Tensor, why: str) -> NoReturn:
        self.refuse(f"it needs {why}")

    def refuse(self, why: str, cause: BaseException | None = None) -> NoReturn:
        """Raises Untraceable, with the program's line that is running or that raised `cause`."""
        line = _line_of_program() if cause is None else _line_of_error(cause)
        where = "" if line is None else f"line {line}: "
        name = getattr(self._function, "__name__", "the sampler")
        raise Untraceable(
            f"{name} cannot be traced: {where}{why}",
            field="sampler",
            hint="write it with the operations of loopwright.tensor, or pass sampler_fallback=True to run it in Python "
            "for each token, which is much slower",
        ) from cause


def trace(function: Sampler, state: State, vocab_size: int) -> dict[str, Any]:
    """The function as the ABI's traced sampler. Raises Untraceable, which says in which line and why."""
    running = Trace(function, vocab_size)
    scores = running.apply("scores")
    states = {name: running.state(name, is_vector(value)) for name, value in state.items()}
    token = running_in(running)
    try:
        returned = function(scores, states) if state else function(scores)
        result, carried = outcome_of(returned, state)
        outputs = {name: tensor._tensor(one) for name, one in {"": result, **carried}.items()}
    except Untraceable:
        raise
    except Exception as error:  # noqa: BLE001 (whatever the program's function raises on tensors)
        running.refuse(f"{type(error).__name__}: {error}", error)
    finally:
        stop_running(token)
    for name, one in carried.items():
        if outputs[name].is_vector and not states[name].is_vector:
            running.refuse(f"state {name!r} begins as a number and becomes a vector; begin it with filled({one!r})")
    places, nodes = _reachable(running.nodes, [one.payload for one in outputs.values()])
    return {
        "nodes": nodes,
        "result": places[outputs[""].payload],
        "states": [
            {"name": name, "is_vector": one.is_vector, "next": places[outputs[name].payload]}
            for name, one in states.items()
        ],
    }


def is_traceable(function: Sampler, state: State, vocab_size: int) -> bool:
    """Whether `trace` would succeed."""
    try:
        trace(function, state, vocab_size)
    except Untraceable:
        return False
    return True


def sampler_fields(function: Sampler | None, state: State, vocab_size: int) -> dict[str, Any]:
    """The fields of the ABI's generate. Raises Untraceable, TypeError."""
    if function is None:
        if state:
            raise TypeError("state is what a sampler carries, and there is no sampler")
        return {}
    return {"sampler": trace(function, state, vocab_size), "sampler_state": state_fields(state, vocab_size)}


def state_fields(state: State, vocab_size: int) -> dict[str, Any]:
    """A state as the ABI takes it. Raises TypeError, ValueError for a value that is neither."""
    fields: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, Filled):
            fields[name] = float(value.value)
        elif is_vector(value):
            if len(value) != vocab_size:
                raise ValueError(f"state {name!r} has {len(value)} numbers; the vocabulary has {vocab_size}")
            fields[name] = base64.b64encode(array("d", value).tobytes()).decode()
        else:
            fields[name] = float(value)
    return fields


def state_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The other way round: numbers, and arrays of float64."""
    return {
        name: array("d", base64.b64decode(value)) if isinstance(value, str) else float(value)
        for name, value in fields.items()
    }


def is_vector(value: object) -> bool:
    return isinstance(value, Filled | Sequence | array)


def outcome_of(returned: object, state: State) -> tuple[Any, dict[str, Any]]:
    """(token or scores, next state) of what a sampler returned. A state that it leaves out is not allowed."""
    if not state:
        if isinstance(returned, tuple):
            raise TypeError("the sampler returned a tuple, and generate was given no state")
        return returned, {}
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)):
        raise TypeError("a sampler with a state returns (token or scores, {name: next value})")
    result, carried = returned
    if set(carried) != set(state):
        raise TypeError(f"the sampler returned state {sorted(carried)}; it was given {sorted(state)}")
    return result, dict(carried)


def _reachable(nodes: Sequence[Node], ends: Sequence[int]) -> tuple[dict[int, int], list[Node]]:
    """The nodes that matter, numbered anew: (new number by old, nodes)."""
    needed, waiting = set(ends), list(ends)
    while waiting:
        for one in nodes[waiting.pop()]["inputs"]:
            if one not in needed:
                needed.add(one)
                waiting.append(one)
    places = {old: new for new, old in enumerate(sorted(needed))}
    return places, [_as_data(nodes[old], places) for old in sorted(needed)]


def _as_data(node: Node, places: Mapping[int, int]) -> Node:
    data = {**node, "inputs": [places[one] for one in node["inputs"]]}
    if data.get("value") in (float("inf"), float("-inf")):
        data["value"] = "inf" if data["value"] > 0 else "-inf"  # JSON has no infinite numbers
    return data


def _line_of_program() -> int | None:
    frame = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") in _OUR_MODULES:
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else frame.f_lineno


def _line_of_error(error: BaseException) -> int | None:
    """Where the program was when it raised: its own innermost line, whatever it had called."""
    line, trace_back = None, error.__traceback__
    while trace_back is not None:
        if trace_back.tb_frame.f_globals.get("__name__") not in _OUR_MODULES:
            line = trace_back.tb_lineno
        trace_back = trace_back.tb_next
    return line
