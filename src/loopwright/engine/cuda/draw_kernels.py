"""Draws a token for each row of scores, as Triton kernels: a row's vocabulary is shared out over many programs.

No sort and no sum by atomic additions: every sum of weights is taken in one order, so equal scores give equal tokens.
What top_k and top_p leave is for `filter_kernels` to find. Used by the operations; held against `processing`.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopwright.engine.cuda import filter_kernels, search_kernels
from loopwright.engine.cuda.sampling import RowSamplings
from loopwright.engine.cuda.score_kernels import LARGEST, LOWEST, columns_of, keys_of, turned, weights_of

_PARTS = 32  # of a row at most
_CHUNK = 4096  # scores of one program at least
_LOOK = (8, 4)  # scores of a group, of which a thread has whole ones, and warps of a program with the least
_WEIGH = (4, 8)
_SETTLE = ((128, 16), (256, 16), (512, 16))  # gathered scores of a part, and warps


@dataclass(frozen=True, slots=True, eq=False)
class _Filtering:
    """What kernels leave to one another about rows with filters: `filter_kernels` says what each is."""

    bins: Tensor | None = None
    steps: Tensor | None = None
    scales: Tensor | None = None
    ways: Tensor | None = None
    edges: Tensor | None = None
    gathered: Tensor | None = None
    ties: Tensor | None = None
    lows: Tensor | None = None
    limits: Tensor | None = None

    @classmethod
    def make(cls, num_rows: int, size: int, device: torch.device) -> "_Filtering":
        """`size` is of rows times parts."""
        steps, ties = torch.empty(2, size, dtype=torch.int32, device=device)
        ways, lows = torch.empty(2, num_rows, dtype=torch.int32, device=device)
        return cls(
            bins=torch.empty(size, 2, filter_kernels.BINS, dtype=torch.int32, device=device),
            steps=steps,
            scales=torch.empty(num_rows, dtype=torch.float32, device=device),
            ways=ways,
            edges=torch.empty(4, num_rows, dtype=torch.float32, device=device),
            gathered=torch.empty(size, filter_kernels.ROOM, dtype=torch.float32, device=device),
            ties=ties,
            lows=lows,
            limits=torch.empty(4, num_rows, dtype=torch.float64, device=device),
        )


def draw(logits: Tensor, scores: Tensor, samplings: RowSamplings, numbers: Tensor) -> Tensor:
    """As `Operations.draw`."""
    num_rows, vocab_size = logits.shape
    chunk = max(_CHUNK, triton.next_power_of_2(triton.cdiv(vocab_size, _PARTS)))
    parts, device, has_filters = triton.cdiv(vocab_size, chunk), logits.device, samplings.has_filters
    size = num_rows * parts
    best = torch.empty(size, dtype=torch.int32, device=device)  # the first of the highest scores
    found = torch.empty(4, size, dtype=torch.float32, device=device)
    masses = torch.empty(3 if has_filters else 1, size, dtype=torch.float64, device=device)
    outputs = torch.empty(3, num_rows, dtype=torch.int32, device=device)
    own = _Filtering.make(num_rows, size, device) if has_filters else _Filtering()
    wide, few = {"CHUNK": chunk}, {"PARTS": _PARTS, "ROOM": filter_kernels.ROOM}
    top_k, top_p, min_p = samplings.top_k, samplings.top_p, samplings.min_p
    columns = samplings.temperatures, top_k, top_p, min_p
    _look[num_rows, parts](
        logits, scores, samplings.temperatures, top_k, top_p, samplings.typical_p, best, found, own.bins, own.steps,
        own.scales, vocab_size, parts, size, HAS_SCORES=scores is not logits, HAS_FILTERS=has_filters,
        BINS=filter_kernels.BINS, GROUP=_LOOK[0], **wide, num_warps=_LOOK[1] * chunk // _CHUNK,
    )  # fmt: skip
    if has_filters:
        filter_kernels.bound[(num_rows,)](
            found, *columns, samplings.typical_p, own.bins, own.steps, own.scales, own.ways, own.edges, own.limits,
            num_rows, parts, BINS=filter_kernels.BINS, GROUP=_LOOK[0], **few, num_warps=4,
        )  # fmt: skip
    filter_kernels.weigh[num_rows, parts](
        scores, found, *columns, samplings.greedy, own.ways, own.edges, own.gathered, own.ties, masses, num_rows,
        vocab_size, parts, size, HAS_FILTERS=has_filters, GROUP=_WEIGH[0], **wide, **few,
        num_warps=_WEIGH[1] * chunk // _CHUNK,
    )  # fmt: skip
    if has_filters:
        shared = own.gathered, own.ties, masses, own.lows, own.limits, num_rows
        for slots, num_warps in _SETTLE:
            filter_kernels.settle[(num_rows,)](
                found, *columns, own.ways, own.edges, *shared, parts, size, SLOTS=slots, **few, num_warps=num_warps
            )
        search_kernels.search[(num_rows,)](
            scores, found, *columns, samplings.typical_p, own.ways, *shared, vocab_size, parts, size, **wide, **few,
            num_warps=16,
        )  # fmt: skip
    _choose[(num_rows,)](
        logits, scores, found, samplings.temperatures, min_p, samplings.greedy, samplings.processed, numbers, best,
        masses, own.ties, own.lows, own.limits, outputs, num_rows, vocab_size, parts, size, HAS_FILTERS=has_filters,
        PARTS=_PARTS, **wide, num_warps=8,
    )  # fmt: skip
    return outputs


@triton.jit(do_not_specialize=["parts", "plane"])
def _look(
    logits, scores, temperatures, top_k, top_p, typical_p, best, found, bins, steps, scales, vocab_size, parts, plane,
    HAS_SCORES: tl.constexpr, HAS_FILTERS: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """Of one part of a row: the first of its highest scores and that score, the highest logit, the sum of exp(logit -
    it), whether a logit is not finite; and of rows with filters, how far below the highest scores are."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    column = columns_of(part, CHUNK, GROUP)
    mask = column < vocab_size
    values = tl.load(logits + row * vocab_size + column, mask=mask, other=-float("inf"))
    is_bad = tl.sum((mask & ~(tl.abs(values) < float("inf"))).to(tl.int32))
    tops = tl.max(values, axis=0)
    top = tl.max(tops, axis=0)
    at = row * parts + part
    tl.store(found + plane + at, top)
    tl.store(found + 2 * plane + at, tl.sum(tl.where(mask, tl.exp(values - top), 0.0)))
    tl.store(found + 3 * plane + at, is_bad.to(tl.float32))
    if HAS_SCORES:
        values = tl.load(scores + row * vocab_size + column, mask=mask, other=-float("inf"))
        tops = tl.max(values, axis=0)
        top = tl.max(tops, axis=0)
    tl.store(best + at, tl.min(tl.where(mask & (values == top), column, LARGEST)))
    tl.store(found + at, top)
    if HAS_FILTERS and ((tl.load(top_k + row) > 0) | (tl.load(top_p + row) < 1.0) | (tl.load(typical_p + row) < 1.0)):
        filter_kernels.count(
            values, tops, top, scores, tl.load(temperatures + row), bins, steps, scales, row, part, parts, vocab_size,
            BINS, GROUP, CHUNK,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows", "parts", "plane"])
def _choose(
    logits, scores, found, temperatures, all_min_p, greedy, processed, numbers, best, masses, all_ties, lows, limits,
    outputs, num_rows, vocab_size, parts, plane, HAS_FILTERS: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Finds the part that the row's number falls into, and the token in it."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    at, is_part = row * parts + part, part < parts
    tops = tl.load(found + at, mask=is_part, other=-float("inf"))
    top = tl.max(tops, axis=0)
    ids = tl.load(best + at, mask=is_part, other=LARGEST)
    token = tl.min(tl.where(is_part & (tops == top), ids, LARGEST), axis=0)
    weight, total = tl.full((), 1.0, tl.float64), tl.full((), 1.0, tl.float64)
    if tl.load(greedy + row).to(tl.int32) == 0:
        low, wanted = tl.full((), LOWEST, tl.int32), tl.full((), float("inf"), tl.float64)
        center, reach, least = tl.full((), 0.0, tl.float64), wanted, tl.load(all_min_p + row)
        ties = tl.zeros((PARTS,), tl.int32)
        if HAS_FILTERS:
            low, wanted, center = tl.load(lows + row), tl.load(limits + row), tl.load(limits + num_rows + row)
            reach, least = tl.load(limits + 2 * num_rows + row), tl.load(limits + 3 * num_rows + row)
            ties = tl.load(all_ties + at, mask=is_part, other=0)
        mass = tl.load(masses + at, mask=is_part, other=0.0)
        token, weight, total = _drawn(
            scores, row, vocab_size, top.to(tl.float64), tl.load(temperatures + row), tl.load(numbers + row), low,
            wanted, center, reach, least, mass, ties, PARTS, CHUNK,
        )  # fmt: skip
    has_failed = tl.sum(tl.load(found + 3 * plane + at, mask=is_part, other=0.0), axis=0) > 0
    token = tl.where(has_failed | (token >= vocab_size), 0, token)
    raw_tops = tl.load(found + plane + at, mask=is_part, other=-float("inf"))
    raw_top = tl.max(raw_tops, axis=0)
    shares = tl.load(found + 2 * plane + at, mask=is_part, other=0.0) * tl.exp(raw_tops - raw_top)
    logprob = tl.load(logits + row * vocab_size + token) - raw_top - tl.log(tl.sum(shares, axis=0))
    if tl.load(processed + row).to(tl.int32) != 0:
        logprob = tl.log(weight / total).to(tl.float32)
    tl.store(outputs + row, token)
    tl.store(outputs + num_rows + row, tl.minimum(logprob, 0.0).to(tl.int32, bitcast=True))
    tl.store(outputs + 2 * num_rows + row, has_failed.to(tl.int32))


@triton.jit
def _drawn(
    scores, row, vocab_size, top, temperature, number, low, wanted, center, reach, least, mass, ties,
    PARTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The token that a number falls on, its weight and that of all that are left: of parts, `mass` [PARTS] is kept for
    sure, and `ties` are as heavy as the lowest."""
    part = tl.arange(0, PARTS)
    # Of those that tie with the last of a nucleus, the first so many.
    tie = tl.where(low == LOWEST, 0.0, weights_of(turned(low).to(tl.float32, bitcast=True), top, temperature))
    missing = tl.minimum((wanted - tl.sum(mass, axis=0)) / tl.maximum(tie, 1e-300), 2147483000.0)
    num_ties = tl.maximum(tl.ceil(missing), 1.0).to(tl.int32)
    ties_before = tl.cumsum(ties, axis=0) - ties
    kept_ties = tl.minimum(tl.maximum(num_ties - ties_before, 0), ties)
    mass += tl.where(tie >= least, kept_ties.to(tl.float64) * tie, 0.0)
    total = tl.sum(mass, axis=0)
    target = number * total
    until = tl.cumsum(mass, axis=0)
    here = tl.min(tl.where((mass > 0.0) & (until > target), part, LARGEST), axis=0)
    here = tl.where(here == LARGEST, tl.max(tl.where(mass > 0.0, part, 0), axis=0), here)
    before = tl.sum(tl.where(part == here, until - mass, 0.0), axis=0)
    allowance = num_ties - tl.sum(tl.where(part == here, ties_before, 0), axis=0)
    column = here * CHUNK + tl.arange(0, CHUNK)
    mask = column < vocab_size
    values = tl.load(scores + row * vocab_size + column, mask=mask, other=-float("inf"))
    keys = keys_of(values)
    is_tie = mask & (keys == low)
    rank = tl.cumsum(is_tie.to(tl.int32), axis=0)
    weights = weights_of(values, top, temperature)
    is_kept = ((keys > low) | (is_tie & (rank <= allowance))) & (weights >= least)
    is_kept = is_kept & (search_kernels.distances_of(values, top, temperature, center) <= reach)
    weights = tl.where(mask & is_kept, weights, 0.0)
    exceeds = (before + tl.cumsum(weights, axis=0) > target) & (weights > 0.0)
    token = tl.min(tl.where(exceeds, column, LARGEST), axis=0)
    token = tl.where(token == LARGEST, tl.max(tl.where(weights > 0.0, column, 0), axis=0), token)
    return token, tl.sum(tl.where(column == token, weights, 0.0), axis=0), total
