"""What a traced sampler's token tells, as one Triton kernel behind the one that adds up its row's logits.

It looks whether the token is one, is allowed, and comes from numbers that are finite; launched one by one these are
thirty small operations, which take longer than most samplers. Held against `traced_graphs.told_by_torch`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopwright.engine.cuda.normalizer_kernels import JOIN_WARPS, sum_up, weigh
from loopwright.engine.cuda.score_kernels import LARGEST
from loopwright.engine.traced import TracedResults


def told_of(
    found: TracedResults, logits: Tensor, scores: Tensor, outputs: Tensor | None, inputs: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As `traced_graphs.told_of`, with the outputs and inputs of Whole."""
    num_rows, vocab_size = logits.shape
    device = logits.device
    checks = [torch.where(one, torch.inf, 0.0).double() if one.dtype == torch.bool else one for one in found.checks]
    columns = torch.cat(checks, dim=1)
    num_numbers = sum(one.shape[1] == 1 for one in found.states.values())
    told = torch.empty(num_rows, 5 + num_numbers, dtype=torch.float64, device=device)
    chosen = torch.empty(2, num_rows, dtype=torch.int32, device=device)
    logits = logits.contiguous()
    weighed = weigh(logits)
    num_parts, stride = weighed.shape[1], 0 if outputs is None else outputs.stride(0)
    _told[(num_rows,)](
        columns, logits, scores.contiguous(), weighed, outputs, inputs, told, chosen, num_rows, len(checks),
        found.of_result, num_numbers, vocab_size, num_parts, stride, CHECKS=triton.next_power_of_2(len(checks)),
        PARTS=triton.next_power_of_2(num_parts), num_warps=JOIN_WARPS,
    )  # fmt: skip
    return told, chosen


@triton.jit(do_not_specialize=["num_rows", "num_checks", "of_result", "num_numbers", "num_parts", "stride"])
def _told(
    columns, logits, scores, weighed, outputs, inputs, told, chosen, num_rows, num_checks, of_result, num_numbers,
    vocab_size, num_parts, stride, CHECKS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, CHECKS)
    own = tl.load(columns + row * num_checks + place, mask=place < num_checks, other=0.0)
    is_wrong = tl.where(place == of_result, own != own, ~(tl.abs(own) < float("inf")))
    first = tl.min(tl.where(is_wrong, place, LARGEST), axis=0)
    value = tl.load(columns + row * num_checks + of_result)
    limited = tl.minimum(tl.maximum(tl.where(value == value, value, 0.0), 0.0), (vocab_size - 1).to(tl.float64))
    token = limited.to(tl.int64)
    normalizer, _ = sum_up(weighed, row, num_parts, PARTS)
    raw = tl.load(logits + row * vocab_size + token).to(tl.float64) - normalizer.to(tl.float64)
    is_allowed = tl.load(scores + row * vocab_size + token) > -float("inf")
    mine = tl.where(is_allowed, 0, num_checks + 2)
    mine = tl.where(token.to(tl.float64) == value, mine, num_checks + 1)
    failed = tl.where(first < LARGEST, first + 1, mine)
    had_failed = tl.full((), 0, tl.int32)
    if outputs is not None:
        had_failed = tl.load(outputs + 2 * stride + row)
        has_failed = had_failed | (failed > 0).to(tl.int32)
        tl.store(outputs + row, token.to(tl.int32))
        tl.store(outputs + 2 * stride + row, has_failed)
        tl.store(inputs + row, token.to(tl.int32))
        tl.store(inputs + 4 * stride + row, has_failed)
    at = told + row * (5 + num_numbers)
    tl.store(at, token.to(tl.float64))
    tl.store(at + 1, tl.minimum(raw, 0.0))
    tl.store(at + 2, failed.to(tl.float64))
    tl.store(at + 3, value)
    tl.store(at + 4, had_failed.to(tl.float64))
    number = place - of_result - 1
    tl.store(at + 5 + number, own, mask=(number >= 0) & (number < num_numbers))
    tl.store(chosen + row, token.to(tl.int32))
    tl.store(chosen + num_rows + row, (failed > 0).to(tl.int32))
