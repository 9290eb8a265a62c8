"""The gate of an MLP in the product that makes it, for thousands of rows: what is gated never leaves the chip.

For GPUs whose copy engine fetches tiles (Hopper and later). Called by the products where it was measured to be faster
than cuBLAS with a gate behind it.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from loopwright.engine.cuda.gate_kernels import opened

ROWS, OUTPUTS, INPUTS = 128, 128, 64
"""Of a tile, and of one round of it."""
_GROUP = 8  # tiles of rows that share what they read of the weights


def gated_product(
    vectors: Tensor, weights: Tensor, out: Tensor, *, is_gelu: bool, num_programs: int
) -> None:  # fmt: skip
    """silu(gate) · up, or gelu's, of vectors [num_rows, size] and weights [2 · outputs, size], gates above ups, into
    `out` [num_rows, outputs]: all bfloat16, and rounded once. A row of either takes a multiple of 16 bytes."""
    (num_rows, size), num_outputs = vectors.shape, out.shape[1]
    _gated_product[(num_programs,)](
        TensorDescriptor(vectors, [num_rows, size], [size, 1], [ROWS, INPUTS]),
        TensorDescriptor(weights, [2, num_outputs, size], [num_outputs * size, size, 1], [2, OUTPUTS, INPUTS]),
        TensorDescriptor(out, [num_rows, num_outputs], [num_outputs, 1], [ROWS, OUTPUTS]),
        num_rows, num_outputs, size, ROWS=ROWS, OUTPUTS=OUTPUTS, INPUTS=INPUTS, GROUP=_GROUP, PROGRAMS=num_programs,
        IS_GELU=is_gelu, num_warps=8, num_stages=3,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows"])
def _gated_product(
    vectors, weights, out, num_rows, num_outputs, size, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr, GROUP: tl.constexpr, PROGRAMS: tl.constexpr, IS_GELU: tl.constexpr,
):  # fmt: skip
    row_tiles, output_tiles = tl.cdiv(num_rows, ROWS), tl.cdiv(num_outputs, OUTPUTS)
    for tile in tl.range(tl.program_id(0), row_tiles * output_tiles, PROGRAMS, flatten=True):
        first = tile // (GROUP * output_tiles) * GROUP
        height = tl.minimum(row_tiles - first, GROUP)
        row, output = (first + tile % height) * ROWS, tile % (GROUP * output_tiles) // height * OUTPUTS
        both = tl.zeros((ROWS, 2 * OUTPUTS), tl.float32)
        for start in range(0, size, INPUTS):
            left = vectors.load([row, start])
            right = weights.load([0, output, start]).reshape(2 * OUTPUTS, INPUTS)
            both = tl.dot(left, right.T, both)
        gate, up = both.reshape(ROWS, 2, OUTPUTS).permute(0, 2, 1).split()
        out.store([row, output], (opened(gate, IS_GELU) * up).to(out.dtype))
