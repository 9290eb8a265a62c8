"""Penalties, biases and lists of allowed tokens for many rows of logits at once. Never draws.

Called by the answers; the definitions are those of docs/sampling.md, and engine.sampler has them for one row.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.calls import Sampling
from loopwright.engine.sampler import MAX_LOGIT, Question


def adjusted(logits: Tensor, questions: Sequence[Question]) -> Tensor:
    """Float32 logits [num_rows, vocab_size] after all that acts before the temperature; -inf is not allowed. Rows
    that nothing of it concerns are as they were; `logits` stays."""
    penalized = [
        (row, one) for row, question in enumerate(questions) if (one := question.sampling) and one.has_penalties
    ]
    biased = [(row, one) for row, question in enumerate(questions) if (one := question.sampling) and one.logit_bias]
    masked = [row for row, question in enumerate(questions) if _is_masked(question)]
    if not (penalized or biased or masked):
        return logits
    logits = logits.clone()
    if penalized:
        _penalize(logits, penalized, questions)
    for row, sampling in biased:
        ids = torch.tensor(list(sampling.logit_bias), device=logits.device)
        logits[row, ids] += torch.tensor(list(sampling.logit_bias.values()), dtype=logits.dtype, device=logits.device)
    if masked:
        bits = torch.from_numpy(np.stack([_bits(questions[row], logits.shape[1]) for row in masked])).to(logits.device)
        shifts = torch.arange(8, dtype=torch.uint8, device=logits.device)
        is_allowed = ((bits[:, :, None] >> shifts) & 1).flatten(1)[:, : logits.shape[1]].bool()
        rows = torch.tensor(masked, device=logits.device)
        logits[rows] = logits[rows].masked_fill(~is_allowed, -torch.inf)
    return logits


def _is_masked(question: Question) -> bool:
    return question.allowed_bits is not None or (
        question.sampling is not None and question.sampling.allowed is not None
    )


def _bits(question: Question, vocab_size: int) -> NDArray[np.uint8]:
    """[vocab_size / 8] bytes: bit i % 8 of byte i // 8 is token i."""
    num_bytes = -(-vocab_size // 8)
    if question.allowed_bits is not None:
        found = np.frombuffer(question.allowed_bits, np.uint8)[:num_bytes]
        return np.pad(found, (0, num_bytes - len(found)))
    assert question.sampling is not None
    assert question.sampling.allowed is not None
    marks = np.zeros(num_bytes * 8, np.uint8)
    marks[[token_id for token_id in question.sampling.allowed if token_id < vocab_size]] = 1
    return np.packbits(marks, bitorder="little")


def _penalize(logits: Tensor, rows: Sequence[tuple[int, Sampling]], questions: Sequence[Question]) -> None:
    """In place, at the ids that each row has written or seen."""
    parts = []
    for row, sampling in rows:
        written, counts = np.unique(
            np.array((*sampling.generated, *questions[row].generated), np.int64), return_counts=True
        )
        seen = np.setdiff1d(np.array(sampling.seen, np.int64), written)
        num_ids = len(written) + len(seen)
        parts.append(
            np.stack([
                np.full(num_ids, row), np.concatenate([written, seen]), np.concatenate([counts, np.zeros(len(seen))]),
                np.full(num_ids, sampling.repetition_penalty), np.full(num_ids, sampling.presence_penalty),
                np.full(num_ids, sampling.frequency_penalty),
            ])
        )  # fmt: skip
    numbers = torch.from_numpy(np.concatenate(parts, axis=1)).to(logits.device)  # float64 holds every id
    at = (numbers[0].long(), numbers[1].long())
    num_written, repetition = numbers[2], numbers[3]
    wide = logits[at].double()  # in float32 a penalty can be zero
    penalized = torch.where(wide < 0, wide * repetition, wide / repetition).clamp(-MAX_LOGIT, MAX_LOGIT).float()
    logits[at] = penalized - (numbers[4] * (num_written > 0) + numbers[5] * num_written).float()
