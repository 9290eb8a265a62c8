"""The gate of an MLP as a Triton kernel, for where the product before it is cuBLAS's.

What opens it is also for the kernels that gate in the launch that multiplies. Called by the products.
"""

import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 1024  # of one program


def gated(side_by_side: Tensor, out: Tensor, *, is_gelu: bool) -> None:
    """silu(gate) · up, or gelu's tanh approximation, into `out` [num_tokens, size]: of gates beside ups [num_tokens,
    2 · size], in bfloat16 or float32."""
    num_tokens, size = out.shape
    _gated[(num_tokens, triton.cdiv(size, _COLUMNS))](side_by_side, out, size, BLOCK=_COLUMNS, IS_GELU=is_gelu)


@triton.jit
def opened(gates, IS_GELU: tl.constexpr):
    """silu, or the tanh approximation of gelu: x · sigmoid(x), or of 2 · sqrt(2 / pi) · (x + 0.044715 · x³)."""
    slope = gates
    if IS_GELU:
        slope = 1.5957691216057308 * (gates + 0.044715 * gates * gates * gates)
    return gates / (1.0 + tl.exp(-slope))


@triton.jit
def _gated(gate_up, out, size, BLOCK: tl.constexpr, IS_GELU: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < size
    gate = tl.load(gate_up + token * 2 * size + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + token * 2 * size + size + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + token * size + column, (opened(gate, IS_GELU) * up).to(out.dtype.element_ty), mask=mask)
