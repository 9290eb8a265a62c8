"""What Triton 3.6's interpreter needs to run these kernels: bounds of loops under numpy 2.4, products of bfloat16.

A product here adds up in one order, element by element, as a tensor core's instruction does whatever the tile is: the
interpreter's own asks a BLAS, whose order depends on where an element lies.
"""

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def repair() -> None:
    """Once, before the first launch."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patched
    interpreter.InterpreterBuilder.create_dot = _dot


def _dot(builder, left, right, sums, *options):
    left, right, found = _float32(left), _float32(right), sums.data.copy()
    for inner in range(left.shape[1]):
        found += left[:, inner, None] * right[None, inner]
    return interpreter.TensorHandle(found, sums.dtype.scalar)


def _float32(handle):
    """bfloat16 is kept as the bits of its upper half."""
    if handle.dtype.scalar == tl.bfloat16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32)
    return handle.data
