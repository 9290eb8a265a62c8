"""What one program of a product adds up: inputs of the vectors, numbers of the weights, and their sums.

Parts of the product kernels, which call them. Sums are [OUTPUTS, ROWS].
"""

import triton
import triton.language as tl

from loopwright.engine.cuda.few_bits_kernels import (
    GROUP,
    LIFT,
    factors_of,
    levels_of_4,
    numbers_of_4,
    numbers_of_8,
    read_weights,
    scale_of,
    scaled,
    zero_of,
)
from loopwright.engine.cuda.tilings import SPAN

_SPAN: tl.constexpr = tl.constexpr(SPAN)


@triton.jit
def rows_of(ROWS: tl.constexpr, IS_SPLIT: tl.constexpr):
    tile = tl.program_id(0)
    if not IS_SPLIT:
        tile += tl.program_id(2) * tl.num_programs(0)
    return tile * ROWS + tl.arange(0, ROWS)


@triton.jit
def read_vectors(vectors, row, column, num_rows, size, IS_WHOLE: tl.constexpr):
    """[columns, ROWS] of the vectors; zeros where there are none. With IS_WHOLE no column is beyond their size."""
    at = vectors + row.to(tl.int64)[None, :] * size + column[:, None]
    mask = (row < num_rows)[None, :]
    if not IS_WHOLE:
        mask = mask & (column < size)[:, None]
    return tl.load(at, mask=mask, other=0.0)


@triton.jit
def totals_of(reads, OUTPUTS: tl.constexpr):
    """Of four groups of inputs what they add up to: [OUTPUTS, ROWS], for each output the same."""
    ones = tl.full([OUTPUTS, GROUP // 4], 1.0, tl.float32).to(tl.bfloat16)
    return tl.dot(ones, reads[0]), tl.dot(ones, reads[1]), tl.dot(ones, reads[2]), tl.dot(ones, reads[3])


@triton.jit
def parts_of(vectors, row, start, num_rows, size, PARTS: tl.constexpr, IS_WHOLE: tl.constexpr):
    """128 inputs of the vectors in parts: [GROUP / PARTS, ROWS] each."""
    column = start + tl.arange(0, GROUP // PARTS)
    first = read_vectors(vectors, row, column, num_rows, size, IS_WHOLE)
    if PARTS == 2:
        return first, read_vectors(vectors, row, column + 64, num_rows, size, IS_WHOLE)
    else:  # noqa: RET505 (what is not taken is not compiled)
        return (
            first, read_vectors(vectors, row, column + 32, num_rows, size, IS_WHOLE),
            read_vectors(vectors, row, column + 64, num_rows, size, IS_WHOLE),
            read_vectors(vectors, row, column + 96, num_rows, size, IS_WHOLE),
        )  # fmt: skip


@triton.jit
def plus_group(
    sums, reads, totals, weight, factors, output, is_output, group, size, BITS: tl.constexpr, IS_FP8: tl.constexpr,
    FOLDS: tl.constexpr, IS_WHOLE: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """What 128 inputs of fewer bits add to the sums; `reads` are the vectors there, `totals` theirs of 4 bits, and
    `factors` what the inputs have beside their words. The scales meet the sums, or with FOLDS the numbers, which are
    rounded once more. Without, zeros of 4 bits meet the totals."""
    if BITS == 8:
        numbers = numbers_of_8(weight, output, is_output, group, size, IS_FP8, IS_WHOLE, PTX)
        if FOLDS:
            for part in tl.static_range(2):
                sums = tl.dot(scaled(numbers[part], factors[0], PTX), reads[part], sums)
        else:
            found = tl.dot(numbers[1], reads[1], tl.dot(numbers[0], reads[0]))
            sums = tl.fma(found, tl.broadcast_to(factors[0].to(tl.float32), found.shape), sums)
    elif FOLDS:
        fours = numbers_of_4(weight, factors, output, is_output, group, size, IS_WHOLE, PTX)
        for part in tl.static_range(4):
            sums = tl.dot(scaled(fours[part], scale_of(factors[part]), PTX), reads[part], sums)
    else:
        fours = levels_of_4(weight, output, is_output, group, size, IS_WHOLE, PTX)
        for part in tl.static_range(4):
            found = tl.dot(fours[part], reads[part])
            zero = -(zero_of(factors[part]).to(tl.float32) + LIFT)
            found = tl.fma(totals[part], tl.broadcast_to(zero, found.shape), found)
            sums = tl.fma(found, tl.broadcast_to(scale_of(factors[part]), found.shape), sums)
    return sums


@triton.jit
def sums_of_chunk(
    vectors, weight, scales, output, is_output, row, chunk, num_rows, size,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr, IS_FP8: tl.constexpr,
    CHUNKS: tl.constexpr, FOLDS: tl.constexpr, IS_WHOLE: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """What one of CHUNKS equal parts of the inputs gives: [OUTPUTS, ROWS]. Scales are read a round ahead."""
    share = tl.cdiv(size, CHUNKS * _SPAN) * _SPAN
    begin = chunk * share
    end = tl.minimum(begin + share, size)
    sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
    if BITS == 16:
        for start in range(begin, end, INPUTS):
            column = start + tl.arange(0, INPUTS)
            read = read_vectors(vectors, row, column, num_rows, size, IS_WHOLE)
            sums = tl.dot(read_weights(weight, output, is_output, column, size, IS_WHOLE), read, sums)
    else:
        # Where scales meet the numbers, they have to lie as the numbers do, which only what is read there does.
        factors = factors_of(scales, output, is_output, begin // GROUP, size, BITS)
        for start in range(begin, end, INPUTS):
            for part in tl.static_range(0, INPUTS, GROUP):
                group = (start + part) // GROUP
                if FOLDS:
                    factors = factors_of(scales, output, is_output, group, size, BITS)
                else:
                    ahead = factors_of(scales, output, is_output, group + 1, size, BITS)
                reads = parts_of(vectors, row, start + part, num_rows, size, 16 // BITS, IS_WHOLE)
                totals = totals_of(reads, OUTPUTS) if BITS == 4 and not FOLDS else reads
                sums = plus_group(
                    sums, reads, totals, weight, factors, output, is_output, group, size, BITS, IS_FP8, FOLDS,
                    IS_WHOLE, PTX,
                )  # fmt: skip
                if not FOLDS:
                    factors = ahead
    return sums
