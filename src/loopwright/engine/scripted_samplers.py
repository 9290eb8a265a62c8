"""Runs a program's traced sampler on lists, one row at a time. Never imports torch: for an executor that has none.

Called by the scripted executor. Slow; the operations are those of the sdk's own token-by-token loop.
"""

import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loopwright.core.errors import BadRequest
from loopwright.core.samplers import SamplerRun, StateValue
from loopwright.sdk import errors as sdk_errors
from loopwright.sdk.tensor import Filled, Tensor
from loopwright.sdk.token_by_token import Eager

Value: TypeAlias = float | list[float]


@dataclass(frozen=True, slots=True)
class ListState:
    """Implements core.samplers.SamplerState."""

    numbers: Mapping[str, Value]

    def values(self) -> dict[str, StateValue]:
        return {name: _bytes(one) if isinstance(one, list) else one for name, one in self.numbers.items()}


def run_sampler(run: SamplerRun, scores: Sequence[float], seed: int, position: int) -> tuple[Value, ListState]:
    """What the sampler makes of scores [vocab_size], -inf for what may not be chosen: a token or new scores, and what
    it leaves to the next token. Raises BadRequest for what it may not do."""
    eager = Eager(len(scores), seed, position)
    before = _started(run)
    values: list[Tensor] = []
    try:
        for node in run.graph.nodes:
            inputs = [values[one] for one in node.inputs]
            if node.op == "scores":
                values.append(eager.tensor(scores))
            elif node.op == "state":
                is_vector = next(one.is_vector for one in run.graph.states if one.name == node.name)
                value = before[node.name]
                values.append(eager.tensor(Filled(value) if is_vector and isinstance(value, float) else value))
            else:
                fields = {"value": float(node.value or 0.0), "entries": node.entries, "k": node.k}
                values.append(eager.apply(node.op, *inputs, **fields))
    except sdk_errors.LoopwrightError as error:
        raise BadRequest(f"sampler, at position {position}: {error}", field="sampler") from error
    after = {one.name: values[one.next].payload for one in run.graph.states}
    return values[run.graph.result].payload, ListState(after)


def _started(run: SamplerRun) -> Mapping[str, Value]:
    if run.state is not None:
        assert isinstance(run.state, ListState), "a state comes back to the executor that made it"
        return run.state.numbers
    return {name: _list(one) if isinstance(one, bytes) else float(one) for name, one in run.initial.items()}


def _list(data: bytes) -> list[float]:
    floats = array("d", data)
    if sys.byteorder == "big":
        floats.byteswap()
    return floats.tolist()


def _bytes(numbers: Sequence[float]) -> bytes:
    floats = array("d", numbers)
    if sys.byteorder == "big":
        floats.byteswap()
    return floats.tobytes()
