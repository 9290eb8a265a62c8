"""Samplers of programs for the rows of a step: what the graphs gave, as tokens or scores, and what was wrong with it.

Nothing is looked at on the host before the step has been launched. Used by the answers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.errors import BadRequest, ErrorInfo
from loopwright.core.samplers import SamplerState, StateValue
from loopwright.engine.cuda.asks import Now, TracedAsks
from loopwright.engine.cuda.distributions import num_allowed
from loopwright.engine.cuda.traced_graphs import CODE, LOGPROB, LOST, NOT_A_TOKEN, TOKEN, VALUE, TracedSamplers, Whole
from loopwright.engine.draws import uniforms
from loopwright.engine.sampler import Question
from loopwright.engine.traced import TensorState, state_value
from loopwright.engine.transfer import HostCopies, Landing

_MAX_SHARED_BYTES = 64 << 20
"""Of the vectors that one step leaves to its rows. A row that stands still keeps those of all; if they are more, each
gets a copy."""


@dataclass(frozen=True, slots=True, eq=False)
class CopiedState(TensorState):
    """As TensorState; its numbers are on the host when the step's results are."""

    landed: Mapping[str, Landing]

    def values(self) -> dict[str, StateValue]:
        return {
            name: state_value(self.landed[name]()[self.row] if name in self.landed else one[self.row].cpu().numpy())
            for name, one in self.columns.items()
        }


class LeftStates(Sequence[SamplerState]):
    """What a step left of one sampler, for each of its rows: made when it is asked for. `asks` says of which rows."""

    def __init__(self, asks: TracedAsks, columns: Mapping[str, Tensor], landed: Mapping[str, Landing]) -> None:
        self.asks, self.columns, self._landed = asks, columns, landed
        size = sum(one.numel() * one.itemsize for one in columns.values())
        self._apart: list[TensorState] | None = None
        if size > _MAX_SHARED_BYTES and len(asks.rows) > 1:
            rows = ({name: one[row : row + 1].clone() for name, one in columns.items()} for row in range(len(self)))
            self._apart = [TensorState(one, 0) for one in rows]
            self.columns = {}

    def __len__(self) -> int:
        return len(self.asks.rows)

    @property
    def is_apart(self) -> bool:
        """Whether what each row carries lies by itself."""
        return self._apart is not None

    def __getitem__(self, row: Any) -> Any:  # noqa: ANN401 (nobody slices it)
        return CopiedState(self.columns, row, self._landed) if self._apart is None else self._apart[row]


@dataclass(frozen=True, slots=True, eq=False)
class TracedGroup:
    """What came of the rows of one graph, [num_rows] each, on the device: the token, or float64 `scores` [num_rows,
    vocab_size] to filter and draw from, in which -inf is not allowed; and whether that is no good. `told` are tokens
    and log-probabilities, and `errors` by row, when the copies are there; `lost` too, which says who had failed, if the
    token is where the next step looks already."""

    token_ids: Tensor | None
    scores: Tensor | None
    has_failed: Tensor
    states: LeftStates
    told: Callable[[], tuple[NDArray[np.int64], NDArray[np.float64]]]
    errors: Callable[[], Mapping[int, ErrorInfo]]
    lost: Callable[[], NDArray[np.bool_]] | None


def run_group(
    asks: TracedAsks, questions: Sequence[Question], logits: Tensor, scores: Tensor, samplers: TracedSamplers, now: Now,
    copies: HostCopies, whole: Whole | None = None,
) -> TracedGroup:  # fmt: skip
    """Rows of one graph: float32 logits [num_rows, vocab_size], and after penalties, biases and masks; the very same if
    there are none. `questions` are all that `asks` is of; `whole` is as `TracedSamplers.run` takes it."""
    device, vocab_size = logits.device, logits.shape[1]
    positions = now.positions[asks.rows.places]
    sent = np.stack([positions.astype(np.float64), uniforms(asks.seeds, positions)]) if asks.looks_at_place else None
    states = now.carried(asks, vocab_size, device)
    found, is_put = samplers.run(asks.graph, logits, scores, sent, states, whole)
    landed, is_token = copies.take(found.told), found.scores is None

    def told() -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        numbers = landed()
        return numbers[:, TOKEN].astype(np.int64), numbers[:, LOGPROB]

    def errors() -> dict[int, ErrorInfo]:
        numbers, errors = landed(), dict[int, ErrorInfo]()
        for row in np.flatnonzero(numbers[:, CODE]).tolist():
            question, position = questions[asks.rows.places[row]], int(positions[row])
            code, value = int(numbers[row, CODE]), float(numbers[row, VALUE])
            errors[row] = _error(question, position, code, found.failures, value, vocab_size, is_token=is_token)
        return errors

    names = [name for name, one in found.states.items() if one.shape[1] == 1]
    numbers = {name: _column(landed, place) for place, name in enumerate(names, start=LOST + 1)}
    token_ids = found.chosen[0] if is_token else None
    left = LeftStates(asks, found.states, numbers)
    lost = (lambda: landed()[:, LOST] != 0) if is_put else None
    return TracedGroup(token_ids, found.scores, found.chosen[1], left, told, errors, lost)


def _column(landed: Landing, place: int) -> Landing:
    return lambda: landed()[:, place : place + 1]


def _error(
    question: Question, position: int, code: int, failures: Sequence[str], value: float, vocab_size: int, *,
    is_token: bool,
) -> ErrorInfo:  # fmt: skip
    """In the words of engine.sampler."""
    if code <= len(failures):
        why = failures[code - 1]
    elif not is_token:
        why = f"the highest score of what is allowed is {value}"
    elif code == len(failures) + NOT_A_TOKEN:
        why = f"{value:g} is not a token id from 0 to {vocab_size - 1}"
    else:
        why = f"token {value:g} is not one of the {_num_allowed(question, vocab_size)} allowed here"
    return BadRequest(f"sampler, at position {position}: {why}", field="sampler").info()


def _num_allowed(question: Question, vocab_size: int) -> int:
    if question.allowed_bits is not None:
        bits = np.unpackbits(np.frombuffer(question.allowed_bits, np.uint8), bitorder="little")
        return int(bits[:vocab_size].sum())
    allowed = None if question.sampling is None else question.sampling.allowed
    return vocab_size if allowed is None else num_allowed(allowed, vocab_size)
