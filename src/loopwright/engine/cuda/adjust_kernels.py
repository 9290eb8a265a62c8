"""Penalties, biases and allowed tokens by the lines of the tables, as Triton kernels: one launch each.

Called by the operations; held against `row_adjustments`, which has the same by torch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopwright.engine.cuda.row_adjustments import AdjustmentTables
from loopwright.engine.sampler import MAX_LOGIT

_CHUNK = 2048  # logits of one program
_ROWS = 64  # of one program that counts


def adjust(logits: Tensor, tables: AdjustmentTables) -> Tensor:
    """As `Operations.adjust`."""
    num_rows, vocab_size = logits.shape
    scores = torch.empty_like(logits)
    _adjust[(num_rows, triton.cdiv(vocab_size, _CHUNK))](
        logits, scores, tables.lines, tables.counts, tables.biases, tables.penalties, vocab_size, LIMIT=MAX_LOGIT,
        CHUNK=_CHUNK, num_warps=8,
    )  # fmt: skip
    return scores


def note(tables: AdjustmentTables, token_ids: Tensor) -> None:
    """As `Operations.note`."""
    num_rows = len(token_ids)
    _note[(triton.cdiv(num_rows, _ROWS),)](tables.lines, tables.counts, token_ids, num_rows, tables.counts.shape[1],
                                           ROWS=_ROWS, num_warps=2)  # fmt: skip


@triton.jit
def _adjust(
    logits, scores, lines, counts, biases, penalties, vocab_size, LIMIT: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    mask = column < vocab_size
    values = tl.load(logits + row * vocab_size + column, mask=mask, other=0.0)
    line = tl.load(lines + row).to(tl.int64)
    if line >= 0:
        noted = tl.load(counts + line * vocab_size + column, mask=mask, other=0)
        bias = tl.load(biases + line * vocab_size + column, mask=mask, other=0.0)
        repetition, presence = tl.load(penalties + line * 3), tl.load(penalties + line * 3 + 1)
        frequency = tl.load(penalties + line * 3 + 2)
        wide = values.to(tl.float64)  # in float32 a penalty can be zero
        wide = tl.where(wide < 0.0, wide * repetition, wide / repetition)
        penalized = tl.minimum(tl.maximum(wide, -LIMIT), LIMIT).to(tl.float32)
        values = tl.where(noted > 0, penalized, values)
        count = noted >> 1
        values = tl.where(count > 0, values - (presence + frequency * count).to(tl.float32), values) + bias
    tl.store(scores + row * vocab_size + column, values, mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def _note(lines, counts, token_ids, num_rows, vocab_size, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = row < num_rows
    line = tl.load(lines + row, mask=mask, other=-1).to(tl.int64)
    at = line * vocab_size + tl.load(token_ids + row, mask=mask, other=0)
    is_counted = line >= 0
    tl.store(counts + at, tl.load(counts + at, mask=is_counted, other=0) + 2, mask=is_counted)
