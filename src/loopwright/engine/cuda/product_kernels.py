"""Products of vectors with a weight matrix as Triton kernels, with the sum or the gate that follows in one launch.

For up to 32 rows a matrix is read once, and reading it is all that takes time; cuBLAS reads matrices of a few megabytes
more slowly, and splits some over two launches. Weights of 8 and 4 bits are made numbers again between two reads. What a
row gets depends on how a matrix is cut and on nothing else: not on how many rows there are, nor on which it is.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopwright.engine.cuda.matrices import GROUP, SMALL_GROUP, Matrix, MatrixKind

NARROW_ROWS = 32
"""The most rows for which a plain matrix is multiplied here and not by cuBLAS."""
MOST_ROWS = 256
"""The same for matrices of fewer bits: above, making them numbers once costs less than doing so for each few rows."""

_ROW_TILES = 64  # that go through the matrix together: their vectors stay in the second-level cache


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is cut: `outputs`, `rows` and `inputs` of one round of a program; the latter whole groups."""

    outputs: int
    rows: int
    inputs: int
    num_warps: int
    num_stages: int


PRODUCT = (Tiling(16, 16, 512, 2, 3), Tiling(32, 32, 256, 4, 4))
GATED = (Tiling(64, 16, 128, 4, 4), Tiling(64, 32, 128, 8, 4))
"""By the most rows: the best of some dozen, measured at Llama's sizes on one H200."""
FEW_BITS = (Tiling(16, 16, 256, 2, 5), Tiling(32, 32, 256, 4, 3), Tiling(64, 64, 128, 4, 3), Tiling(64, 128, 128, 8, 3))
FEW_BITS_GATED = (
    Tiling(32, 16, 128, 2, 5), Tiling(32, 32, 128, 4, 3), Tiling(32, 64, 128, 4, 3), Tiling(64, 128, 128, 8, 3)
)  # fmt: skip
"""For 8 and 4 bits; chosen by arithmetic, not measured."""
FIXED = Tiling(32, 32, 128, 4, 4)
"""For any number of rows, if a row's bits may not depend on it."""
WIDE = Tiling(32, 128, 128, 4, 3)
WIDE_GATED = Tiling(32, 128, 128, 8, 3)
"""What may take the place of FIXED for more rows, where `agree` has seen equal bits. They have as many outputs, so that
a tensor core's instruction is the same: for 64 and more it is another."""


def tiling_for(matrix: Matrix, num_rows: int, *, is_gated: bool) -> Tiling | None:
    """The fastest for so many rows; None if cuBLAS is faster."""
    if matrix.kind == "plain":
        most = NARROW_ROWS
        tilings: tuple[Tiling, ...] = GATED if is_gated else PRODUCT
    else:
        most = MOST_ROWS
        tilings = FEW_BITS_GATED if is_gated else FEW_BITS
    if num_rows > most:
        return None
    return next((one for one in tilings if num_rows <= one.rows), tilings[-1])


def fixed_tiling(matrix: Matrix, num_rows: int, alike: Collection[MatrixKind], *, is_gated: bool) -> Tiling:
    """One for all numbers of rows, or a wide one for the kinds for which it is `alike`."""
    if num_rows <= FIXED.rows or matrix.kind not in alike:
        return FIXED
    return WIDE_GATED if is_gated else WIDE


def product(
    vectors: Tensor, matrix: Matrix, bias: Tensor | None, tiling: Tiling, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """[num_rows, size] → [num_rows, num_outputs], in bfloat16 or float32."""
    out = torch.empty(len(vectors), matrix.num_outputs, dtype=dtype, device=vectors.device)
    _launch(_product, vectors, matrix, out, tiling, bias, IS_SUM=False)
    return out


def add_product(vectors: Tensor, matrix: Matrix, bias: Tensor | None, residual: Tensor, tiling: Tiling) -> None:
    """residual += matrix · vectors + bias, in place: [num_rows, size], float32 [num_rows, num_outputs]."""
    _launch(_product, vectors, matrix, residual, tiling, bias, IS_SUM=True)


def gated_product(vectors: Tensor, gate_up: Matrix, tiling: Tiling, *, is_gelu: bool = False) -> Tensor:
    """silu(gate) · up, or gelu's tanh approximation instead, gates above ups in `gate_up`: [num_rows, size] →
    [num_rows, num_outputs / 2]."""
    out = torch.empty(len(vectors), gate_up.num_outputs // 2, dtype=vectors.dtype, device=vectors.device)
    _launch(_gated_product, vectors, gate_up, out, tiling, None, IS_GELU=is_gelu)
    return out


def numbers(matrix: Matrix) -> Tensor:
    """What a matrix of fewer bits holds, in bfloat16: [num_outputs, size]."""
    out = torch.empty(matrix.num_outputs, matrix.size, dtype=torch.bfloat16, device=matrix.values.device)
    _numbers[(triton.cdiv(matrix.num_outputs, 32), triton.cdiv(matrix.size, GROUP))](
        matrix.values, matrix.scales, out, matrix.num_outputs, matrix.size, OUTPUTS=32, BITS=_bits(matrix),
        GROUP=GROUP, SMALL=SMALL_GROUP,
    )  # fmt: skip
    return out


def agree(kind: MatrixKind, device: torch.device) -> bool:
    """Whether FIXED and the wide ones give equal bits on this device; tried with sizes that end within a tile."""
    generator = torch.Generator(device).manual_seed(0)

    vectors = torch.randn(140, 320, generator=generator, device=device).bfloat16()
    matrix = Matrix.of(torch.randn(72, 320, generator=generator, device=device), kind, device, torch.bfloat16)
    product_of = partial(product, vectors, matrix, None, dtype=torch.float32)
    gated_of = partial(gated_product, vectors, matrix)
    return torch.equal(product_of(FIXED), product_of(WIDE)) and torch.equal(gated_of(FIXED), gated_of(WIDE_GATED))


def _launch(  # the kernels have no types
    kernel, vectors: Tensor, matrix: Matrix, out: Tensor, tiling: Tiling, bias: Tensor | None, **options: bool
) -> None:
    num_rows, size = vectors.shape
    num_outputs = out.shape[1]
    row_tiles = triton.cdiv(num_rows, tiling.rows)
    grid = (min(row_tiles, _ROW_TILES), triton.cdiv(num_outputs, tiling.outputs), triton.cdiv(row_tiles, _ROW_TILES))
    if kernel is _product:
        options["HAS_BIAS"] = bias is not None
    kernel[grid](
        vectors, matrix.values, matrix.scales, bias, out, num_rows, num_outputs, size, OUTPUTS=tiling.outputs,
        INPUTS=tiling.inputs, ROWS=tiling.rows, BITS=_bits(matrix), GROUP=GROUP, SMALL=SMALL_GROUP,
        num_warps=tiling.num_warps, num_stages=tiling.num_stages, **options,
    )  # fmt: skip


def _bits(matrix: Matrix) -> int:
    return {"plain": 16, "int4": 4}.get(matrix.kind, 8)


@triton.jit
def _row_of(ROWS: tl.constexpr):
    tile = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
    return tile * ROWS + tl.arange(0, ROWS)


@triton.jit
def _read(vectors, row, column, num_rows, size):
    """[columns, ROWS] of the vectors; zeros where there are none."""
    at = vectors + row.to(tl.int64)[None, :] * size + column[:, None]
    return tl.load(at, mask=(row < num_rows)[None, :] & (column < size)[:, None], other=0.0)


@triton.jit
def _weights(weight, output, is_output, column, width):
    at = weight + output.to(tl.int64)[:, None] * width + column[None, :]
    return tl.load(at, mask=is_output[:, None] & (column < width)[None, :], other=0.0)


@triton.jit
def _levels(weight, scales, output, is_output, group, size, GROUP: tl.constexpr):
    """One group of 8 bits: float32 levels [OUTPUTS, GROUP] and scales [OUTPUTS]."""
    levels = _weights(weight, output, is_output, group * GROUP + tl.arange(0, GROUP), size)
    groups = tl.cdiv(size, GROUP)
    scale = tl.load(
        scales + output.to(tl.int64) * groups + group, mask=is_output & (group < groups), other=0.0
    )  # fmt: skip
    return levels.to(tl.float32), scale.to(tl.float32)


@triton.jit
def _pair_of_levels(weight, scales, output, is_output, pair, size, SMALL: tl.constexpr):
    """Two groups of 4 bits: of each, levels less their zeros [OUTPUTS, SMALL] and scales [OUTPUTS]."""
    pairs = tl.cdiv(size, 2 * SMALL)
    both = _weights(weight, output, is_output, pair * SMALL + tl.arange(0, SMALL), pairs * SMALL)
    at = scales + (output.to(tl.int64) * pairs + pair) * 4
    is_here = is_output & (pair < pairs)
    first_zero = tl.load(at + 1, mask=is_here, other=0.0).to(tl.float32)
    second_zero = tl.load(at + 3, mask=is_here, other=0.0).to(tl.float32)
    first = ((both & 15).to(tl.float32) - first_zero[:, None]).to(tl.bfloat16)
    second = ((both >> 4).to(tl.float32) - second_zero[:, None]).to(tl.bfloat16)
    first_scale = tl.load(at, mask=is_here, other=0.0).to(tl.float32)
    second_scale = tl.load(at + 2, mask=is_here, other=0.0).to(tl.float32)
    return first, first_scale, second, second_scale


@triton.jit
def _scaled(weight, scales, read, output, is_output, group, size, GROUP: tl.constexpr):
    """What one group of 8 bits adds: [OUTPUTS, ROWS]. `read` are the vectors at its inputs."""
    levels, scale = _levels(weight, scales, output, is_output, group, size, GROUP)
    return tl.dot(levels.to(tl.bfloat16), read) * scale[:, None]


@triton.jit
def _scaled_pair(weight, scales, first, second, output, is_output, pair, size, SMALL: tl.constexpr):
    """What two groups of 4 bits add: [OUTPUTS, ROWS]. `first` and `second` are the vectors at their inputs."""
    levels, scale, more, next_scale = _pair_of_levels(weight, scales, output, is_output, pair, size, SMALL)
    return tl.dot(levels, first) * scale[:, None] + tl.dot(more, second) * next_scale[:, None]


@triton.jit
def _numbers(
    weight, scales, out, num_outputs, size, OUTPUTS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    SMALL: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < num_outputs
    group = tl.program_id(1)
    at = out + output.to(tl.int64)[:, None] * size
    if BITS == 8:
        column = (group * GROUP + tl.arange(0, GROUP))[None, :]
        levels, scale = _levels(weight, scales, output, is_output, group, size, GROUP)
        tl.store(at + column, (levels * scale[:, None]).to(tl.bfloat16), mask=is_output[:, None] & (column < size))
    else:
        for pair in tl.static_range(0, GROUP // (2 * SMALL)):
            column = (group * GROUP + pair * 2 * SMALL + tl.arange(0, SMALL))[None, :]
            first, scale, second, next_scale = _pair_of_levels(
                weight, scales, output, is_output, group * (GROUP // (2 * SMALL)) + pair, size, SMALL
            )
            first = (first.to(tl.float32) * scale[:, None]).to(tl.bfloat16)
            second = (second.to(tl.float32) * next_scale[:, None]).to(tl.bfloat16)
            tl.store(at + column, first, mask=is_output[:, None] & (column < size))
            tl.store(at + column + SMALL, second, mask=is_output[:, None] & (column + SMALL < size))


@triton.jit
def _product(
    vectors, weight, scales, bias, out, num_rows, num_outputs, size,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    SMALL: tl.constexpr, HAS_BIAS: tl.constexpr, IS_SUM: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < num_outputs
    row = _row_of(ROWS)
    sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for start in range(0, size, INPUTS):
        if BITS == 16:
            column = start + tl.arange(0, INPUTS)
            weights = _weights(weight, output, is_output, column, size)
            sums += tl.dot(weights, _read(vectors, row, column, num_rows, size))
        elif BITS == 8:
            for part in tl.static_range(0, INPUTS, GROUP):
                read = _read(vectors, row, start + part + tl.arange(0, GROUP), num_rows, size)
                sums += _scaled(weight, scales, read, output, is_output, (start + part) // GROUP, size, GROUP)
        else:
            for part in tl.static_range(0, INPUTS, 2 * SMALL):
                column = start + part + tl.arange(0, SMALL)
                first = _read(vectors, row, column, num_rows, size)
                second = _read(vectors, row, column + SMALL, num_rows, size)
                pair = (start + part) // (2 * SMALL)
                sums += _scaled_pair(weight, scales, first, second, output, is_output, pair, size, SMALL)
    at = out + row.to(tl.int64)[None, :] * num_outputs + output[:, None]
    mask = (row < num_rows)[None, :] & is_output[:, None]
    if HAS_BIAS:
        sums += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)[:, None]
    if IS_SUM:
        sums += tl.load(at, mask=mask, other=0.0)
    tl.store(at, sums.to(out.dtype.element_ty), mask=mask)


@triton.jit
def opened(gates, IS_GELU: tl.constexpr):
    """silu, or the tanh approximation of gelu: x · sigmoid(x), or of 2 · sqrt(2 / pi) · (x + 0.044715 · x³)."""
    slope = gates
    if IS_GELU:
        slope = 1.5957691216057308 * (gates + 0.044715 * gates * gates * gates)
    return gates / (1.0 + tl.exp(-slope))


@triton.jit
def _gated_product(
    vectors, weight, scales, bias, out, num_rows, num_outputs, size,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    SMALL: tl.constexpr, IS_GELU: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < num_outputs
    other = output + num_outputs
    row = _row_of(ROWS)
    gates = tl.zeros([OUTPUTS, ROWS], tl.float32)
    ups = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for start in range(0, size, INPUTS):
        if BITS == 16:
            column = start + tl.arange(0, INPUTS)
            read = _read(vectors, row, column, num_rows, size)
            gates += tl.dot(_weights(weight, output, is_output, column, size), read)
            ups += tl.dot(_weights(weight, other, is_output, column, size), read)
        elif BITS == 8:
            for part in tl.static_range(0, INPUTS, GROUP):
                read = _read(vectors, row, start + part + tl.arange(0, GROUP), num_rows, size)
                group = (start + part) // GROUP
                gates += _scaled(weight, scales, read, output, is_output, group, size, GROUP)
                ups += _scaled(weight, scales, read, other, is_output, group, size, GROUP)
        else:
            for part in tl.static_range(0, INPUTS, 2 * SMALL):
                column = start + part + tl.arange(0, SMALL)
                first = _read(vectors, row, column, num_rows, size)
                second = _read(vectors, row, column + SMALL, num_rows, size)
                pair = (start + part) // (2 * SMALL)
                gates += _scaled_pair(weight, scales, first, second, output, is_output, pair, size, SMALL)
                ups += _scaled_pair(weight, scales, first, second, other, is_output, pair, size, SMALL)
    found = opened(gates, IS_GELU) * ups
    mask = (row < num_rows)[None, :] & is_output[:, None]
    tl.store(out + row.to(tl.int64)[None, :] * num_outputs + output[:, None], found.to(out.dtype.element_ty), mask=mask)
