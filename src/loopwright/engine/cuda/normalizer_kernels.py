"""The logarithm of each row's sum of exponentials as Triton kernels: added up in one order, in any batch.

Called through `sampling.normalizers`. torch's own cuts a row by how many there are.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_CHUNK = 4096  # logits of one program


def normalizers(logits: Tensor) -> Tensor:
    """float32 [num_rows, vocab_size] → [num_rows]."""
    num_rows, vocab_size = logits.shape
    logits = logits.contiguous()
    num_parts = triton.cdiv(vocab_size, _CHUNK)
    parts = torch.empty(num_rows, num_parts, 2, dtype=torch.float32, device=logits.device)
    found = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    if num_rows:
        _part[(num_rows, num_parts)](logits, parts, vocab_size, num_parts, CHUNK=_CHUNK)
        _join[(num_rows,)](parts, found, num_parts, PARTS=triton.next_power_of_2(num_parts), num_warps=1)
    return found


@triton.jit
def _part(logits, parts, vocab_size, num_parts, CHUNK: tl.constexpr):
    """The largest logit of a chunk, and the sum of exp(logit - it)."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    column = part * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(logits + row * vocab_size + column, mask=column < vocab_size, other=-float("inf"))
    top = tl.max(values, axis=0)
    base = tl.where(top == -float("inf"), 0.0, top)
    at = parts + (row * num_parts + part) * 2
    tl.store(at, top)
    tl.store(at + 1, tl.sum(tl.exp(values - base), axis=0))


@triton.jit
def _join(parts, found, num_parts, PARTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    at = parts + (row * num_parts + part) * 2
    tops = tl.load(at, mask=part < num_parts, other=-float("inf"))
    sums = tl.load(at + 1, mask=part < num_parts, other=0.0)
    top = tl.max(tops, axis=0)
    base = tl.where(top == -float("inf"), 0.0, top)
    tl.store(found + row, base + tl.log(tl.sum(sums * tl.exp(tops - base), axis=0)))
