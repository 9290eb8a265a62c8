"""Products of vectors with a weight matrix as Triton kernels, with the sum or the gate that follows in one launch.

For up to 32 rows a matrix is read once, and reading it is all that takes time; cuBLAS reads matrices of a few megabytes
more slowly, and splits some over two launches. Weights of 8 and 4 bits are made numbers again between two reads. What a
row gets depends on how a matrix is cut and on nothing else: not on how many rows there are, nor on which it is.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopwright.engine.cuda import matrices
from loopwright.engine.cuda.matrices import Matrix, MatrixKind

NARROW_ROWS = 32
"""The most rows for which a plain matrix is multiplied here and not by cuBLAS."""
MOST_ROWS = 256
"""The same for matrices of fewer bits: above, making them numbers once costs less than doing so for each few rows."""

_ROW_TILES = 64  # that go through the matrix together: their vectors stay in the second-level cache


GROUP: tl.constexpr = tl.constexpr(matrices.GROUP)
HAS_PTX = not triton.knobs.runtime.interpret
"""Whether levels become bfloat16 by instructions of our own: the interpreter has none."""
SPAN: tl.constexpr = tl.constexpr(256)
"""Inputs that a part of a product is a multiple of."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is cut: `outputs`, `rows` and `inputs` of one round of a program; the latter whole groups.

    The inputs are in `chunks` parts, whose sums are added in order: each is a program of its own, if it `is_split`.
    With `folds`, scales meet the weights, which are rounded once more, and not the sums."""

    outputs: int
    rows: int
    inputs: int
    num_warps: int
    num_stages: int
    chunks: int = 1
    is_split: bool = False
    folds: bool = False


PRODUCT = (Tiling(16, 16, 256, 2, 5), Tiling(32, 32, 256, 4, 4))
GATED = (Tiling(32, 16, 128, 2, 6), Tiling(64, 32, 128, 8, 4))
"""By the most rows: the best of some dozen, measured at Llama's sizes on one H200."""
FEW_BITS = (
    Tiling(64, 16, 128, 4, 6), Tiling(64, 32, 128, 4, 5), Tiling(64, 64, 128, 4, 4, folds=True),
    Tiling(64, 128, 128, 4, 3, folds=True),
)  # fmt: skip
FEW_BITS_GATED = (
    Tiling(64, 16, 128, 4, 4), Tiling(64, 32, 128, 4, 4), Tiling(64, 64, 128, 4, 3, folds=True),
    Tiling(64, 128, 128, 8, 3, folds=True),
)  # fmt: skip
"""For 8 and 4 bits."""
ARRIVALS = 4096
"""Tiles that a split product has at most."""
_PROGRAMS = 128  # that a split product has at least
_MAX_CHUNKS = 8
FIXED = Tiling(32, 32, 128, 4, 4)
"""For any number of rows, if a row's bits may not depend on it."""
WIDE = Tiling(32, 128, 128, 4, 3)
WIDE_GATED = Tiling(32, 128, 128, 8, 3)
"""What may take the place of FIXED for more rows, where `agree` has seen equal bits. They have as many outputs, so that
a tensor core's instruction is the same: for 64 and more it is another."""


def tiling_for(matrix: Matrix, num_rows: int, *, is_gated: bool) -> Tiling | None:
    """The fastest for so many rows; None if cuBLAS is faster."""
    if matrix.kind == "plain":
        tilings, most = GATED if is_gated else PRODUCT, NARROW_ROWS
    else:
        tilings, most = FEW_BITS_GATED if is_gated else FEW_BITS, MOST_ROWS
    if num_rows > most:
        return None
    tiling = next((one for one in tilings if num_rows <= one.rows), tilings[-1])
    return tiling if is_gated or matrix.kind == "plain" else _spread(tiling, matrix, num_rows)


def _spread(tiling: Tiling, matrix: Matrix, num_rows: int) -> Tiling:
    """In so many parts that the device is full."""
    tiles, chunks = _num_tiles(tiling, matrix, num_rows), 1
    while chunks < _MAX_CHUNKS and tiles * chunks < _PROGRAMS and 4 * chunks * SPAN.value <= matrix.size:
        chunks *= 2
    return replace(tiling, chunks=chunks, is_split=True) if chunks > 1 else tiling


def _num_tiles(tiling: Tiling, matrix: Matrix, num_rows: int) -> int:
    return int(triton.cdiv(matrix.num_outputs, tiling.outputs) * triton.cdiv(num_rows, tiling.rows))


def fixed_tiling(matrix: Matrix, num_rows: int, alike: Collection[MatrixKind], *, is_gated: bool) -> Tiling:
    """One for all numbers of rows, or a wide one for the kinds for which it is `alike`."""
    if num_rows <= FIXED.rows or matrix.kind not in alike:
        return FIXED
    return WIDE_GATED if is_gated else WIDE


def product(
    vectors: Tensor, matrix: Matrix, bias: Tensor | None, tiling: Tiling, dtype: torch.dtype = torch.bfloat16,
    arrivals: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """[num_rows, size] → [num_rows, num_outputs], in bfloat16 or float32. `arrivals` are zeros that only launches on
    one stream share, int32, one for each tile of outputs and rows: for a tiling that is split."""
    out = torch.empty(len(vectors), matrix.num_outputs, dtype=dtype, device=vectors.device)
    _launch_product(vectors, matrix, bias, out, tiling, arrivals, is_sum=False)
    return out


def add_product(
    vectors: Tensor, matrix: Matrix, bias: Tensor | None, residual: Tensor, tiling: Tiling,
    arrivals: Tensor | None = None,
) -> None:  # fmt: skip
    """residual += matrix · vectors + bias, in place: [num_rows, size], float32 [num_rows, num_outputs]."""
    _launch_product(vectors, matrix, bias, residual, tiling, arrivals, is_sum=True)


def gated_product(vectors: Tensor, gate_up: Matrix, tiling: Tiling) -> Tensor:
    """silu(gate) · up, gates above ups in `gate_up`: [num_rows, size] → [num_rows, num_outputs / 2]."""
    out = torch.empty(len(vectors), gate_up.num_outputs // 2, dtype=vectors.dtype, device=vectors.device)
    _launch(_gated_product, vectors, gate_up, out, tiling)
    return out


def numbers(matrix: Matrix) -> Tensor:
    """What a matrix of fewer bits holds, in bfloat16: [num_outputs, size]."""
    out = torch.empty(matrix.num_outputs, matrix.size, dtype=torch.bfloat16, device=matrix.values.device)
    _numbers[(triton.cdiv(matrix.num_outputs, 32), triton.cdiv(matrix.size, GROUP))](
        matrix.values, matrix.scales, out, matrix.num_outputs, matrix.size, OUTPUTS=32, BITS=_bits(matrix),
        IS_FP8=matrix.kind == "fp8", PTX=HAS_PTX,
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


def _launch_product(
    vectors: Tensor, matrix: Matrix, bias: Tensor | None, out: Tensor, tiling: Tiling, arrivals: Tensor | None, *,
    is_sum: bool,
) -> None:  # fmt: skip
    parts = None
    if tiling.is_split:
        assert arrivals is not None
        assert _num_tiles(tiling, matrix, len(vectors)) <= len(arrivals)
        parts = torch.empty(tiling.chunks, *out.shape, dtype=torch.float32, device=out.device)
    _launch(_product, vectors, matrix, out, tiling, bias, parts, arrivals, IS_SUM=is_sum)


def _launch(  # the kernels have no types
    kernel, vectors: Tensor, matrix: Matrix, out: Tensor, tiling: Tiling, *between: Tensor | None, **options: bool
) -> None:
    num_rows, size = vectors.shape
    num_outputs = out.shape[1]
    row_tiles = triton.cdiv(num_rows, tiling.rows)
    depth = triton.cdiv(row_tiles, _ROW_TILES)
    if between:
        options |= {"HAS_BIAS": between[0] is not None, "CHUNKS": tiling.chunks, "IS_SPLIT": tiling.is_split}
        depth = tiling.chunks if tiling.is_split else depth
    grid = (
        row_tiles if tiling.is_split else min(row_tiles, _ROW_TILES),
        triton.cdiv(num_outputs, tiling.outputs),
        depth,
    )
    before, after = between[:1], between[1:]
    kernel[grid](
        vectors, matrix.values, matrix.scales, *before, out, *after, num_rows, num_outputs, size,
        OUTPUTS=tiling.outputs, INPUTS=tiling.inputs, ROWS=tiling.rows, BITS=_bits(matrix),
        IS_FP8=matrix.kind == "fp8", FOLDS=tiling.folds, PTX=HAS_PTX, num_warps=tiling.num_warps,
        num_stages=tiling.num_stages, **options,
    )  # fmt: skip


def _bits(matrix: Matrix) -> int:
    return {"plain": 16, "int4": 4}.get(matrix.kind, 8)


@triton.jit
def _row_of(ROWS: tl.constexpr, IS_SPLIT: tl.constexpr):
    tile = tl.program_id(0)
    if not IS_SPLIT:
        tile += tl.program_id(2) * tl.num_programs(0)
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


_INT8: tl.constexpr = tl.constexpr("""{
.reg .b32 level, sign, high, one;
mov.b32 one, 0x3F803F80;
lop3.b32 sign, $2, 0x00800080, 0xC300C300, 0xEA;
lop3.b32 level, $2, 0x007F007F, 0x43004300, 0xEA;
fma.rn.bf16x2 $0, level, one, sign;
shr.u32 high, $2, 8;
lop3.b32 sign, high, 0x00800080, 0xC300C300, 0xEA;
lop3.b32 level, high, 0x007F007F, 0x43004300, 0xEA;
fma.rn.bf16x2 $1, level, one, sign;
}""")
"""Two words to their low and high numbers: 128 and seven bits are a bfloat16, from which 128 or 256 go, by the sign."""

_FP8: tl.constexpr = tl.constexpr("""{
.reg .b32 level, sign, factor, none;
mov.b32 factor, 0x7B807B80;
mov.b32 none, 0x80008000;
shl.b32 level, $2, 4;
shl.b32 sign, $2, 8;
and.b32 sign, sign, 0x80008000;
lop3.b32 level, level, 0x07F007F0, sign, 0xEA;
fma.rn.bf16x2 $0, level, factor, none;
shr.u32 level, $2, 4;
and.b32 sign, $2, 0x80008000;
lop3.b32 level, level, 0x07F007F0, sign, 0xEA;
fma.rn.bf16x2 $1, level, factor, none;
}""")
"""The same for e4m3: its bits, as exponent and mantissa of a bfloat16, are 2 ** 120 times too small."""

_INT4: tl.constexpr = tl.constexpr("""{
.reg .b32 level, part, one, minus, base;
mov.b32 one, 0x3F803F80;
mov.b32 minus, 0xBF80BF80;
mov.b32 base, 0xC300C300;
lop3.b32 level, $4, 0x000F000F, 0x43004300, 0xEA;
fma.rn.bf16x2 level, level, one, base;
fma.rn.bf16x2 $0, $5, minus, level;
shr.u32 part, $4, 4;
lop3.b32 level, part, 0x000F000F, 0x43004300, 0xEA;
fma.rn.bf16x2 level, level, one, base;
fma.rn.bf16x2 $1, $6, minus, level;
shr.u32 part, $4, 8;
lop3.b32 level, part, 0x000F000F, 0x43004300, 0xEA;
fma.rn.bf16x2 level, level, one, base;
fma.rn.bf16x2 $2, $7, minus, level;
shr.u32 part, $4, 12;
lop3.b32 level, part, 0x000F000F, 0x43004300, 0xEA;
fma.rn.bf16x2 level, level, one, base;
fma.rn.bf16x2 $3, $8, minus, level;
}""")
"""Two words to the four numbers of each, less the zeros of their groups, rounded once."""


@triton.jit
def _bytes(words, IS_FP8: tl.constexpr, PTX: tl.constexpr):
    """Low and high numbers of words, in bfloat16, which is exact."""
    if PTX:
        return tl.inline_asm_elementwise(
            _FP8 if IS_FP8 else _INT8, "=r,=r,r", [words], (tl.bfloat16, tl.bfloat16), is_pure=True, pack=2
        )
    else:  # noqa: RET505 (what is not taken is not compiled)
        low, high = (words & 255).to(tl.uint8), ((words >> 8) & 255).to(tl.uint8)
        if IS_FP8:
            return _exact(low.to(tl.float8e4nv, bitcast=True)), _exact(high.to(tl.float8e4nv, bitcast=True))
        else:  # noqa: RET505
            return _exact(low.to(tl.int8, bitcast=True)), _exact(high.to(tl.int8, bitcast=True))


@triton.jit
def _exact(levels):
    return levels.to(tl.float32).to(tl.bfloat16)


@triton.jit
def _nibbles(words, first, second, third, fourth, PTX: tl.constexpr):
    """The four numbers of words, less the zeros of their groups [OUTPUTS, 1], in bfloat16, rounded once."""
    if PTX:
        return tl.inline_asm_elementwise(
            _INT4, "=r,=r,=r,=r,r,r,r,r,r",
            [words, tl.broadcast_to(first, words.shape), tl.broadcast_to(second, words.shape),
             tl.broadcast_to(third, words.shape), tl.broadcast_to(fourth, words.shape)],
            (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2,
        )  # fmt: skip
    else:  # noqa: RET505 (what is not taken is not compiled)
        return _less(words, first), _less(words >> 4, second), _less(words >> 8, third), _less(words >> 12, fourth)


@triton.jit
def _less(words, zero):
    return ((words & 15).to(tl.float32) - zero.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _words(weight, output, is_output, group, size, WORDS: tl.constexpr):
    """What 128 inputs of the outputs are kept in: [OUTPUTS, WORDS]."""
    width = tl.cdiv(size, GROUP) * WORDS
    return _weights(weight, output, is_output, group * WORDS + tl.arange(0, WORDS), width)


@triton.jit
def _scales_of(scales, output, is_output, group, size, number, NUMBERS: tl.constexpr):
    """One of the numbers that a group of 128 inputs has beside its words: [OUTPUTS, 1]."""
    groups = tl.cdiv(size, GROUP)
    at = scales + (output.to(tl.int64) * groups + group) * NUMBERS + number
    return tl.load(at, mask=is_output & (group < groups), other=0.0)[:, None]


@triton.jit
def _numbers_of_4(weight, scales, output, is_output, group, size, PTX: tl.constexpr):
    """Of 128 inputs: numbers of each of four groups, less their zeros, and the groups' scales."""
    words = _words(weight, output, is_output, group, size, GROUP // 4)
    zeros = (
        _scales_of(scales, output, is_output, group, size, 1, 8), _scales_of(scales, output, is_output, group, size, 3, 8),
        _scales_of(scales, output, is_output, group, size, 5, 8), _scales_of(scales, output, is_output, group, size, 7, 8),
    )  # fmt: skip
    numbers = _nibbles(words, zeros[0], zeros[1], zeros[2], zeros[3], PTX)
    return numbers, (
        _scales_of(scales, output, is_output, group, size, 0, 8), _scales_of(scales, output, is_output, group, size, 2, 8),
        _scales_of(scales, output, is_output, group, size, 4, 8), _scales_of(scales, output, is_output, group, size, 6, 8),
    )  # fmt: skip


@triton.jit
def _numbers_of_8(weight, scales, output, is_output, group, size, IS_FP8: tl.constexpr, PTX: tl.constexpr):
    """Of 128 inputs: the first 64 numbers and the others, and their scale."""
    words = _words(weight, output, is_output, group, size, GROUP // 2)
    return _bytes(words, IS_FP8, PTX), _scales_of(scales, output, is_output, group, size, 0, 1)


@triton.jit
def _plus_scaled(sums, numbers, scale, reads, FOLDS: tl.constexpr, PTX: tl.constexpr):
    """sums + scale · (numbers · reads), of one group in parts: the scale meets the sum, or with FOLDS the numbers, which are
    rounded once more."""
    if FOLDS:
        for part in tl.static_range(len(numbers)):
            sums = tl.dot(_scaled(numbers[part], scale, PTX), reads[part], sums)
    else:
        found = tl.dot(numbers[0], reads[0])
        for part in tl.static_range(1, len(numbers)):
            found = tl.dot(numbers[part], reads[part], found)
        sums = tl.fma(found, tl.broadcast_to(scale.to(tl.float32), found.shape), sums)
    return sums


@triton.jit
def _scaled(numbers, scale, PTX: tl.constexpr):
    """In bfloat16, rounded once; the interpreter has no such product."""
    if PTX:
        found = numbers * scale
    else:
        found = (numbers.to(tl.float32) * scale.to(tl.float32)).to(tl.bfloat16)
    return found


@triton.jit
def _parts_of(vectors, row, start, num_rows, size, PARTS: tl.constexpr):
    """128 inputs of the vectors in parts: [GROUP / PARTS, ROWS] each."""
    column = start + tl.arange(0, GROUP // PARTS)
    if PARTS == 2:
        return _read(vectors, row, column, num_rows, size), _read(vectors, row, column + 64, num_rows, size)
    else:  # noqa: RET505 (what is not taken is not compiled)
        return (
            _read(vectors, row, column, num_rows, size), _read(vectors, row, column + 32, num_rows, size),
            _read(vectors, row, column + 64, num_rows, size), _read(vectors, row, column + 96, num_rows, size),
        )  # fmt: skip


@triton.jit
def _plus_group(
    sums, reads, weight, scales, output, is_output, group, size, BITS: tl.constexpr, IS_FP8: tl.constexpr,
    FOLDS: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """What 128 inputs of fewer bits add to the sums [OUTPUTS, ROWS]; `reads` are the vectors there."""
    if BITS == 8:
        numbers, scale = _numbers_of_8(weight, scales, output, is_output, group, size, IS_FP8, PTX)
        sums = _plus_scaled(sums, numbers, scale, reads, FOLDS, PTX)
    else:
        fours, factors = _numbers_of_4(weight, scales, output, is_output, group, size, PTX)
        for part in tl.static_range(4):
            sums = _plus_scaled(sums, (fours[part],), factors[part], (reads[part],), FOLDS, PTX)
    return sums


@triton.jit
def _product_of_chunk(
    vectors, weight, scales, output, is_output, row, chunk, num_rows, size,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr, IS_FP8: tl.constexpr,
    CHUNKS: tl.constexpr, FOLDS: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """What one of CHUNKS equal parts of the inputs gives: [OUTPUTS, ROWS]."""
    share = tl.cdiv(size, CHUNKS * SPAN) * SPAN
    sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for start in range(chunk * share, tl.minimum(chunk * share + share, size), INPUTS):
        if BITS == 16:
            column = start + tl.arange(0, INPUTS)
            read = _read(vectors, row, column, num_rows, size)
            sums = tl.dot(_weights(weight, output, is_output, column, size), read, sums)
        else:
            for part in tl.static_range(0, INPUTS, GROUP):
                reads = _parts_of(vectors, row, start + part, num_rows, size, 16 // BITS)
                group = (start + part) // GROUP
                sums = _plus_group(
                    sums, reads, weight, scales, output, is_output, group, size, BITS, IS_FP8, FOLDS, PTX
                )
    return sums


@triton.jit
def _numbers(
    weight, scales, out, num_outputs, size, OUTPUTS: tl.constexpr, BITS: tl.constexpr, IS_FP8: tl.constexpr,
    PTX: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < num_outputs
    group = tl.program_id(1)
    PARTS: tl.constexpr = 16 // BITS
    if BITS == 8:
        numbers, scale = _numbers_of_8(weight, scales, output, is_output, group, size, IS_FP8, PTX)
        factors = (scale, scale)
    else:
        numbers, factors = _numbers_of_4(weight, scales, output, is_output, group, size, PTX)
    for part in tl.static_range(PARTS):
        column = (group * GROUP + part * (GROUP // PARTS) + tl.arange(0, GROUP // PARTS))[None, :]
        found = (numbers[part].to(tl.float32) * factors[part].to(tl.float32)).to(tl.bfloat16)
        at = out + output.to(tl.int64)[:, None] * size + column
        tl.store(at, found, mask=is_output[:, None] & (column < size))


@triton.jit(do_not_specialize=["num_rows"])
def _product(
    vectors, weight, scales, bias, out, parts, arrivals, num_rows, num_outputs, size,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr, IS_FP8: tl.constexpr,
    CHUNKS: tl.constexpr, IS_SPLIT: tl.constexpr, FOLDS: tl.constexpr, PTX: tl.constexpr, HAS_BIAS: tl.constexpr,
    IS_SUM: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < num_outputs
    row = _row_of(ROWS, IS_SPLIT)
    mask = (row < num_rows)[None, :] & is_output[:, None]
    is_last = True
    if IS_SPLIT:
        chunk = tl.program_id(2)
        sums = _product_of_chunk(
            vectors, weight, scales, output, is_output, row, chunk, num_rows, size,
            OUTPUTS, INPUTS, ROWS, BITS, IS_FP8, CHUNKS, FOLDS, PTX,
        )  # fmt: skip
        own = parts + row.to(tl.int64)[None, :] * num_outputs + output[:, None]
        plane = num_rows.to(tl.int64) * num_outputs
        tl.store(own + chunk * plane, sums, mask=mask)
        tl.debug_barrier()
        arrived = arrivals + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        is_last = tl.atomic_add(arrived, 1, sem="acq_rel") == CHUNKS - 1
        if is_last:
            tl.store(arrived, 0)
            sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
            for other in tl.static_range(0, CHUNKS):
                sums += tl.load(own + other * plane, mask=mask, other=0.0, cache_modifier=".cg")
    elif CHUNKS == 1:
        sums = _product_of_chunk(
            vectors, weight, scales, output, is_output, row, 0, num_rows, size,
            OUTPUTS, INPUTS, ROWS, BITS, IS_FP8, CHUNKS, FOLDS, PTX,
        )  # fmt: skip
    else:
        sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
        for chunk in range(CHUNKS):
            sums += _product_of_chunk(
                vectors, weight, scales, output, is_output, row, chunk, num_rows, size,
                OUTPUTS, INPUTS, ROWS, BITS, IS_FP8, CHUNKS, FOLDS, PTX,
            )  # fmt: skip
    if is_last:
        at = out + row.to(tl.int64)[None, :] * num_outputs + output[:, None]
        if HAS_BIAS:
            sums += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)[:, None]
        if IS_SUM:
            sums += tl.load(at, mask=mask, other=0.0)
        tl.store(at, sums.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def _gated_product(
    vectors, weight, scales, out, num_rows, num_outputs, size,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr, IS_FP8: tl.constexpr,
    FOLDS: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < num_outputs
    other = output + num_outputs
    row = _row_of(ROWS, False)
    gates = tl.zeros([OUTPUTS, ROWS], tl.float32)
    ups = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for start in range(0, size, INPUTS):
        if BITS == 16:
            column = start + tl.arange(0, INPUTS)
            read = _read(vectors, row, column, num_rows, size)
            gates = tl.dot(_weights(weight, output, is_output, column, size), read, gates)
            ups = tl.dot(_weights(weight, other, is_output, column, size), read, ups)
        else:
            for part in tl.static_range(0, INPUTS, GROUP):
                reads = _parts_of(vectors, row, start + part, num_rows, size, 16 // BITS)
                group = (start + part) // GROUP
                gates = _plus_group(
                    gates, reads, weight, scales, output, is_output, group, size, BITS, IS_FP8, FOLDS, PTX
                )
                ups = _plus_group(ups, reads, weight, scales, other, is_output, group, size, BITS, IS_FP8, FOLDS, PTX)
    found = gates / (1.0 + tl.exp(-gates)) * ups
    mask = (row < num_rows)[None, :] & is_output[:, None]
    tl.store(out + row.to(tl.int64)[None, :] * num_outputs + output[:, None], found.to(out.dtype.element_ty), mask=mask)
