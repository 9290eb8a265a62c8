"""Samplers of programs for the rows of a step: what the graphs gave, as tokens or scores, and what was wrong with it.

Nothing is looked at on the host before the step has been launched. Used by the answers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from loopwright.core.errors import BadRequest, ErrorInfo
from loopwright.core.samplers import StateValue, TracedSampler
from loopwright.engine.cuda.distributions import num_allowed
from loopwright.engine.cuda.traced_graphs import NOT_A_TOKEN, TracedSamplers
from loopwright.engine.draws import uniforms
from loopwright.engine.sampler import Question
from loopwright.engine.traced import TensorState, state_value
from loopwright.engine.transfer import HostCopies, Landing, to_device

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


@dataclass(frozen=True, slots=True, eq=False)
class TracedGroup:
    """What came of the rows of one graph, [num_rows] each, on the device: the token, or float64 `scores` [num_rows,
    vocab_size] to filter and draw from, in which -inf is not allowed; and whether that is no good."""

    token_ids: Tensor | None
    scores: Tensor | None
    has_failed: Tensor
    states: Sequence[TensorState]
    errors: Callable[[], list[ErrorInfo | None]]  # when the copies are there


def run_group(
    graph: TracedSampler, questions: Sequence[Question], logits: Tensor, samplers: TracedSamplers, copies: HostCopies
) -> TracedGroup:
    """Rows of one graph: float32 logits [num_rows, vocab_size] after penalties, biases and masks."""
    device, vocab_size = logits.device, logits.shape[1]
    positions = np.array([one.position for one in questions])
    seeds = np.array([one.sampling.seed for one in questions if one.sampling is not None], np.uint64)
    sent = to_device(np.stack([positions.astype(np.float64), uniforms(seeds, positions)]), device)
    runs = [one.sampler for one in questions if one.sampler is not None]
    found = samplers.run(graph, runs, logits, sent)
    is_token = found.token_ids is not None
    codes, values = copies.take(found.failed), copies.take(found.value)

    def errors() -> list[ErrorInfo | None]:
        if not codes().any():
            return [None] * len(questions)
        return [
            _error(question, code, found.failures, float(number), vocab_size, is_token=is_token)
            for question, code, number in zip(questions, codes().tolist(), values(), strict=True)
        ]

    states = _states(found.states, len(questions), copies)
    return TracedGroup(found.token_ids, found.scores, found.failed > 0, states, errors)


def _states(columns: Mapping[str, Tensor], num_rows: int, copies: HostCopies) -> list[TensorState]:
    landed = {name: copies.take(one) for name, one in columns.items() if one.shape[1] == 1}
    shared_bytes = sum(one.numel() * one.itemsize for one in columns.values())
    if shared_bytes <= _MAX_SHARED_BYTES or num_rows == 1:
        return [CopiedState(columns, row, landed) for row in range(num_rows)]
    rows = ({name: one[row : row + 1].clone() for name, one in columns.items()} for row in range(num_rows))
    return [TensorState(one, 0) for one in rows]


def _error(
    question: Question, code: int, failures: Sequence[str], value: float, vocab_size: int, *, is_token: bool
) -> ErrorInfo | None:
    """In the words of engine.sampler."""
    if not code:
        return None
    if code <= len(failures):
        why = failures[code - 1]
    elif not is_token:
        why = f"the highest score of what is allowed is {value}"
    elif code == len(failures) + NOT_A_TOKEN:
        why = f"{value:g} is not a token id from 0 to {vocab_size - 1}"
    else:
        why = f"token {value:g} is not one of the {_num_allowed(question, vocab_size)} allowed here"
    return BadRequest(f"sampler, at position {question.position}: {why}", field="sampler").info()


def _num_allowed(question: Question, vocab_size: int) -> int:
    if question.allowed_bits is not None:
        bits = np.unpackbits(np.frombuffer(question.allowed_bits, np.uint8), bitorder="little")
        return int(bits[:vocab_size].sum())
    allowed = None if question.sampling is None else question.sampling.allowed
    return vocab_size if allowed is None else num_allowed(allowed, vocab_size)
