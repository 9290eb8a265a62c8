"""Products of vectors with a weight matrix as Triton kernels, with the sum or the gate that follows in one launch.

For up to 32 rows a matrix is read once, and reading it is all that takes time; cuBLAS reads matrices of a few megabytes
more slowly, and splits some over two launches. Weights of 8 and 4 bits are made numbers again between two reads. What a
row gets depends on how a matrix is cut and on nothing else: not on how many rows there are, nor on which it is.
"""

from collections.abc import Callable, Iterator
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
)
from loopwright.engine.cuda.gate_kernels import opened
from loopwright.engine.cuda.matrices import Matrix, MatrixKind
from loopwright.engine.cuda.summing_kernels import parts_of, plus_group, read_vectors, rows_of, sums_of_chunk, totals_of
from loopwright.engine.cuda.tilings import ARRIVALS, SPAN, Tiling, num_tiles, own_sizes, own_tiling

HAS_PTX = not triton.knobs.runtime.interpret
"""Whether numbers of few bits become bfloat16 by instructions of our own: the interpreter has none."""

TRIED_OUTPUTS, TRIED_SIZES = 144, (512, 4096)
"""Of the matrices that `agree` tries; the latter is multiplied in parts, where matrices of its kind are."""
_ROW_TILES = 64  # that go through the matrix together: their vectors stay in the second-level cache


def product(
    vectors: Tensor, matrix: Matrix, bias: Tensor | None, tiling: Tiling, dtype: torch.dtype = torch.bfloat16,
    arrivals: Tensor | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """[num_rows, size] → [num_rows, num_outputs], in bfloat16 or float32, or into `out`. `arrivals` are zeros that only
    launches on one stream share, int32, one for each tile of outputs and rows: for a tiling that is split."""
    if out is None:
        out = torch.empty(len(vectors), matrix.num_outputs, dtype=dtype, device=vectors.device)
    _launch_product(vectors, matrix, bias, out, tiling, arrivals, is_sum=False)
    return out


def add_product(
    vectors: Tensor, matrix: Matrix, bias: Tensor | None, residual: Tensor, tiling: Tiling,
    arrivals: Tensor | None = None,
) -> None:  # fmt: skip
    """residual += matrix · vectors + bias, in place: [num_rows, size], float32 [num_rows, num_outputs]."""
    _launch_product(vectors, matrix, bias, residual, tiling, arrivals, is_sum=True)


def gated_product(
    vectors: Tensor, gate_up: Matrix, tiling: Tiling, *, is_gelu: bool = False, out: Tensor | None = None
) -> Tensor:
    """silu(gate) · up, or gelu's tanh approximation instead, gates above ups in `gate_up`: [num_rows, size] →
    [num_rows, num_outputs / 2], or into `out`."""
    if out is None:
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
    """Whether all ways of `own_tiling` give the bits of FIXED on this device."""
    return all(is_equal for _, is_equal in compared(kind, device))


def compared(kind: MatrixKind, device: torch.device) -> Iterator[tuple[Tiling, bool]]:
    """Each way of `own_tiling`, and whether it gives the bits of FIXED; tried with sizes that end within a tile, in one
    part and in several."""
    generator = torch.Generator(device).manual_seed(0)
    arrivals = torch.zeros(ARRIVALS, dtype=torch.int32, device=device)
    sizes = own_sizes(kind)
    vectors = torch.randn(sizes[-1], TRIED_SIZES[-1], generator=generator, device=device).bfloat16()
    for size in TRIED_SIZES:
        weights = torch.randn(TRIED_OUTPUTS, size, generator=generator, device=device)
        matrix, own = Matrix.of(weights, kind, device, torch.bfloat16), vectors[:, :size].contiguous()
        for is_gated in (False, True):
            tiling_of = partial(own_tiling, matrix, is_gated=is_gated)
            multiply: Callable[..., Tensor] = partial(gated_product, gate_up=matrix)
            if not is_gated:
                multiply = partial(product, matrix=matrix, bias=None, dtype=torch.float32, arrivals=arrivals)
            expected = multiply(own, tiling=tiling_of(len(own), ()))
            for num_rows in sizes:
                tiling = tiling_of(num_rows, (kind,))
                yield tiling, torch.equal(multiply(own[:num_rows], tiling=tiling), expected[:num_rows])


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
        IS_FP8=matrix.kind == "fp8", FOLDS=tiling.folds, IS_WHOLE=_is_whole(size, tiling),
        PTX=HAS_PTX, num_warps=tiling.num_warps, num_stages=tiling.num_stages, **options,
    )  # fmt: skip


def _is_whole(size: int, tiling: Tiling) -> bool:
    """Whether every round of every part has all of its inputs."""
    return size % SPAN == 0 and SPAN % tiling.inputs == 0


def _bits(matrix: Matrix) -> int:
    return {"plain": 16, "int4": 4}.get(matrix.kind, 8)


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
    CHUNKS: tl.constexpr, IS_SPLIT: tl.constexpr, FOLDS: tl.constexpr, IS_WHOLE: tl.constexpr,
    PTX: tl.constexpr, HAS_BIAS: tl.constexpr, IS_SUM: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < num_outputs
    row = rows_of(ROWS, IS_SPLIT)
    place = row.to(tl.int64)[None, :] * num_outputs + output[:, None]
    mask = (row < num_rows)[None, :] & is_output[:, None]
    is_last = True
    if IS_SPLIT:
        chunk = tl.program_id(2)
        sums = sums_of_chunk(
            vectors, weight, scales, output, is_output, row, chunk, num_rows, size,
            OUTPUTS, INPUTS, ROWS, BITS, IS_FP8, CHUNKS, FOLDS, IS_WHOLE, PTX,
        )  # fmt: skip
        own = parts + place
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
        sums = sums_of_chunk(
            vectors, weight, scales, output, is_output, row, 0, num_rows, size,
            OUTPUTS, INPUTS, ROWS, BITS, IS_FP8, CHUNKS, FOLDS, IS_WHOLE, PTX,
        )  # fmt: skip
    else:
        sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
        for chunk in range(CHUNKS):
            sums += sums_of_chunk(
                vectors, weight, scales, output, is_output, row, chunk, num_rows, size,
                OUTPUTS, INPUTS, ROWS, BITS, IS_FP8, CHUNKS, FOLDS, IS_WHOLE, PTX,
            )  # fmt: skip
    if is_last:
        at = out + place
        if HAS_BIAS:
            sums += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)[:, None]
        if IS_SUM:
            sums += tl.load(at, mask=mask, other=0.0)
        tl.store(at, sums.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def _gated_product(
    vectors, weight, scales, out, num_rows, num_outputs, size,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr, IS_FP8: tl.constexpr,
    FOLDS: tl.constexpr, IS_WHOLE: tl.constexpr, PTX: tl.constexpr, IS_GELU: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < num_outputs
    other = output + num_outputs
    row = rows_of(ROWS, False)
    gates = tl.zeros([OUTPUTS, ROWS], tl.float32)
    ups = tl.zeros([OUTPUTS, ROWS], tl.float32)
    if BITS == 16:
        for start in range(0, size, INPUTS):
            column = start + tl.arange(0, INPUTS)
            read = read_vectors(vectors, row, column, num_rows, size, IS_WHOLE)
            gates = tl.dot(read_weights(weight, output, is_output, column, size, IS_WHOLE), read, gates)
            ups = tl.dot(read_weights(weight, other, is_output, column, size, IS_WHOLE), read, ups)
    else:
        own = factors_of(scales, output, is_output, 0, size, BITS)
        others = factors_of(scales, other, is_output, 0, size, BITS)
        for start in range(0, size, INPUTS):
            for part in tl.static_range(0, INPUTS, GROUP):
                group = (start + part) // GROUP
                if FOLDS:
                    own = factors_of(scales, output, is_output, group, size, BITS)
                    others = factors_of(scales, other, is_output, group, size, BITS)
                else:
                    ahead = factors_of(scales, output, is_output, group + 1, size, BITS)
                    others_ahead = factors_of(scales, other, is_output, group + 1, size, BITS)
                reads = parts_of(vectors, row, start + part, num_rows, size, 16 // BITS, IS_WHOLE)
                totals = totals_of(reads, OUTPUTS) if BITS == 4 and not FOLDS else reads
                gates = plus_group(
                    gates, reads, totals, weight, own, output, is_output, group, size, BITS, IS_FP8, FOLDS,
                    IS_WHOLE, PTX,
                )  # fmt: skip
                ups = plus_group(
                    ups, reads, totals, weight, others, other, is_output, group, size, BITS, IS_FP8, FOLDS,
                    IS_WHOLE, PTX,
                )  # fmt: skip
                if not FOLDS:
                    own, others = ahead, others_ahead
    found = opened(gates, IS_GELU) * ups
    place = row.to(tl.int64)[None, :] * num_outputs + output[:, None]
    mask = (row < num_rows)[None, :] & is_output[:, None]
    tl.store(out + place, found.to(out.dtype.element_ty), mask=mask)
