"""What top_k, typical_p and top_p leave of a whole row, as a Triton kernel: a program reads it as often as it needs.

Thresholds are found by the bits of keys or distances, four at a time: slow for one row, and always right. It is for
rows with typical_p, and for what `filter_kernels` could not settle among few scores. Used by the draws.
"""

import triton
import triton.language as tl

from loopwright.engine.cuda.filter_kernels import RINGED, WHOLE
from loopwright.engine.cuda.score_kernels import LOWEST, highest, keys_of, powers_of, weights_of

_WAYS = tl.constexpr(16)
_INFINITY = tl.constexpr(0x7FF0000000000000)  # its bits


@triton.jit(do_not_specialize=["num_rows", "parts"])
def search(
    scores, found, temperatures, all_top_k, all_top_p, all_min_p, all_typical_p, ways, gathered, numbers, masses, lows,
    limits, num_rows, vocab_size, parts, plane, PARTS: tl.constexpr, CHUNK: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """As `settle`, of rows with typical_p and of those whose way is to be read again."""
    row = tl.program_id(0).to(tl.int64)
    is_whole = tl.load(ways + row) == WHOLE
    if tl.load(ways + row) == RINGED:
        top, temperature = highest(found, row, parts, PARTS), tl.load(temperatures + row)
        is_whole = _settled_ring(
            top, temperature, tl.load(all_typical_p + row), gathered, numbers, masses, lows, limits, row, num_rows,
            parts, plane, PARTS, ROOM,
        )  # fmt: skip
    if is_whole:
        top, temperature = highest(found, row, parts, PARTS), tl.load(temperatures + row)
        top_k, top_p, typical_p = tl.load(all_top_k + row), tl.load(all_top_p + row), tl.load(all_typical_p + row)
        low, mass = tl.full((), LOWEST, tl.int64), tl.full((), float("inf"), tl.float64)
        center, reach, least = tl.full((), 0.0, tl.float64), mass, tl.load(all_min_p + row)
        if top_k > 0:
            low = _low_of_top_k(scores, row, vocab_size, parts, top_k, CHUNK)
        if typical_p < 1.0:
            center, reach = _typical(scores, row, vocab_size, parts, top, temperature, low, typical_p, CHUNK)
            least *= _heaviest(scores, row, vocab_size, parts, top, temperature, low, center, reach, CHUNK)
        if top_p < 1.0:
            low, mass = _low_of_nucleus(
                scores, row, vocab_size, parts, top, temperature, low, center, reach, top_p, CHUNK
            )
        for part in range(parts):
            values, keys, is_left = _left(scores, row, part, vocab_size, top, temperature, low, center, reach, CHUNK)
            weights = weights_of(values, top, temperature)
            at = row * parts + part
            tl.store(masses + at, tl.sum(tl.where(is_left & (keys > low) & (weights >= least), weights, 0.0), axis=0))
            tl.store(numbers + at, tl.sum((is_left & (keys == low)).to(tl.int32), axis=0))
        tl.store(lows + row, low.to(tl.int32))
        tl.store(limits + row, mass)
        tl.store(limits + num_rows + row, center)
        tl.store(limits + 2 * num_rows + row, reach * (1.0 + 1e-13))  # whatever is rounded elsewhere
        tl.store(limits + 3 * num_rows + row, least)


@triton.jit
def _settled_ring(
    top, temperature, typical_p, gathered, numbers, masses, lows, limits, row, num_rows, parts, plane,
    PARTS: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """Looks for the last kept token of a row among those gathered on both sides. Whether the row is to be read again:
    the true mean of powers is known only now, and as far as it is from the guess, others may be nearer."""
    part, slot = tl.arange(0, PARTS), tl.arange(0, ROOM)[None, :]
    at, is_part = row * parts + part, part < parts
    inner = tl.load(masses + at, mask=is_part, other=0.0)
    total = tl.sum(tl.load(masses + plane + at, mask=is_part, other=0.0), axis=0)
    center = tl.sum(tl.load(masses + 2 * plane + at, mask=is_part, other=0.0), axis=0) / total
    nums = tl.load(numbers + at, mask=is_part, other=0)
    values = tl.load(gathered + at[:, None] * ROOM + slot, mask=slot < nums[:, None], other=-float("inf"))
    weights = weights_of(values, top, temperature)
    bits = distances_of(values, top, temperature, center).to(tl.int64, bitcast=True)
    wanted = typical_p * total - tl.sum(inner, axis=0)
    low, high = tl.min(bits), tl.max(tl.where(weights > 0.0, bits, 0))
    is_there = (wanted > 0.0) & (tl.sum(weights) >= wanted) & (tl.max(nums, axis=0) <= ROOM)
    while is_there & (low < high):
        middle = low + ((high - low) >> 1)
        is_enough = tl.sum(tl.where(bits <= middle, weights, 0.0)) >= wanted
        low, high = tl.where(is_enough, low, middle + 1), tl.where(is_enough, middle, high)
    reach = low.to(tl.float64, bitcast=True)
    guess, near = tl.load(limits + num_rows + row), tl.load(limits + 2 * num_rows + row)
    far = tl.load(limits + 3 * num_rows + row)
    # The edges between which was gathered are float32.
    slack = tl.abs(center - guess) + 4e-7 * (tl.abs(top) / temperature + tl.abs(guess) + far)
    is_there = is_there & (near + slack <= reach) & (reach <= far - slack)
    if is_there:
        mass = inner + tl.sum(tl.where(bits <= low, weights, 0.0), axis=1)
        tl.store(masses + at, mass, mask=is_part)
        tl.store(numbers + at, tl.zeros((PARTS,), tl.int32), mask=is_part)
        tl.store(lows + row, LOWEST)
        tl.store(limits + row, float("inf"))
        tl.store(limits + num_rows + row, center)
        tl.store(limits + 2 * num_rows + row, reach * (1.0 + 1e-13))
        tl.store(limits + 3 * num_rows + row, 0.0)
    return is_there == 0


@triton.jit
def distances_of(values, top, temperature, center):
    """How far a token's surprise is from the entropy, which is as far as its power is from the mean of all."""
    return tl.abs(powers_of(values, top, temperature) - center)


@triton.jit
def _left(scores, row, part, vocab_size, top, temperature, low, center, reach, CHUNK: tl.constexpr):
    """Of one part: the scores, their keys, and which of them reach `low` and are within reach of the center."""
    column = part * CHUNK + tl.arange(0, CHUNK)
    mask = column < vocab_size
    values = tl.load(scores + row * vocab_size + column, mask=mask, other=-float("inf"))
    keys = keys_of(values)
    is_left = mask & (keys >= low)
    if reach < float("inf"):
        is_left = is_left & (distances_of(values, top, temperature, center) <= reach)
    return values, keys, is_left


@triton.jit
def _low_of_top_k(scores, row, vocab_size, parts, top_k, CHUNK: tl.constexpr):
    """The largest key that `top_k` reach."""
    low, way = tl.full((), LOWEST, tl.int64), tl.arange(0, _WAYS)
    for number in range(8):
        totals = tl.zeros((_WAYS,), tl.int32)
        for part in range(parts):
            column = part * CHUNK + tl.arange(0, CHUNK)
            mask = column < vocab_size
            keys = keys_of(tl.load(scores + row * vocab_size + column, mask=mask, other=-float("inf")))
            for each in tl.static_range(1, 16):
                from_here = low + (tl.full((), each, tl.int64) << (28 - 4 * number))
                totals += tl.where(way == each, tl.sum((mask & (keys >= from_here)).to(tl.int32), axis=0), 0)
        low += tl.sum(((totals >= top_k) & (way > 0)).to(tl.int64), axis=0) << (28 - 4 * number)
    return low


@triton.jit
def _low_of_nucleus(
    scores, row, vocab_size, parts, top, temperature, lowest, center, reach, top_p, CHUNK: tl.constexpr
):  # fmt: skip
    """The largest key from which on those that are left have `top_p` of their mass, and that mass."""
    low, way = tl.full((), LOWEST, tl.int64), tl.arange(0, _WAYS)
    wanted, over = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    for number in range(8):
        masses = tl.zeros((_WAYS,), tl.float64) + over
        end = low + (tl.full((), 1, tl.int64) << (32 - 4 * number))
        for part in range(parts):
            values, keys, is_left = _left(
                scores, row, part, vocab_size, top, temperature, lowest, center, reach, CHUNK
            )  # fmt: skip
            inside = is_left & (keys >= low) & (keys < end)
            if tl.sum(inside.to(tl.int32), axis=0) > 0:
                weights = tl.where(inside, weights_of(values, top, temperature), 0.0)
                for each in tl.static_range(0, 16):
                    from_here = low + (tl.full((), each, tl.int64) << (28 - 4 * number))
                    masses += tl.where(way == each, tl.sum(tl.where(keys >= from_here, weights, 0.0), axis=0), 0.0)
        if number == 0:
            wanted = top_p * tl.sum(tl.where(way == 0, masses, 0.0), axis=0)
        digit = tl.sum(((masses >= wanted) & (way > 0)).to(tl.int64), axis=0)
        over = tl.where(digit == 15, over, tl.sum(tl.where(way == digit + 1, masses, 0.0), axis=0))
        low += digit << (28 - 4 * number)
    return low, wanted


@triton.jit
def _typical(scores, row, vocab_size, parts, top, temperature, lowest, typical_p, CHUNK: tl.constexpr):
    """The mean of the powers, and within which distance of it `typical_p` of the mass is. Rounds end when all that is
    left to tell apart is equally far."""
    total, moment = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    everywhere = tl.full((), float("inf"), tl.float64)
    for part in range(parts):
        values, _, is_left = _left(scores, row, part, vocab_size, top, temperature, lowest, total, everywhere, CHUNK)
        weights = tl.where(is_left, weights_of(values, top, temperature), 0.0)
        total += tl.sum(weights, axis=0)
        moments = tl.where(weights > 0.0, weights * powers_of(values, top, temperature), 0.0)
        moment += tl.sum(moments, axis=0)
    center, wanted = moment / total, typical_p * total
    begin, under, way = tl.full((), 0, tl.int64), tl.full((), 0.0, tl.float64), tl.arange(0, _WAYS)
    number, is_found = tl.full((), 0, tl.int32), total != total
    while (number < 16) & (is_found == 0):
        step = tl.full((), 1, tl.int64) << (60 - 4 * number)
        masses = tl.zeros((_WAYS,), tl.float64) + under
        nearest, farthest = tl.full((), _INFINITY, tl.int64), tl.full((), 0, tl.int64)
        for part in range(parts):
            values, _, is_left = _left(
                scores, row, part, vocab_size, top, temperature, lowest, total, everywhere, CHUNK
            )  # fmt: skip
            bits = distances_of(values, top, temperature, center).to(tl.int64, bitcast=True)
            digits = (bits - begin) >> (60 - 4 * number)
            inside = is_left & (bits >= begin) & (digits < 16)
            if tl.sum(inside.to(tl.int32), axis=0) > 0:
                nearest = tl.minimum(nearest, tl.min(tl.where(inside, bits, _INFINITY), axis=0))
                farthest = tl.maximum(farthest, tl.max(tl.where(inside, bits, 0), axis=0))
                weights = tl.where(inside, weights_of(values, top, temperature), 0.0)
                for each in tl.static_range(1, 16):
                    masses += tl.where(way == each, tl.sum(tl.where(digits < each, weights, 0.0), axis=0), 0.0)
        is_found = nearest >= farthest
        digit = tl.sum(((masses < wanted) & (way > 0)).to(tl.int64), axis=0)
        under = tl.where(digit == 0, under, tl.sum(tl.where(way == digit, masses, 0.0), axis=0))
        begin = tl.where(is_found, nearest, begin + digit * step)
        number += 1
    return center, tl.minimum(begin, _INFINITY).to(tl.float64, bitcast=True)


@triton.jit
def _heaviest(scores, row, vocab_size, parts, top, temperature, low, center, reach, CHUNK: tl.constexpr):
    """The weight of the highest score that is left."""
    most = tl.full((), -float("inf"), tl.float32)
    for part in range(parts):
        values, _, is_left = _left(scores, row, part, vocab_size, top, temperature, low, center, reach, CHUNK)
        most = tl.maximum(most, tl.max(tl.where(is_left, values, -float("inf")), axis=0))
    return weights_of(most, top, temperature)
