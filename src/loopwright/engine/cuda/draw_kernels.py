"""Draws a token for each row of scores, as Triton kernels: a row's vocabulary is shared out over many programs.

No sort and no atomic sum: what top_k and top_p leave is found by the bits of its smallest score, four at a time, and
every sum is taken in one order, so equal scores give equal tokens. Used by the operations; held against `processing`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopwright.engine.cuda.sampling import RowSamplings

_CHUNK = 4096  # scores of one program
_WAYS = tl.constexpr(16)
_ROUNDS = 8  # of four bits each
_MIN_PARTS = 32  # that kernels are compiled for: few vocabularies have more
_LOWEST = tl.constexpr(-2147483648)
_LARGEST = tl.constexpr(2147483647)


def draw(logits: Tensor, scores: Tensor, samplings: RowSamplings, numbers: Tensor) -> Tensor:
    """As `Operations.draw`."""
    num_rows, vocab_size = logits.shape
    parts = -(-vocab_size // _CHUNK)
    size, device = num_rows * parts, logits.device
    best = torch.empty(2, size, dtype=torch.int32, device=device)  # the first of the highest scores; how many tie
    found = torch.empty(4, size, dtype=torch.float32, device=device)
    masses = torch.empty(size, dtype=torch.float64, device=device)
    outputs = torch.empty(3, num_rows, dtype=torch.int32, device=device)
    grid = (num_rows, parts)
    sizes = {"PARTS": max(_MIN_PARTS, triton.next_power_of_2(parts)), "CHUNK": _CHUNK, "num_warps": 8}
    _look[grid](
        logits, scores, best, found, vocab_size, parts, size, HAS_SCORES=scores is not logits, CHUNK=_CHUNK, num_warps=8
    )
    low = torch.empty(2, _ROUNDS + 1, num_rows, dtype=torch.int32, device=device)  # of top_k, and of top_p
    counts = torch.empty(2, num_rows, parts, 16, dtype=torch.int32, device=device)
    sums = torch.empty(2, num_rows, parts, 16, dtype=torch.float64, device=device)
    above = torch.empty(_ROUNDS + 2, num_rows, dtype=torch.float64, device=device)  # and the nucleus' mass
    columns = (samplings.temperatures, samplings.top_k, samplings.top_p, samplings.min_p)
    if samplings.has_top_k:
        for number in range(_ROUNDS):
            _count[grid](scores, samplings.top_k, low, counts, num_rows, vocab_size, parts, number, **sizes)
    if samplings.has_top_p:
        for number in range(_ROUNDS):
            _sum[grid](
                scores, found, *columns, low, counts, sums, above, num_rows, vocab_size, parts, number, **sizes
            )  # fmt: skip
    _weigh[grid](
        scores, found, *columns, low, counts, sums, above, best, masses, num_rows, vocab_size, parts, size, **sizes,
    )  # fmt: skip
    _choose[(num_rows,)](
        logits, scores, found, *columns, samplings.greedy, samplings.processed, numbers, low, counts, sums, above, best,
        masses, outputs, num_rows, vocab_size, parts, size, **sizes,
    )  # fmt: skip
    return outputs


@triton.jit
def _keys(values):
    """Integers in the order of float32 values; 0 and -0 are one. The same again gives the bits of the value."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _weights(values, top, temperature):
    return tl.exp((values.to(tl.float64) - top) / temperature)


@triton.jit
def _top(found, row, parts, PARTS: tl.constexpr):
    """The row's highest score."""
    part = tl.arange(0, PARTS)
    tops = tl.load(found + row * parts + part, mask=part < parts, other=-float("inf"))
    return tl.max(tops, axis=0).to(tl.float64)


@triton.jit(do_not_specialize=["parts", "plane"])
def _look(
    logits, scores, best, found, vocab_size, parts, plane, HAS_SCORES: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Of one chunk of a row: the first of its highest scores and that score, the highest logit, the sum of exp(logit -
    it), and whether a logit is not finite."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    column = part * CHUNK + tl.arange(0, CHUNK)
    mask = column < vocab_size
    values = tl.load(logits + row * vocab_size + column, mask=mask, other=-float("inf"))
    is_bad = tl.sum(tl.where(mask & ~(tl.abs(values) < float("inf")), 1, 0), axis=0)
    top = tl.max(values, axis=0)
    at = row * parts + part
    tl.store(found + plane + at, top)
    tl.store(found + 2 * plane + at, tl.sum(tl.where(mask, tl.exp(values - top), 0.0), axis=0))
    tl.store(found + 3 * plane + at, is_bad.to(tl.float32))
    if HAS_SCORES:
        values = tl.load(scores + row * vocab_size + column, mask=mask, other=-float("inf"))
        top = tl.max(values, axis=0)
    tl.store(best + at, tl.min(tl.where(mask & (values == top), column, 2147483647), axis=0))
    tl.store(found + at, top)


@triton.jit
def _low_of_counts(low, counts, row, num_rows, parts, wanted, number, PARTS: tl.constexpr):
    """The lowest key that the `wanted` largest may have, as far as `number` rounds say: its upper bits."""
    found = tl.full((), _LOWEST, tl.int32)
    if number > 0:
        part, way = tl.arange(0, PARTS), tl.arange(0, _WAYS)
        at = ((((number - 1) % 2) * num_rows + row) * parts + part[:, None]) * _WAYS + way[None, :]
        totals = tl.sum(tl.load(counts + at, mask=(part < parts)[:, None], other=0), axis=0)
        digit = tl.sum(((totals >= wanted) & (way > 0)).to(tl.int64), axis=0)
        before = tl.load(low + (number - 1) * num_rows + row).to(tl.int64)
        found = (before + (digit << (32 - 4 * number))).to(tl.int32)
    return found


@triton.jit(do_not_specialize=["num_rows", "parts", "number"])
def _count(
    scores, top_k, low, counts, num_rows, vocab_size, parts, number, PARTS: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """How many of one chunk have keys from each of sixteen on, for rows with top_k."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    wanted = tl.load(top_k + row)
    if wanted > 0:
        begin = _low_of_counts(low, counts, row, num_rows, parts, wanted, number, PARTS)
        if part == 0:
            tl.store(low + number * num_rows + row, begin)
        column = part * CHUNK + tl.arange(0, CHUNK)
        mask = column < vocab_size
        keys = _keys(tl.load(scores + row * vocab_size + column, mask=mask, other=-float("inf")))
        way = tl.arange(0, _WAYS)
        numbers = tl.zeros((_WAYS,), tl.int32)
        for each in tl.static_range(1, 16):
            from_here = (begin.to(tl.int64) + (tl.full((), each, tl.int64) << (28 - 4 * number))).to(tl.int32)
            numbers = tl.where(way == each, tl.sum((mask & (keys >= from_here)).to(tl.int32), axis=0), numbers)
        tl.store(counts + (((number % 2) * num_rows + row) * parts + part) * _WAYS + way, numbers)


@triton.jit
def _nucleus_so_far(low, sums, above, row, num_rows, parts, top_p, number, PARTS: tl.constexpr):
    """As far as `number` rounds say: the upper bits of the nucleus' lowest key, the mass above all keys with
    these upper bits, and the mass that is wanted."""
    found, over, wanted = tl.full((), _LOWEST, tl.int32), tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    if number > 0:
        part, way = tl.arange(0, PARTS), tl.arange(0, _WAYS)
        at = ((((number - 1) % 2) * num_rows + row) * parts + part[:, None]) * _WAYS + way[None, :]
        before = tl.load(above + (number - 1) * num_rows + row)
        masses = tl.sum(tl.load(sums + at, mask=(part < parts)[:, None], other=0.0), axis=0) + before
        if number == 1:
            wanted = top_p * tl.sum(tl.where(way == 0, masses, 0.0), axis=0)
        else:
            wanted = tl.load(above + 9 * num_rows + row)
        digit = tl.sum(((masses >= wanted) & (way > 0)).to(tl.int64), axis=0)
        over = tl.where(digit == 15, before, tl.sum(tl.where(way == digit + 1, masses, 0.0), axis=0))
        found = (tl.load(low + (number - 1) * num_rows + row).to(tl.int64) + (digit << (32 - 4 * number))).to(tl.int32)
    return found, over, wanted


@triton.jit(do_not_specialize=["num_rows", "parts", "number"])
def _sum(
    scores, found, temperatures, top_k, all_top_p, min_p, all_low, counts, sums, above, num_rows, vocab_size, parts,
    number, PARTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The weights of one chunk, in sum, with keys from each of sixteen on, for rows with top_p."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    top_p = tl.load(all_top_p + row)
    if top_p < 1.0:
        low = all_low + 9 * num_rows
        begin, over, wanted = _nucleus_so_far(low, sums, above, row, num_rows, parts, top_p, number, PARTS)
        if part == 0:
            tl.store(low + number * num_rows + row, begin)
            tl.store(above + number * num_rows + row, over)
            if number == 1:
                tl.store(above + 9 * num_rows + row, wanted)
        column = part * CHUNK + tl.arange(0, CHUNK)
        mask = column < vocab_size
        values = tl.load(scores + row * vocab_size + column, mask=mask, other=-float("inf"))
        keys = _keys(values)
        end = begin.to(tl.int64) + (tl.full((), 1, tl.int64) << (32 - 4 * number))
        inside = mask & (keys >= begin) & (keys.to(tl.int64) < end)
        size = tl.load(top_k + row)
        if size > 0:
            inside = inside & (keys >= _low_of_counts(all_low, counts, row, num_rows, parts, size, 8, PARTS))
        way = tl.arange(0, _WAYS)
        masses = tl.zeros((_WAYS,), tl.float64)
        if tl.sum(inside.to(tl.int32), axis=0) > 0:
            top, temperature = _top(found, row, parts, PARTS), tl.load(temperatures + row)
            weights = tl.where(inside, _weights(values, top, temperature), 0.0)
            for each in tl.static_range(0, 16):
                from_here = (begin.to(tl.int64) + (tl.full((), each, tl.int64) << (28 - 4 * number))).to(tl.int32)
                masses = tl.where(way == each, tl.sum(tl.where(keys >= from_here, weights, 0.0), axis=0), masses)
        tl.store(sums + (((number % 2) * num_rows + row) * parts + part) * _WAYS + way, masses)


@triton.jit
def _lowest_kept(
    all_low, counts, sums, above, row, num_rows, parts, top_k, top_p,
    PARTS: tl.constexpr,
):  # fmt: skip
    """The lowest key that the filters leave; and the mass that a nucleus wants, or infinity: all that tie stay."""
    low, wanted = tl.full((), _LOWEST, tl.int32), tl.full((), float("inf"), tl.float64)
    if top_k > 0:
        low = _low_of_counts(all_low, counts, row, num_rows, parts, top_k, 8, PARTS)
    if top_p < 1.0:
        low, _, wanted = _nucleus_so_far(all_low + 9 * num_rows, sums, above, row, num_rows, parts, top_p, 8, PARTS)
    return low, wanted


@triton.jit(do_not_specialize=["num_rows", "parts", "plane"])
def _weigh(
    scores, found, temperatures, all_top_k, all_top_p, all_min_p, all_low, counts, sums, above, best, masses, num_rows,
    vocab_size, parts, plane, PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Of one chunk: the weights of what the filters leave for sure, in sum, and how many tie with the lowest."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    top_k, top_p = tl.load(all_top_k + row), tl.load(all_top_p + row)
    low, _ = _lowest_kept(all_low, counts, sums, above, row, num_rows, parts, top_k, top_p, PARTS)
    column = part * CHUNK + tl.arange(0, CHUNK)
    mask = column < vocab_size
    values = tl.load(scores + row * vocab_size + column, mask=mask, other=-float("inf"))
    keys = _keys(values)
    weights = _weights(values, _top(found, row, parts, PARTS), tl.load(temperatures + row))
    is_kept = (keys > low) & (weights >= tl.load(all_min_p + row))
    at = row * parts + part
    tl.store(masses + at, tl.sum(tl.where(is_kept, weights, 0.0), axis=0))
    tl.store(best + plane + at, tl.sum((mask & (keys == low)).to(tl.int32), axis=0))


@triton.jit(do_not_specialize=["num_rows", "parts", "plane"])
def _choose(  # noqa: PLR0915 (sums in one place)
    logits, scores, found, temperatures, all_top_k, all_top_p, all_min_p, greedy, processed, numbers, all_low, counts,
    sums, above, best, masses, outputs, num_rows, vocab_size, parts, plane, PARTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Finds the chunk that the row's number falls into, and the token in it."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    at, is_part = row * parts + part, part < parts
    tops = tl.load(found + at, mask=is_part, other=-float("inf"))
    highest = tl.max(tops, axis=0)
    ids = tl.load(best + at, mask=is_part, other=_LARGEST)
    token = tl.min(tl.where(is_part & (tops == highest), ids, _LARGEST), axis=0)
    weight, total = tl.full((), 1.0, tl.float64), tl.full((), 1.0, tl.float64)
    if tl.load(greedy + row).to(tl.int32) == 0:
        top, temperature, min_p = highest.to(tl.float64), tl.load(temperatures + row), tl.load(all_min_p + row)
        top_k, top_p = tl.load(all_top_k + row), tl.load(all_top_p + row)
        low, wanted = _lowest_kept(
            all_low, counts, sums, above, row, num_rows, parts, top_k, top_p, PARTS
        )  # fmt: skip
        mass = tl.load(masses + at, mask=is_part, other=0.0)
        ties = tl.load(best + plane + at, mask=is_part, other=0)
        # Of those that tie with the last of a nucleus, the first so many.
        value = (low ^ ((low >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        tie = tl.where(low == _LOWEST, 0.0, _weights(value, top, temperature))
        surely = tl.sum(mass, axis=0)
        missing = tl.minimum((wanted - surely) / tl.maximum(tie, 1e-300), 2147483000.0)
        num_ties = tl.maximum(tl.ceil(missing), 1.0).to(tl.int32)
        ties_before = tl.cumsum(ties, axis=0) - ties
        kept_ties = tl.minimum(tl.maximum(num_ties - ties_before, 0), ties)
        mass += tl.where(tie >= min_p, kept_ties.to(tl.float64) * tie, 0.0)
        total = tl.sum(mass, axis=0)
        target = tl.load(numbers + row) * total
        until = tl.cumsum(mass, axis=0)
        has_mass = is_part & (mass > 0.0)
        here = tl.min(tl.where(has_mass & (until > target), part, _LARGEST), axis=0)
        here = tl.where(here == _LARGEST, tl.max(tl.where(has_mass, part, 0), axis=0), here)
        before = tl.sum(tl.where(part == here, until - mass, 0.0), axis=0)
        allowance = num_ties - tl.sum(tl.where(part == here, ties_before, 0), axis=0)
        column = here * CHUNK + tl.arange(0, CHUNK)
        mask = column < vocab_size
        values = tl.load(scores + row * vocab_size + column, mask=mask, other=-float("inf"))
        keys = _keys(values)
        is_tie = mask & (keys == low)
        rank = tl.cumsum(is_tie.to(tl.int32), axis=0)
        weights = _weights(values, top, temperature)
        is_kept = ((keys > low) | (is_tie & (rank <= allowance))) & (weights >= min_p)
        weights = tl.where(mask & is_kept, weights, 0.0)
        exceeds = (before + tl.cumsum(weights, axis=0) > target) & (weights > 0.0)
        token = tl.min(tl.where(exceeds, column, _LARGEST), axis=0)
        last = tl.max(tl.where(weights > 0.0, column, 0), axis=0)
        token = tl.where(token == _LARGEST, last, token)
        weight = tl.sum(tl.where(column == token, weights, 0.0), axis=0)
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
