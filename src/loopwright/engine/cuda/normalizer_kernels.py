"""The logarithm of each row's sum of exponentials as Triton kernels: added up in one order, in any batch.

`normalizers` is called through `sampling.normalizers`, as torch's own cuts a row by how many there are. The kernel that
reads the scores also has the highest of each group of neighbours for the likeliest tokens, so that both are by the same
sums.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopwright.engine.cuda.score_kernels import LOWEST, keys_of

CHUNK = 4096  # logits of one program
GROUP = 32  # neighbours
JOIN_WARPS = 8  # of all programs that sum up, so that they do it in one order


def normalizers(logits: Tensor) -> Tensor:
    """float32 [num_rows, vocab_size] → [num_rows]."""
    found = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        weighed = weigh(logits.contiguous())
        num_parts = weighed.shape[1]
        _join[(len(logits),)](weighed, found, num_parts, PARTS=triton.next_power_of_2(num_parts), num_warps=JOIN_WARPS)
    return found


def weigh(logits: Tensor) -> Tensor:
    """What `sum_up` adds up: [num_rows, num_parts, 3] of float32 [num_rows, vocab_size]."""
    num_rows, vocab_size = logits.shape
    num_parts = triton.cdiv(vocab_size, CHUNK)
    weighed = torch.empty(num_rows, num_parts, 3, dtype=torch.float32, device=logits.device)
    tops = torch.empty(num_rows, num_parts * (CHUNK // GROUP), dtype=torch.int32, device=logits.device)
    look[(num_rows, num_parts)](
        logits, weighed, tops, logits.stride(0), vocab_size, num_parts, CHUNK=CHUNK, GROUP=GROUP
    )  # with tops that nobody reads: without them it is another kernel, which adds up in another order
    return weighed


@triton.jit(do_not_specialize=["num_parts"])
def look(values, weighed, tops, stride, vocab_size, num_parts, CHUNK: tl.constexpr, GROUP: tl.constexpr):
    """Of one chunk of a row, as `weighed` [num_rows, num_parts, 3], if given: its largest score, the sum of
    exp(score - it), and how many are not finite. As `tops` [num_rows, num_parts * CHUNK / GROUP]: the keys of the
    highest score of each group."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    group = tl.arange(0, CHUNK // GROUP)
    column = part * CHUNK + group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    mask = column < vocab_size
    scores = tl.load(values + row * stride + column, mask=mask, other=-float("inf"))
    keys = tl.max(tl.where(mask, keys_of(scores), LOWEST), axis=1)
    tl.store(tops + (row * num_parts + part) * (CHUNK // GROUP) + group, keys)
    if weighed is not None:
        top = tl.max(tl.max(scores, axis=1), axis=0)
        base = tl.where(top == -float("inf"), 0.0, top)
        is_bad = mask & ~(tl.abs(scores) < float("inf"))
        at = weighed + (row * num_parts + part) * 3
        tl.store(at, top)
        tl.store(at + 1, tl.sum(tl.sum(tl.exp(scores - base), axis=1), axis=0))
        tl.store(at + 2, tl.sum(tl.sum(is_bad.to(tl.float32), axis=1), axis=0))


@triton.jit
def sum_up(weighed, row, num_parts, PARTS: tl.constexpr):
    """A row's normalizer, and 1 if any of its scores is not finite."""
    part = tl.arange(0, PARTS)
    at, mask = weighed + (row * num_parts + part) * 3, part < num_parts
    tops, sums = tl.load(at, mask=mask, other=-float("inf")), tl.load(at + 1, mask=mask, other=0.0)
    top = tl.max(tops, axis=0)
    base = tl.where(top == -float("inf"), 0.0, top)
    is_bad = tl.sum(tl.load(at + 2, mask=mask, other=0.0), axis=0) > 0
    return base + tl.log(tl.sum(sums * tl.exp(tops - base), axis=0)), is_bad.to(tl.int32)


@triton.jit(do_not_specialize=["num_parts"])
def _join(weighed, found, num_parts, PARTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    normalizer, _ = sum_up(weighed, row, num_parts, PARTS)
    tl.store(found + row, normalizer)
