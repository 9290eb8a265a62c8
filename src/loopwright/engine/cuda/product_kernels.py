"""Products of vectors with a weight matrix as Triton kernels, with the sum or the gate that follows in one launch.

For up to 32 rows a matrix is read once, and reading it is all that takes time; cuBLAS reads matrices of a few megabytes
more slowly, and splits some over two launches. Weights of 8 and 4 bits are made numbers again between two reads. What a
row gets depends on how a matrix is cut and on nothing else: not on how many rows there are, nor on which it is.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopwright.engine.cuda.few_bits_kernels import (
    GROUP,
    factors_of,
    numbers_of_4,
    numbers_of_8,
    read_weights,
    scale_of,
    scaled,
)  # fmt: skip
from loopwright.engine.cuda.matrices import Matrix, MatrixKind
from loopwright.engine.cuda.tilings import FIXED, SPAN, WIDE, WIDE_GATED, Tiling, num_tiles

HAS_PTX = not triton.knobs.runtime.interpret
"""Whether numbers of few bits become bfloat16 by instructions of our own: the interpreter has none."""

_ROW_TILES = 64  # that go through the matrix together: their vectors stay in the second-level cache
_SPAN: tl.constexpr = tl.constexpr(SPAN)


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


def gated_product(vectors: Tensor, gate_up: Matrix, tiling: Tiling, *, is_gelu: bool = False) -> Tensor:
    """silu(gate) · up, or gelu's tanh approximation instead, gates above ups in `gate_up`: [num_rows, size] →
    [num_rows, num_outputs / 2]."""
    out = torch.empty(len(vectors), gate_up.num_outputs // 2, dtype=vectors.dtype, device=vectors.device)
    _launch(_gated_product, vectors, gate_up, out, tiling, IS_GELU=is_gelu)
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
        assert num_tiles(tiling, matrix, len(vectors)) <= len(arrivals)
        parts = torch.empty(tiling.chunks, *out.shape, dtype=torch.float32, device=out.device)
    _launch(_product, vectors, matrix, out, tiling, bias, parts, arrivals, IS_SUM=is_sum)


def _launch(  # the kernels have no types
    kernel, vectors: Tensor, matrix: Matrix, out: Tensor, tiling: Tiling, *between: Tensor | None, **options: bool | int
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
        IS_FP8=matrix.kind == "fp8", FOLDS=tiling.folds, IS_WHOLE=_is_whole(size, tiling), PTX=HAS_PTX,
        num_warps=tiling.num_warps, num_stages=tiling.num_stages, **options,
    )  # fmt: skip


def _is_whole(size: int, tiling: Tiling) -> bool:
    """Whether every round of every part has all of its inputs."""
    return size % SPAN == 0 and SPAN % tiling.inputs == 0


def _bits(matrix: Matrix) -> int:
    return {"plain": 16, "int4": 4}.get(matrix.kind, 8)


@triton.jit
def _row_of(ROWS: tl.constexpr, IS_SPLIT: tl.constexpr):
    tile = tl.program_id(0)
    if not IS_SPLIT:
        tile += tl.program_id(2) * tl.num_programs(0)
    return tile * ROWS + tl.arange(0, ROWS)


@triton.jit
def _read(vectors, row, column, num_rows, size, IS_WHOLE: tl.constexpr):
    """[columns, ROWS] of the vectors; zeros where there are none. With IS_WHOLE no column is beyond their size."""
    at = vectors + row.to(tl.int64)[None, :] * size + column[:, None]
    mask = (row < num_rows)[None, :]
    if not IS_WHOLE:
        mask = mask & (column < size)[:, None]
    return tl.load(at, mask=mask, other=0.0)


@triton.jit
def _plus_scaled(sums, numbers, scale, reads, FOLDS: tl.constexpr, PTX: tl.constexpr):
    """sums + scale · (numbers · reads), of one group in parts: the scale meets the sum, or with FOLDS the numbers,
    which are rounded once more."""
    if FOLDS:
        for part in tl.static_range(len(numbers)):
            sums = tl.dot(scaled(numbers[part], scale, PTX), reads[part], sums)
    else:
        found = tl.dot(numbers[0], reads[0])
        for part in tl.static_range(1, len(numbers)):
            found = tl.dot(numbers[part], reads[part], found)
        sums = tl.fma(found, tl.broadcast_to(scale.to(tl.float32), found.shape), sums)
    return sums


@triton.jit
def _parts_of(vectors, row, start, num_rows, size, PARTS: tl.constexpr, IS_WHOLE: tl.constexpr):
    """128 inputs of the vectors in parts: [GROUP / PARTS, ROWS] each."""
    column = start + tl.arange(0, GROUP // PARTS)
    first = _read(vectors, row, column, num_rows, size, IS_WHOLE)
    if PARTS == 2:
        return first, _read(vectors, row, column + 64, num_rows, size, IS_WHOLE)
    else:  # noqa: RET505 (what is not taken is not compiled)
        return (
            first, _read(vectors, row, column + 32, num_rows, size, IS_WHOLE),
            _read(vectors, row, column + 64, num_rows, size, IS_WHOLE),
            _read(vectors, row, column + 96, num_rows, size, IS_WHOLE),
        )  # fmt: skip


@triton.jit
def _plus_group(
    sums, reads, weight, factors, output, is_output, group, size, BITS: tl.constexpr, IS_FP8: tl.constexpr,
    FOLDS: tl.constexpr, IS_WHOLE: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """What 128 inputs of fewer bits add to the sums [OUTPUTS, ROWS]; `reads` are the vectors there, and `factors` what
    the inputs have beside their words."""
    if BITS == 8:
        numbers = numbers_of_8(weight, output, is_output, group, size, IS_FP8, IS_WHOLE, PTX)
        sums = _plus_scaled(sums, numbers, factors[0], reads, FOLDS, PTX)
    else:
        fours = numbers_of_4(weight, factors, output, is_output, group, size, IS_WHOLE, PTX)
        for part in tl.static_range(4):
            sums = _plus_scaled(sums, (fours[part],), scale_of(factors[part]), (reads[part],), FOLDS, PTX)
    return sums


@triton.jit
def _product_of_chunk(
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
            read = _read(vectors, row, column, num_rows, size, IS_WHOLE)
            sums = tl.dot(read_weights(weight, output, is_output, column, size, IS_WHOLE), read, sums)
    else:
        # Where levels meet zeros or scales, these have to lie as the levels do, which only what is read there does.
        IS_AHEAD: tl.constexpr = BITS == 8 and not FOLDS
        factors = factors_of(scales, output, is_output, begin // GROUP, size, BITS)
        for start in range(begin, end, INPUTS):
            for part in tl.static_range(0, INPUTS, GROUP):
                group = (start + part) // GROUP
                if IS_AHEAD:
                    ahead = factors_of(scales, output, is_output, group + 1, size, BITS)
                else:
                    factors = factors_of(scales, output, is_output, group, size, BITS)
                reads = _parts_of(vectors, row, start + part, num_rows, size, 16 // BITS, IS_WHOLE)
                sums = _plus_group(
                    sums, reads, weight, factors, output, is_output, group, size, BITS, IS_FP8, FOLDS, IS_WHOLE, PTX
                )
                if IS_AHEAD:
                    factors = ahead
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
    factors = factors_of(scales, output, is_output, group, size, BITS)
    if BITS == 8:
        numbers = numbers_of_8(weight, output, is_output, group, size, IS_FP8, False, PTX)
        own = (factors[0].to(tl.float32), factors[0].to(tl.float32))
    else:
        numbers = numbers_of_4(weight, factors, output, is_output, group, size, False, PTX)
        own = (  # type: ignore[assignment]  # as many as there are parts
            scale_of(factors[0]), scale_of(factors[1]), scale_of(factors[2]), scale_of(factors[3]),
        )  # fmt: skip
    for part in tl.static_range(PARTS):
        column = (group * GROUP + part * (GROUP // PARTS) + tl.arange(0, GROUP // PARTS))[None, :]
        found = (numbers[part].to(tl.float32) * own[part]).to(tl.bfloat16)
        at = out + output.to(tl.int64)[:, None] * size + column
        tl.store(at, found, mask=is_output[:, None] & (column < size))


@triton.jit(do_not_specialize=["num_rows"])
def _product(
    vectors, weight, scales, bias, out, parts, arrivals, num_rows, num_outputs, size,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr, IS_FP8: tl.constexpr,
    CHUNKS: tl.constexpr, IS_SPLIT: tl.constexpr, FOLDS: tl.constexpr, IS_WHOLE: tl.constexpr, PTX: tl.constexpr,
    HAS_BIAS: tl.constexpr, IS_SUM: tl.constexpr,
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
            OUTPUTS, INPUTS, ROWS, BITS, IS_FP8, CHUNKS, FOLDS, IS_WHOLE, PTX,
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
            OUTPUTS, INPUTS, ROWS, BITS, IS_FP8, CHUNKS, FOLDS, IS_WHOLE, PTX,
        )  # fmt: skip
    else:
        sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
        for chunk in range(CHUNKS):
            sums += _product_of_chunk(
                vectors, weight, scales, output, is_output, row, chunk, num_rows, size,
                OUTPUTS, INPUTS, ROWS, BITS, IS_FP8, CHUNKS, FOLDS, IS_WHOLE, PTX,
            )  # fmt: skip
    if is_last:
        at = out + row.to(tl.int64)[None, :] * num_outputs + output[:, None]
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


@triton.jit(do_not_specialize=["num_rows"])
def _gated_product(
    vectors, weight, scales, out, num_rows, num_outputs, size,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr, IS_FP8: tl.constexpr,
    FOLDS: tl.constexpr, IS_WHOLE: tl.constexpr, PTX: tl.constexpr, IS_GELU: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < num_outputs
    other = output + num_outputs
    row = _row_of(ROWS, False)
    gates = tl.zeros([OUTPUTS, ROWS], tl.float32)
    ups = tl.zeros([OUTPUTS, ROWS], tl.float32)
    if BITS == 16:
        for start in range(0, size, INPUTS):
            column = start + tl.arange(0, INPUTS)
            read = _read(vectors, row, column, num_rows, size, IS_WHOLE)
            gates = tl.dot(read_weights(weight, output, is_output, column, size, IS_WHOLE), read, gates)
            ups = tl.dot(read_weights(weight, other, is_output, column, size, IS_WHOLE), read, ups)
    else:
        IS_AHEAD: tl.constexpr = BITS == 8 and not FOLDS
        own = factors_of(scales, output, is_output, 0, size, BITS)
        others = factors_of(scales, other, is_output, 0, size, BITS)
        for start in range(0, size, INPUTS):
            for part in tl.static_range(0, INPUTS, GROUP):
                group = (start + part) // GROUP
                if IS_AHEAD:
                    ahead = factors_of(scales, output, is_output, group + 1, size, BITS)
                    others_ahead = factors_of(scales, other, is_output, group + 1, size, BITS)
                else:
                    own = factors_of(scales, output, is_output, group, size, BITS)
                    others = factors_of(scales, other, is_output, group, size, BITS)
                reads = _parts_of(vectors, row, start + part, num_rows, size, 16 // BITS, IS_WHOLE)
                gates = _plus_group(
                    gates, reads, weight, own, output, is_output, group, size, BITS, IS_FP8, FOLDS, IS_WHOLE, PTX
                )
                ups = _plus_group(
                    ups, reads, weight, others, other, is_output, group, size, BITS, IS_FP8, FOLDS, IS_WHOLE, PTX
                )
                if IS_AHEAD:
                    own, others = ahead, others_ahead
    found = opened(gates, IS_GELU) * ups
    mask = (row < num_rows)[None, :] & is_output[:, None]
    tl.store(out + row.to(tl.int64)[None, :] * num_outputs + output[:, None], found.to(out.dtype.element_ty), mask=mask)
