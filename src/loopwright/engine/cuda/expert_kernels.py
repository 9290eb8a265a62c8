"""A mixture of experts as Triton kernels: nothing to decide on the host, so a graph holds it whatever is chosen.

Equal to experts.mixed up to rounding. Pairs of a token and an expert are sorted by expert; a tile is some pairs of one
expert, and there are as many programs as the sizes could ask for. With one tiling for any number of tokens, a token's
bits do not depend on the others.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopwright.engine.cuda.experts import Mixture
from loopwright.engine.cuda.gate_kernels import opened
from loopwright.engine.cuda.tilings import FIXED, Tiling

TILINGS = ((8, Tiling(64, 16, 128, 4, 3)), (64, Tiling(64, 32, 128, 4, 3)))
MANY = Tiling(128, 128, 64, 8, 3)
"""By the most pairs that an expert has if all have as many: the best of seven, measured at Qwen3-30B-A3B's sizes on one
H200."""
_COLUMNS = 1024  # of one program of _combine
_CHUNK = 2048  # pairs that a program of _sort looks at together


def mix(vectors: Tensor, mixture: Mixture, logits: Tensor, *, is_deterministic: bool) -> Tensor:
    """[num_tokens, hidden_size], and what the router says of them, float32 [num_tokens, num_experts] → float32
    [num_tokens, hidden_size]."""
    num_tokens, hidden_size = vectors.shape
    chosen, shares = _routed(logits, mixture)
    order, starts = sorted_pairs(chosen, mixture.num_experts)
    tiling = tiling_for(chosen.numel(), mixture, is_deterministic=is_deterministic)
    inner = torch.empty(chosen.numel(), mixture.down.shape[2], dtype=vectors.dtype, device=vectors.device)
    _launch(vectors, mixture.gate_up, order, starts, inner, tiling, mixture.num_chosen, is_gated=True)
    parts = torch.empty(chosen.numel(), hidden_size, dtype=vectors.dtype, device=vectors.device)
    _launch(inner, mixture.down, order, starts, parts, tiling, mixture.num_chosen, is_gated=False)
    out = torch.empty(num_tokens, hidden_size, dtype=torch.float32, device=vectors.device)
    _combine[(num_tokens, triton.cdiv(hidden_size, _COLUMNS))](
        parts, shares, out, hidden_size, CHOSEN=mixture.num_chosen, BLOCK=_COLUMNS
    )
    return out


def _routed(logits: Tensor, mixture: Mixture) -> tuple[Tensor, Tensor]:
    """Each token's experts, the likeliest first, and their shares: int32 and float32 [num_tokens, num_chosen]."""
    num_tokens, num_experts = logits.shape
    chosen = torch.empty(num_tokens, mixture.num_chosen, dtype=torch.int32, device=logits.device)
    shares = torch.empty(num_tokens, mixture.num_chosen, dtype=torch.float32, device=logits.device)
    _route[(num_tokens,)](
        logits, chosen, shares, num_experts, CHOSEN=mixture.num_chosen, IS_NORMALIZED=mixture.is_normalized,
        EXPERTS=triton.next_power_of_2(num_experts), SLOTS=triton.next_power_of_2(mixture.num_chosen), num_warps=1,
    )  # fmt: skip
    return chosen, shares


def sorted_pairs(chosen: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """Pairs by their expert, those of one in order: int32 [num_pairs]; and where each expert's begin [num_experts + 1].
    Pair i is token i // num_chosen."""
    order = torch.empty(chosen.numel(), dtype=torch.int32, device=chosen.device)
    starts = torch.empty(num_experts + 1, dtype=torch.int32, device=chosen.device)
    _sort[(num_experts,)](chosen, order, starts, chosen.numel(), CHUNK=_CHUNK)
    return order, starts


def tiling_for(num_pairs: int, mixture: Mixture, *, is_deterministic: bool) -> Tiling:
    if is_deterministic:
        return FIXED
    return next((tiling for most, tiling in TILINGS if num_pairs <= most * mixture.num_experts), MANY)


def _launch(
    vectors: Tensor, weights: Tensor, order: Tensor, starts: Tensor, out: Tensor, tiling: Tiling, num_chosen: int, *,
    is_gated: bool,
) -> None:  # fmt: skip
    num_experts, _, size = weights.shape
    num_pairs, num_outputs = out.shape
    num_tiles = min(num_pairs, triton.cdiv(num_pairs, tiling.rows) + num_experts)
    _expert_product[(triton.cdiv(num_outputs, tiling.outputs), num_tiles)](
        vectors, weights, order, starts, out, num_experts, num_outputs, size, OUTPUTS=tiling.outputs,
        INPUTS=tiling.inputs, ROWS=tiling.rows, EXPERTS=triton.next_power_of_2(num_experts), CHOSEN=num_chosen,
        IS_GATED=is_gated, num_warps=tiling.num_warps, num_stages=tiling.num_stages,
    )  # fmt: skip


@triton.jit
def _route(
    logits, chosen, shares, num_experts, CHOSEN: tl.constexpr, IS_NORMALIZED: tl.constexpr, EXPERTS: tl.constexpr,
    SLOTS: tl.constexpr,
):  # fmt: skip
    """Of two that are equally likely the first. A token whose logits are not numbers has experts all the same, and
    shares that are none."""
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    left = tl.load(logits + token * num_experts + expert, mask=expert < num_experts, other=-float("inf"))
    top = tl.max(left, axis=0)
    whole = tl.sum(tl.exp(left - top), axis=0)
    slot = tl.arange(0, SLOTS)
    picked = tl.zeros([SLOTS], tl.int32)
    weights = tl.zeros([SLOTS], tl.float32)
    for number in tl.static_range(CHOSEN):
        best = tl.max(left, axis=0)
        mine = tl.minimum(tl.min(tl.where(left == best, expert, EXPERTS), axis=0), num_experts - 1)
        picked = tl.where(slot == number, mine, picked)
        weights = tl.where(slot == number, tl.exp(best - top), weights)
        left = tl.where(expert == mine, -float("inf"), left)
    if IS_NORMALIZED:
        whole = tl.sum(weights, axis=0)
    tl.store(chosen + token * CHOSEN + slot, picked, mask=slot < CHOSEN)
    tl.store(shares + token * CHOSEN + slot, weights / whole, mask=slot < CHOSEN)


@triton.jit
def _sort(chosen, order, starts, num_pairs, CHUNK: tl.constexpr):
    """A program for each expert, which counts what is before its own."""
    expert = tl.program_id(0)
    place = tl.zeros([], tl.int32)
    for begin in range(0, num_pairs, CHUNK):
        pair = begin + tl.arange(0, CHUNK)
        value = tl.load(chosen + pair, mask=pair < num_pairs, other=2147483647)
        place += tl.sum((value < expert).to(tl.int32), axis=0)
    tl.store(starts + expert, place)
    for begin in range(0, num_pairs, CHUNK):
        pair = begin + tl.arange(0, CHUNK)
        is_mine = tl.load(chosen + pair, mask=pair < num_pairs, other=2147483647) == expert
        count = tl.cumsum(is_mine.to(tl.int32), axis=0)
        tl.store(order + place + count - 1, pair, mask=is_mine)
        place += tl.sum(is_mine.to(tl.int32), axis=0)
    if expert == tl.num_programs(0) - 1:
        tl.store(starts + expert + 1, place)


@triton.jit
def _expert_product(
    vectors, weights, order, starts, out, num_experts, num_outputs, size, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
    ROWS: tl.constexpr, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, IS_GATED: tl.constexpr,
):  # fmt: skip
    """Gated: of tokens, to the places of their pairs. Else of pairs at their places, to where their numbers are."""
    tile = tl.program_id(1)
    number = tl.arange(0, EXPERTS)
    begins = tl.load(starts + number, mask=number < num_experts, other=0)
    ends = tl.load(starts + number + 1, mask=number < num_experts, other=0)
    tiles = (ends - begins + ROWS - 1) // ROWS
    expert = tl.sum((tl.cumsum(tiles, axis=0) <= tile).to(tl.int32), axis=0)
    if expert < num_experts:  # else there are fewer tiles
        own_tile = tile - tl.sum(tl.where(number < expert, tiles, 0), axis=0)
        begin = tl.sum(tl.where(number == expert, begins, 0), axis=0)
        end = tl.sum(tl.where(number == expert, ends, 0), axis=0)
        place = begin + own_tile * ROWS + tl.arange(0, ROWS)
        is_row = place < end
        pair = tl.load(order + place, mask=is_row, other=0)
        source = (pair // CHOSEN if IS_GATED else place).to(tl.int64)
        target = (place if IS_GATED else pair).to(tl.int64)
        output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
        is_output = output < num_outputs
        own = weights + expert.to(tl.int64) * num_outputs * size * (2 if IS_GATED else 1)
        at_weight = own + output.to(tl.int64)[:, None] * size
        sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
        ups = tl.zeros([OUTPUTS, ROWS], tl.float32)
        for start in range(0, size, INPUTS):
            column = start + tl.arange(0, INPUTS)
            is_column = column < size
            is_read = is_row[None, :] & is_column[:, None]
            read = tl.load(vectors + source[None, :] * size + column[:, None], mask=is_read, other=0.0)
            is_weight = is_output[:, None] & is_column[None, :]
            weight = tl.load(at_weight + column[None, :], mask=is_weight, other=0.0)
            sums += tl.dot(weight, read, input_precision="ieee")
            if IS_GATED:
                at_up = at_weight + num_outputs.to(tl.int64) * size + column[None, :]
                ups += tl.dot(tl.load(at_up, mask=is_weight, other=0.0), read, input_precision="ieee")
        if IS_GATED:
            sums = opened(sums, False) * ups
        at = out + target[None, :] * num_outputs + output[:, None]
        tl.store(at, sums.to(out.dtype.element_ty), mask=is_row[None, :] & is_output[:, None])


@triton.jit
def _combine(parts, shares, out, size, CHOSEN: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < size
    sums = tl.zeros([BLOCK], tl.float32)
    for number in tl.static_range(CHOSEN):
        pair = token * CHOSEN + number
        sums += tl.load(parts + pair * size + column, mask=mask, other=0.0).to(tl.float32) * tl.load(shares + pair)
    tl.store(out + token * size + column, sums, mask=mask)
