"""Penalties, biases and lists of allowed tokens for many rows of logits at once. Never draws, and waits for nothing.

Called by the answers; the definitions are those of docs/sampling.md, and engine.sampler has them for one row. A token
that the step before has sampled counts though the host has not read it.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.calls import Sampling
from loopwright.engine.sampler import MAX_LOGIT, Question
from loopwright.engine.transfer import to_device


def adjusted(logits: Tensor, questions: Sequence[Question], fed: Tensor | None = None) -> Tensor:
    """Float32 logits [num_rows, vocab_size] after all that acts before the temperature; -inf is not allowed. Rows
    that nothing of it concerns are as they were; `logits` stays. `fed` int64 [num_rows] is one more token that each row
    has written, or -1."""
    penalized = [row for row, one in enumerate(questions) if one.sampling is not None and one.sampling.has_penalties]
    biased = [row for row, one in enumerate(questions) if one.sampling is not None and one.sampling.logit_bias]
    masked = [row for row, one in enumerate(questions) if _is_masked(one)]
    if not (penalized or biased or masked):
        return logits
    logits = logits.clone()
    if penalized:
        rows = to_device(np.array(penalized), logits.device)
        more = None if fed is None else fed[rows]
        logits[rows] = _penalized(logits[rows], [questions[row] for row in penalized], more)
    if biased:
        _bias(logits, [(row, one) for row in biased if (one := questions[row].sampling) is not None])
    if masked:
        logits.masked_fill_(~_allowed(questions, masked, logits), -torch.inf)
    return logits


def _is_masked(question: Question) -> bool:
    return question.allowed_bits is not None or (
        question.sampling is not None and question.sampling.allowed is not None
    )


def _bias(logits: Tensor, rows: Sequence[tuple[int, Sampling]]) -> None:
    """In place."""
    vocab_size = logits.shape[1]
    at = [row * vocab_size + token for row, sampling in rows for token in sampling.logit_bias]
    values = [bias for _, sampling in rows for bias in sampling.logit_bias.values()]
    flat = to_device(np.array(at, np.int64), logits.device)
    logits.view(-1).index_add_(0, flat, to_device(np.array(values, np.float32), logits.device))


def _allowed(questions: Sequence[Question], masked: Sequence[int], logits: Tensor) -> Tensor:
    """Booleans [num_rows, vocab_size]: true for rows that are not masked."""
    vocab_size = logits.shape[1]
    bits = np.full((len(logits), -(-vocab_size // 8)), 255, np.uint8)
    for row in masked:
        bits[row] = _bits_of(questions[row], vocab_size)
    return unpacked(bits, vocab_size, logits.device)


def unpacked(bits: NDArray[np.uint8], vocab_size: int, device: torch.device) -> Tensor:
    """Booleans [num_rows, vocab_size] of bits [num_rows, vocab_size / 8], on the device."""
    shifts = torch.arange(8, dtype=torch.uint8, device=device)
    return ((to_device(bits, device)[:, :, None] >> shifts) & 1).flatten(1)[:, :vocab_size].bool()


def _bits_of(question: Question, vocab_size: int) -> NDArray[np.uint8]:
    """[vocab_size / 8] bytes: bit i % 8 of byte i // 8 is token i."""
    if question.allowed_bits is None:
        assert question.sampling is not None
        assert question.sampling.allowed is not None
        return bits_of(question.sampling.allowed, vocab_size)
    num_bytes = -(-vocab_size // 8)
    found = np.frombuffer(question.allowed_bits, np.uint8)[:num_bytes]
    return np.pad(found, (0, num_bytes - len(found)))


@lru_cache(maxsize=256)
def bits_of(allowed: tuple[int, ...], vocab_size: int) -> NDArray[np.uint8]:
    """A list of tokens likewise; the same list comes with every token of a text."""
    marks = np.zeros(-(-vocab_size // 8) * 8, np.uint8)
    marks[[token_id for token_id in allowed if token_id < vocab_size]] = 1
    return np.packbits(marks, bitorder="little")


def _penalized(logits: Tensor, questions: Sequence[Question], fed: Tensor | None) -> Tensor:
    """All of the rows are penalized, at what each has written or seen."""
    device, vocab_size = logits.device, logits.shape[1]
    samplings = [one.sampling for one in questions if one.sampling is not None]
    written = [[*one.generated, *question.generated] for one, question in zip(samplings, questions, strict=True)]
    counts = torch.zeros(len(logits), vocab_size, dtype=torch.float32, device=device)
    is_seen = torch.zeros_like(counts, dtype=torch.bool)
    counts.view(-1).index_add_(0, at := _places(written, vocab_size, device), torch.ones_like(at, dtype=torch.float32))
    is_seen.view(-1).index_fill_(0, _places([one.seen for one in samplings], vocab_size, device), value=True)
    if fed is not None:
        counts.scatter_add_(1, fed.clamp(min=0)[:, None], (fed >= 0).float()[:, None])
    numbers = to_device(
        np.array([[one.repetition_penalty, one.presence_penalty, one.frequency_penalty] for one in samplings]), device
    )
    repetition, presence, frequency = numbers[:, 0:1], numbers[:, 1:2], numbers[:, 2:3]
    wide, is_written = logits.double(), counts > 0  # in float32 a penalty can be zero
    penalized = torch.where(wide < 0, wide * repetition, wide / repetition).clamp(-MAX_LOGIT, MAX_LOGIT).float()
    logits = torch.where(is_written | is_seen, penalized, logits)
    return torch.where(is_written, logits - (presence + frequency * counts).float(), logits)


def _places(lists: Sequence[Sequence[int]], vocab_size: int, device: torch.device) -> Tensor:
    """Where the tokens of each row are in [num_rows · vocab_size]."""
    lengths = [len(one) for one in lists]
    tokens = np.array([token for one in lists for token in one], np.int64)
    return to_device(np.repeat(np.arange(len(lists)) * vocab_size, lengths) + tokens, device)
