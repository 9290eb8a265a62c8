"""Products of few rows with a weight matrix as Triton kernels, with the sum or the gate that follows in one launch.

For up to 32 rows a matrix is read once, and reading it is all that takes time; cuBLAS reads matrices of a few megabytes
more slowly, and splits some over two launches.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_ROWS = 32


@dataclass(frozen=True, slots=True)
class NarrowTiling:
    """How a matrix is cut: `outputs` and `inputs` of one round of a program."""

    outputs: int
    inputs: int
    num_warps: int
    num_stages: int


PRODUCT = {16: NarrowTiling(16, 256, 2, 5), 32: NarrowTiling(32, 256, 4, 4)}
GATED = {16: NarrowTiling(32, 128, 2, 6), 32: NarrowTiling(64, 128, 8, 4)}
"""By the most rows: the best of some dozen, measured at Llama's sizes on one H200."""


def product(vectors: Tensor, weight: Tensor, tiling: NarrowTiling | None = None) -> Tensor:
    """[num_rows, size], [outputs, size] → [num_rows, outputs]."""
    out = torch.empty(len(vectors), len(weight), dtype=weight.dtype, device=vectors.device)
    _launch(_product, vectors, weight, out, tiling or PRODUCT[_rows(vectors)], IS_SUM=False)
    return out


def add_product(vectors: Tensor, weight: Tensor, residual: Tensor, tiling: NarrowTiling | None = None) -> None:
    """residual += weight · vectors, in place: [num_rows, size], float32 [num_rows, outputs]."""
    _launch(_product, vectors, weight, residual, tiling or PRODUCT[_rows(vectors)], IS_SUM=True)


def gated_product(vectors: Tensor, gate_up: Tensor, tiling: NarrowTiling | None = None) -> Tensor:
    """silu(gate) · up, gates above ups in `gate_up`: [num_rows, size], [2 · outputs, size] → [num_rows, outputs]."""
    out = torch.empty(len(vectors), len(gate_up) // 2, dtype=gate_up.dtype, device=vectors.device)
    _launch(_gated_product, vectors, gate_up, out, tiling or GATED[_rows(vectors)])
    return out


def _rows(vectors: Tensor) -> int:
    """A kernel is compiled for 16 rows or 32."""
    return 16 if len(vectors) <= 16 else MAX_ROWS


def _launch(  # the kernels have no types
    kernel, vectors: Tensor, weight: Tensor, out: Tensor, tiling: NarrowTiling, **options: bool
) -> None:
    num_rows, size = vectors.shape
    num_outputs = out.shape[1]
    kernel[(triton.cdiv(num_outputs, tiling.outputs),)](
        vectors, weight, out, num_rows, num_outputs, size, OUTPUTS=tiling.outputs, INPUTS=tiling.inputs,
        ROWS=_rows(vectors), num_warps=tiling.num_warps, num_stages=tiling.num_stages, **options,
    )  # fmt: skip


@triton.jit
def _product(
    vectors, weight, out, num_rows, num_outputs, size,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, IS_SUM: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.arange(0, ROWS)
    sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for first in range(0, size, INPUTS):
        column = first + tl.arange(0, INPUTS)
        weights = tl.load(
            weight + output.to(tl.int64)[:, None] * size + column[None, :],
            mask=(output < num_outputs)[:, None] & (column < size)[None, :], other=0.0,
        )  # fmt: skip
        read = tl.load(
            vectors + row[None, :] * size + column[:, None],
            mask=(row < num_rows)[None, :] & (column < size)[:, None], other=0.0,
        )  # fmt: skip
        sums += tl.dot(weights, read)
    at = out + row.to(tl.int64)[None, :] * num_outputs + output[:, None]
    mask = (row < num_rows)[None, :] & (output < num_outputs)[:, None]
    if IS_SUM:
        sums += tl.load(at, mask=mask, other=0.0)
    tl.store(at, sums.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _gated_product(
    vectors, weight, out, num_rows, num_outputs, size,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.arange(0, ROWS)
    gates = tl.zeros([OUTPUTS, ROWS], tl.float32)
    ups = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for first in range(0, size, INPUTS):
        column = first + tl.arange(0, INPUTS)
        mask = (output < num_outputs)[:, None] & (column < size)[None, :]
        at = weight + output.to(tl.int64)[:, None] * size + column[None, :]
        read = tl.load(
            vectors + row[None, :] * size + column[:, None],
            mask=(row < num_rows)[None, :] & (column < size)[:, None], other=0.0,
        )  # fmt: skip
        gates += tl.dot(tl.load(at, mask=mask, other=0.0), read)
        ups += tl.dot(tl.load(at + num_outputs.to(tl.int64) * size, mask=mask, other=0.0), read)
    found = gates / (1.0 + tl.exp(-gates)) * ups
    mask = (row < num_rows)[None, :] & (output < num_outputs)[:, None]
    tl.store(out + row.to(tl.int64)[None, :] * num_outputs + output[:, None], found.to(out.dtype.element_ty), mask=mask)
