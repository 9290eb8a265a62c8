"""The smallest score that top_k and top_p leave of each row, as Triton kernels that read a row twice and sort nothing.

`count` counts some of the scores by how far they are below the highest, `bound` says from that where the last kept one
is likely, `weigh` gathers what lies there, and `settle` finds it among these few, in float64, and makes sure. Where it
is elsewhere, or too much lies there, `search` reads the row again, as often as it needs. Used by the draws.
"""

import triton
import triton.language as tl

from loopwright.engine.cuda.score_kernels import (
    LARGEST,
    LOWEST,
    columns_of,
    highest,
    keys_of,
    powers_of,
    weights_of,
)

PLAIN, GATHERED, WHOLE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
GROUPED, RINGED, SETTLED = tl.constexpr(3), tl.constexpr(4), tl.constexpr(5)
"""Ways of a row: nothing is filtered; its last kept score is likely among what is gathered, score by score or in whole
groups; `search` reads it again; as GATHERED, but from two sides for typical_p; and that nothing is left to do."""
BINS = 128  # of a row, each a step of at most 1/8 in the logarithm of weights
ROOM = 512  # scores of a part that can be gathered
_SAMPLE = tl.constexpr(1024)


@triton.jit
def _scale(scores, row, vocab_size, temperature):
    """Bins for a unit of scores: eight for one of the weights' logarithm, or more where all weigh nearly the same; by
    the row's first scores."""
    column = tl.arange(0, _SAMPLE)
    values = tl.load(scores + row * vocab_size + column, mask=column < vocab_size, other=float("inf"))
    is_finite = tl.abs(values) < float("inf")
    num = tl.maximum(tl.sum(is_finite.to(tl.float32), axis=0), 1.0)
    mean = tl.sum(tl.where(is_finite, values, 0.0), axis=0) / num
    variance = tl.sum(tl.where(is_finite, (values - mean) * (values - mean), 0.0), axis=0) / num
    scale = tl.maximum(8.0 / temperature.to(tl.float32), tl.where(variance > 0.0, 12.0 / tl.sqrt(variance), 0.0))
    return tl.minimum(tl.maximum(scale, 1e-9), 1e4)


@triton.jit
def _steps(values, scale):
    """Which bin of all that there could be: it rises with the values."""
    scaled = tl.where(values == values, values * scale, 0.0)  # NaN is another's to find
    return tl.floor(tl.minimum(tl.maximum(scaled, -1e9), 1e9)).to(tl.int32)


@triton.jit
def count(
    values, tops, top, scores, temperature, bins, steps, scales, row, part, parts, vocab_size, BINS: tl.constexpr,
    GROUP: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Of one part, whose highest score is `top`: how many of its groups' highest scores `tops` are how many bins below
    it, and of one more score of each group, which is any."""
    scale = _scale(scores, row, vocab_size, temperature)
    step = _steps(top, scale)
    column = tl.arange(0, CHUNK // GROUP)
    chosen = (column * 7 + (column >> 4) + part) % GROUP
    others = tl.sum(tl.where(tl.arange(0, GROUP)[:, None] == chosen[None, :], values, 0.0), axis=0)
    at, place = row * parts + part, tl.arange(0, BINS)
    own = tl.maximum(tl.minimum(step - _steps(tops, scale), BINS - 1), 0)
    tl.store(bins + 2 * at * BINS + place, tl.histogram(own, BINS, mask=tops > -float("inf")))
    own = tl.maximum(tl.minimum(step - _steps(others, scale), BINS - 1), 0)
    is_other = (others > -float("inf")) & (others < tops)
    tl.store(bins + (2 * at + 1) * BINS + place, tl.histogram(own, BINS, mask=is_other))
    tl.store(steps + at, step)
    if part == 0:
        tl.store(scales + row, scale)


@triton.jit(do_not_specialize=["num_rows", "parts"])
def bound(
    found, temperatures, all_top_k, all_top_p, all_min_p, all_typical_p, bins, steps, scales, ways, edges, limits,
    num_rows, parts, PARTS: tl.constexpr, BINS: tl.constexpr, ROOM: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Of each row: its way; and as `edges` [4, num_rows] between which scores it is to be gathered, but for those
    between which is kept for sure. With typical_p beside others the whole row is read again."""
    row = tl.program_id(0).to(tl.int64)
    top_k, top_p, typical_p = tl.load(all_top_k + row), tl.load(all_top_p + row), tl.load(all_typical_p + row)
    way = tl.full((), 0, tl.int32)
    if (top_k > 0) | (top_p < 1.0) | (typical_p < 1.0):
        part, place = tl.arange(0, PARTS), tl.arange(0, BINS)
        own = tl.load(steps + row * parts + part, mask=part < parts, other=-2000000000)
        step = tl.max(own, axis=0)
        tops = _numbers(bins, 0, step - own, row, parts, PARTS, BINS)
        others = _numbers(bins, 1, step - own, row, parts, PARTS, BINS)
        numbers, scale = tops + GROUP * others, tl.load(scales + row)
        top, temperature = highest(found, row, parts, PARTS), tl.load(temperatures + row)
        if typical_p < 1.0:
            way = tl.full((), WHOLE, tl.int32)
            if (top_k == 0) & (top_p >= 1.0) & (tl.load(all_min_p + row) == 0.0):
                way = _ring(
                    tops, others, step, top, temperature, scale, typical_p, edges, limits, row, num_rows, BINS, ROOM,
                    GROUP,
                )  # fmt: skip
        else:
            # Of so many groups the highest are enough, so there are as many scores.
            last = tl.sum((tl.cumsum(tl.sum(tops, axis=0), axis=0) < top_k).to(tl.int32), axis=0)
            first = last
            if top_k == 0:
                first, last = _crossed(
                    tl.sum(tops, axis=0), tl.sum(others, axis=0), step, top, temperature, scale, top_p, BINS, GROUP
                )
            last = tl.minimum(last, BINS - 1)
            most = tl.max(tl.sum(tl.where(place[None, :] <= last, numbers, 0), axis=1), axis=0)
            first = tl.where((top_k > 0) | (most <= ROOM // 2), 0, first)
            is_inside = (place >= first) & (place <= last)
            most = tl.max(tl.sum(tl.where(is_inside[None, :], numbers, 0), axis=1), axis=0)
            way = tl.where(most <= ROOM + ROOM // 2, GATHERED, WHOLE)
            way = tl.where((first == 0) & (most <= ROOM // 16), GROUPED, way)
            lower = tl.where(last == BINS - 1, -float("inf"), (step - last).to(tl.float32) / scale)
            upper = tl.where(first == 0, float("inf"), (step - first + 1).to(tl.float32) / scale)
            _set_edges(edges, row, num_rows, lower, float("inf"), upper, float("inf"))
    tl.store(ways + row, way)


@triton.jit
def _set_edges(edges, row, num_rows, lower, upper, begin, end):
    tl.store(edges + row, lower)
    tl.store(edges + num_rows + row, upper)
    tl.store(edges + 2 * num_rows + row, begin)
    tl.store(edges + 3 * num_rows + row, end)


@triton.jit
def _numbers(bins, which, shift, row, parts, PARTS: tl.constexpr, BINS: tl.constexpr):
    """What was counted for each bin of a row, by part [PARTS, BINS], where each part counted from its own highest; the
    last bin has all that are lower."""
    part, place = tl.arange(0, PARTS)[:, None], tl.arange(0, BINS)[None, :]
    at, is_part = (2 * (row * parts + part) + which) * BINS + place, part < parts
    num = tl.sum(tl.load(bins + at, mask=is_part & (place >= 0), other=0), axis=1)
    is_here = is_part & (place >= shift[:, None]) & (place < BINS - 1)
    numbers = tl.load(bins + at - shift[:, None], mask=is_here, other=0)
    return tl.where(place == BINS - 1, (num - tl.sum(numbers, axis=1))[:, None], numbers)


@triton.jit
def _estimated(tops, others, step, top, temperature, scale, BINS: tl.constexpr, GROUP: tl.constexpr):
    """Of each bin: the power of what lies there, its mass, and the variance of that. One score stands for its group,
    and where in their bins scores are is not known."""
    place = tl.arange(0, BINS)
    wide = scale.to(tl.float64)
    middle = ((step - place).to(tl.float64) + 0.5) / wide
    middle = tl.minimum(tl.where(place == 0, (step / wide + top) / 2, middle), top)
    weights = weights_of(middle, top, temperature)
    weights = tl.where(place == BINS - 1, 0.0, weights)  # what is there may be anywhere below
    tops, others = tops.to(tl.float64), others.to(tl.float64)
    width = 1.0 / (wide * temperature)
    unsure = tl.where(place == 0, tl.maximum(tops - 1.0, 0.0), tops) * width * width / 12.0 + GROUP * GROUP * others
    return powers_of(middle, top, temperature), (tops + GROUP * others) * weights, unsure * weights * weights


@triton.jit
def _noise(inside, outside, share, total):
    """What a share of the mass may be off by: four times the deviation, and a little for how masses lie in bins."""
    deviation = tl.sqrt(inside * (1.0 - share) * (1.0 - share) + outside * share * share)
    return 4.0 * deviation + 0.004 * share * (1.0 - share) * total


@triton.jit
def _crossed(tops, others, step, top, temperature, scale, top_p, BINS: tl.constexpr, GROUP: tl.constexpr):
    """The first and the last bin in which a nucleus is likely to end."""
    _, masses, variances = _estimated(tops, others, step, top, temperature, scale, BINS, GROUP)
    until, total = tl.cumsum(masses, axis=0), tl.sum(masses, axis=0)
    above = tl.cumsum(variances, axis=0)
    noise = _noise(above, tl.sum(variances, axis=0) - above, top_p, total)
    first = tl.sum((until - top_p * total < -noise).to(tl.int32), axis=0)
    last = tl.sum((until - top_p * total < noise).to(tl.int32), axis=0)
    return tl.minimum(first, BINS - 1), last


@triton.jit
def _ring(
    all_tops, all_others, step, top, temperature, scale, typical_p, edges, limits, row, num_rows, BINS: tl.constexpr,
    ROOM: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The way of a row with typical_p, where its edges are likely, and in `limits` what that comes from: the mean of
    the powers, and the least and the largest distance from it that the last kept token may have."""
    place = tl.arange(0, BINS)
    tops, others = tl.sum(all_tops, axis=0), tl.sum(all_others, axis=0)
    powers, masses, variances = _estimated(tops, others, step, top, temperature, scale, BINS, GROUP)
    total = tl.sum(masses, axis=0)
    center = tl.sum(masses * powers, axis=0) / total
    distances = tl.abs(powers - center)
    _, _, of_tops = _estimated(tops, tl.zeros_like(others), step, top, temperature, scale, BINS, GROUP)
    off = tl.sum(variances * distances * distances + of_tops * (1.0 + 2.0 * distances), axis=0)
    off = 4.0 * tl.sqrt(off) / total
    width = 1.0 / (scale.to(tl.float64) * temperature)
    begin = ((step + 1) / scale.to(tl.float64) - top) * tl.minimum(1.0 / temperature, 1e300)  # of the bins
    radius = place.to(tl.float64) * width / 2
    inside = _up_to(masses, (begin - center + radius) / width, BINS)
    inside -= _up_to(masses, (begin - center - radius) / width, BINS)
    unsure = _up_to(variances, (begin - center + radius) / width, BINS)
    unsure -= _up_to(variances, (begin - center - radius) / width, BINS)
    noise = _noise(unsure, tl.maximum(tl.sum(variances, axis=0) - unsure, 0.0), typical_p, total)
    num_near = tl.sum((inside - typical_p * total < -noise).to(tl.int32), axis=0)
    num_far = tl.sum((inside - typical_p * total < noise).to(tl.int32), axis=0)
    most, margin = tl.full((), 2 * ROOM, tl.int32), tl.full((), 3, tl.int32)
    near, far = center, center
    while (most > ROOM) & (margin > 0):  # where there is room for them, more are gathered
        margin -= 1
        near = (num_near - 1 - margin) * width / 2 - off
        far = (num_far + margin) * width / 2 + off
        is_here = (distances >= near - width / 2) & (distances <= far + width / 2)
        most = tl.max(tl.sum(tl.where(is_here[None, :], all_tops + GROUP * all_others, 0), axis=1), axis=0)
    # The highest score alone may be what is missing, and its distance is known well.
    edge = tl.abs(center)
    near = tl.where(tl.abs(near - edge) < 2 * width, tl.minimum(near, edge - 2 * off - width / 2), near)
    far = tl.where(tl.abs(far - edge) < 2 * width, tl.maximum(far, edge + 2 * off + width / 2), far)
    # Where that is little, nothing is kept for sure, and one need not know where the ring begins.
    all_numbers = tl.where((distances <= far + 4 * width)[None, :], all_tops + GROUP * all_others, 0)
    is_little = tl.max(tl.sum(all_numbers, axis=1), axis=0) <= ROOM // 2
    near, far = tl.where(is_little, -1.0, near), tl.where(is_little, far + 3 * width, far)
    lower, upper = top + (center - far) * temperature, top + (center + far) * temperature
    inner_lower, inner_upper = top + (center - near) * temperature, top + (center + near) * temperature
    _set_edges(
        edges, row, num_rows, lower.to(tl.float32), upper.to(tl.float32), inner_lower.to(tl.float32),
        inner_upper.to(tl.float32),
    )  # fmt: skip
    tl.store(limits + num_rows + row, center)
    tl.store(limits + 2 * num_rows + row, near)
    tl.store(limits + 3 * num_rows + row, far)
    return tl.where((most <= ROOM + ROOM // 2) & (num_far + margin < BINS), RINGED, WHOLE)


@triton.jit
def _up_to(amounts, until, BINS: tl.constexpr):
    """The sum of the first `until` of amounts, which may be any number, as if a bin's were spread evenly."""
    number = tl.minimum(tl.maximum(until, 0.0), BINS - 1e-6)
    whole = number.to(tl.int32)
    before = tl.gather(tl.cumsum(amounts, axis=0) - amounts, whole, axis=0)
    return before + tl.gather(amounts, whole, axis=0) * (number - whole)


@triton.jit(do_not_specialize=["num_rows", "parts", "plane"])
def weigh(
    scores, found, temperatures, all_top_k, all_top_p, all_min_p, greedy, ways, edges, gathered, numbers, masses,
    num_rows, vocab_size, parts, plane, HAS_FILTERS: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr,
    ROOM: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Of one part: the weights that min_p leaves of what no filter takes, in sum; where there are filters, the weights
    of what is kept for sure, and of all, and with powers in them; and gathers what lies between the edges."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    if tl.load(greedy + row).to(tl.int32) == 0:
        at = row * parts + part
        column = columns_of(part, CHUNK, GROUP)
        values = tl.load(scores + row * vocab_size + column, mask=column < vocab_size, other=-float("inf"))
        least = tl.load(all_min_p + row)
        if HAS_FILTERS:
            way, is_plain = tl.load(ways + row), tl.load(ways + row) == PLAIN
            is_mass = tl.load(all_top_k + row) == 0
            is_wanted = is_plain | ((way != WHOLE) & is_mass)
            begin = tl.where(is_plain, -float("inf"), tl.load(edges + 2 * num_rows + row))
            end = tl.where(is_plain, float("inf"), tl.load(edges + 3 * num_rows + row))
            least = tl.where(is_plain, least, 0.0)
            if (way == GATHERED) | (way == RINGED):
                lower, upper = tl.maximum(tl.load(edges + row), -3.4028235e38), tl.load(edges + num_rows + row)
                is_inside = (values >= lower) & (values <= upper) & ((values < begin) | (values > end))
                _gather(values, is_inside, gathered + at * ROOM, numbers + at, ROOM)
            if way == GROUPED:
                _gather_groups(values, tl.load(edges + row), gathered + at * ROOM, numbers + at, ROOM, GROUP)
        mass = tl.full((), 0.0, tl.float64)
        total, moment = mass, mass
        top, temperature = highest(found, row, parts, PARTS), tl.load(temperatures + row)
        if HAS_FILTERS:
            if way == RINGED:
                mass, total, moment = _moment(values, top, temperature, begin, end)
            elif is_wanted:
                weights = weights_of(values, top, temperature)
                mass = tl.sum(tl.where((values >= begin) & (weights >= least), weights, 0.0))
                total = tl.sum(weights)
        else:
            weights = weights_of(values, top, temperature)
            mass = tl.sum(tl.where(weights >= least, weights, 0.0))
        tl.store(masses + at, mass)
        if HAS_FILTERS:
            tl.store(masses + plane + at, total)
            tl.store(masses + 2 * plane + at, moment)


@triton.jit
def _moment(values, top, temperature, begin, end):
    """The mass between two scores, the mass of all, and the sum of powers, each as much as it weighs."""
    weights = weights_of(values, top, temperature)
    mass = tl.sum(tl.where((values >= begin) & (values <= end), weights, 0.0))
    powers = powers_of(values, top, temperature)
    return mass, tl.sum(weights), tl.sum(tl.where(weights > 0.0, weights * powers, 0.0))


@triton.jit
def _gather(values, is_inside, target, number, ROOM: tl.constexpr):
    """Writes what is inside one after the other, as far as there is room, and how many there are."""
    inside = tl.where(is_inside, 1, 0)
    of_groups = tl.sum(inside, axis=0)
    tl.store(number, tl.sum(of_groups, axis=0))
    place = (tl.cumsum(of_groups, axis=0) - of_groups)[None, :] + tl.cumsum(inside, axis=0) - 1
    place = tl.where(is_inside, place, ROOM)
    tl.store(target + place, values, mask=place < ROOM)


@triton.jit
def _gather_groups(values, lower, target, number, ROOM: tl.constexpr, GROUP: tl.constexpr):
    """The same of all groups that have a score from `lower` on: where these are few, it is quicker than to look for
    where each score belongs."""
    is_inside = tl.max(values, axis=0) >= tl.maximum(lower, -3.4028235e38)
    until = tl.cumsum(is_inside.to(tl.int32), axis=0)
    tl.store(number, tl.sum(is_inside.to(tl.int32), axis=0) * GROUP)
    place = tl.where(is_inside, (until - 1) * GROUP, ROOM)
    at = place[None, :] + tl.arange(0, GROUP)[:, None]
    tl.store(target + at, values, mask=place[None, :] < ROOM)


@triton.jit(do_not_specialize=["num_rows", "parts", "plane"])
def settle(
    found, temperatures, all_top_k, all_top_p, all_min_p, ways, edges, gathered, numbers, masses, lows, limits,
    num_rows, parts, plane, PARTS: tl.constexpr, ROOM: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Of each row of whose parts none has more than SLOTS gathered scores: the lowest key that the filters leave; as
    `limits` [4, num_rows] the mass that a nucleus wants, or infinity: all that tie stay, from where and how far powers
    may be, and the least weight; and of its parts, the weights of what is kept for sure, in sum, and how many tie with
    the lowest, in `numbers`. A row for which this fails is to be read again."""
    row = tl.program_id(0).to(tl.int64)
    way, part = tl.load(ways + row), tl.arange(0, PARTS)
    at, is_part = row * parts + part, part < parts
    if way == PLAIN:
        tl.store(numbers + at, tl.zeros((PARTS,), tl.int32), mask=is_part)
        _limit(lows, limits, row, num_rows, LOWEST, float("inf"), all_min_p)
    if (way == GATHERED) | (way == GROUPED):
        nums = tl.load(numbers + at, mask=is_part, other=0)
        most = tl.max(nums, axis=0)
        if most > ROOM:
            tl.store(ways + row, WHOLE)
        elif most <= SLOTS:
            lower, begin = tl.load(edges + row), tl.load(edges + 2 * num_rows + row)
            slot = tl.arange(0, SLOTS)[None, :]
            values = tl.load(gathered + at[:, None] * ROOM + slot, mask=slot < nums[:, None], other=-float("inf"))
            is_here = values >= tl.maximum(lower, -3.4028235e38)
            keys = tl.where(is_here, keys_of(values), LOWEST)
            weights = weights_of(values, highest(found, row, parts, PARTS), tl.load(temperatures + row))
            above = tl.sum(tl.load(masses + at, mask=is_part, other=0.0), axis=0)
            total = tl.sum(tl.load(masses + plane + at, mask=is_part, other=0.0), axis=0)
            low, mass, is_settled = _last_kept(
                keys, tl.where(is_here, weights, 0.0), tl.sum(is_here.to(tl.int32)), above, total,
                tl.load(all_top_k + row), tl.load(all_top_p + row), lower == -float("inf"),
            )  # fmt: skip
            # What min_p leaves of what is not gathered is not known here.
            min_p = tl.load(all_min_p + row)
            is_low_kept = tl.max(tl.where(keys == low, weights, 0.0)) >= min_p
            if is_settled & (is_low_kept | (begin == float("inf"))):
                kept = tl.where((keys > low) & (weights >= min_p), weights, 0.0)
                sure = tl.load(masses + at, mask=is_part, other=0.0) + tl.sum(kept, axis=1)
                tl.store(masses + at, sure, mask=is_part)
                tl.store(numbers + at, tl.sum((is_here & (keys == low)).to(tl.int32), axis=1), mask=is_part)
                _limit(lows, limits, row, num_rows, low, mass, all_min_p)
                tl.store(ways + row, SETTLED)
            else:
                tl.store(ways + row, WHOLE)


@triton.jit
def _limit(lows, limits, row, num_rows, low, mass, all_min_p):
    tl.store(lows + row, low)
    tl.store(limits + row, mass)
    tl.store(limits + num_rows + row, 0.0)
    tl.store(limits + 2 * num_rows + row, float("inf"))
    tl.store(limits + 3 * num_rows + row, tl.load(all_min_p + row))


@triton.jit
def _last_kept(keys, weights, num, above, total, top_k, top_p, has_all):
    """Of gathered scores, `num`, and the mass above them: the last key that is kept, the mass that a nucleus wants, and
    whether that is sure. `has_all`: nothing is below them."""
    low, most = tl.min(tl.where(keys == LOWEST, LARGEST, keys)), tl.max(keys)
    mass = tl.full((), float("inf"), tl.float64)
    is_settled = num > 0
    if top_k > 0:
        is_settled = is_settled & ((num >= top_k) | has_all)
        if is_settled:
            low = _last_of(keys, tl.where(keys == LOWEST, 0, 1), top_k, low, most)
        weights = tl.where(keys >= low, weights, 0.0)
        total = tl.sum(weights)
    if top_p < 1.0:
        mass = top_p * total
        is_settled = is_settled & ((above < mass) | (top_k > 0)) & (above + tl.sum(weights) >= mass)
        if is_settled:
            low = _last_of(keys, weights, mass - above, low, most)
    return low, mass, is_settled


@triton.jit
def _last_of(keys, amounts, wanted, lowest, most):
    """The largest key from which on amounts are at least `wanted` in sum."""
    low, high = lowest.to(tl.int64), most.to(tl.int64)
    while low < high:
        middle = (low + high + 1) >> 1
        reached = tl.sum(tl.where(keys >= middle, amounts, 0))
        low, high = tl.where(reached >= wanted, middle, low), tl.where(reached >= wanted, high, middle - 1)
        if reached == wanted:
            low = tl.min(tl.where(keys >= middle, keys, LARGEST)).to(tl.int64)
            high = low
    return low.to(tl.int32)
