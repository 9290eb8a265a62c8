"""cuBLASLt by its C interface: the products of bfloat16 in each of the ways that it suggests.

torch takes the first one; another may be faster by some hundredths where thousands of rows are multiplied. Never
chooses: `wide_products` measures. There is none without CUDA, and nothing here runs then.
"""

import ctypes
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

NUM_WAYS = 8
_WORKSPACE_BYTES = 32 << 20
_FLOAT, _BFLOAT16, _COMPUTE_FLOAT = 0, 14, 68  # cudaDataType_t, cublasComputeType_t
_TRANSPOSED = 3  # CUBLASLT_MATMUL_DESC_TRANSA
_MAX_WORKSPACE, _REDUCTIONS = 1, 3  # CUBLASLT_MATMUL_PREF_…
_IN_FLOAT = 3  # parts of a sum are added in float32, if a product is split
_KEPT_SIZES = 64


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class LtWay:
    """One way to multiply; `waves` is how often it fills the device at the size that it was suggested for."""

    algorithm: Any
    waves: float


@cache
def library() -> Any:  # noqa: ANN401 (ctypes has no types for functions)
    """The one that torch has loaded; None if there is none."""
    if not torch.cuda.is_available() or torch.version.hip:
        return None
    torch.cuda.current_blas_handle()
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines() if Path("/proc/self/maps").exists() else []
    path = next((line.split()[-1] for line in lines if "libcublasLt.so" in line), None)
    return None if path is None else ctypes.CDLL(path)


class LtProduct:
    """vectors [rows, size] · weights [outputs, size]ᵀ, in bfloat16, or added to float32."""

    def __init__(self, num_outputs: int, size: int, *, is_added: bool, device: torch.device) -> None:
        self._outputs, self._size = num_outputs, size
        self._dtype = _FLOAT if is_added else _BFLOAT16
        self._handle, self._description = ctypes.c_void_p(), ctypes.c_void_p()
        _call("cublasLtCreate", ctypes.byref(self._handle))
        _call("cublasLtMatmulDescCreate", ctypes.byref(self._description), _COMPUTE_FLOAT, _FLOAT)
        one = ctypes.c_int32(1)
        _call("cublasLtMatmulDescSetAttribute", self._description, _TRANSPOSED, ctypes.byref(one), ctypes.c_size_t(4))
        self._weights = _layout(_BFLOAT16, size, num_outputs, size)
        self._sizes: OrderedDict[int, tuple[ctypes.c_void_p, ctypes.c_void_p]] = OrderedDict()
        self._one, self._old = ctypes.c_float(1.0), ctypes.c_float(1.0 if is_added else 0.0)
        self._workspace = _workspace(device)

    def ways(self, num_rows: int) -> list[LtWay]:
        """What it suggests for so many rows, the best by its own estimate first."""
        preference = ctypes.c_void_p()
        _call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        room, reductions = ctypes.c_size_t(_WORKSPACE_BYTES), ctypes.c_uint32(_IN_FLOAT)
        for name, value in ((_MAX_WORKSPACE, room), (_REDUCTIONS, reductions)):
            size = ctypes.c_size_t(ctypes.sizeof(value))
            _call("cublasLtMatmulPreferenceSetAttribute", preference, name, ctypes.byref(value), size)
        found, num_found = (_Heuristic * NUM_WAYS)(), ctypes.c_int()
        vectors, out = self._layouts(num_rows)
        _call(
            "cublasLtMatmulAlgoGetHeuristic", self._handle, self._description, self._weights, vectors, out, out,
            preference, NUM_WAYS, found, ctypes.byref(num_found),
        )  # fmt: skip
        _call("cublasLtMatmulPreferenceDestroy", preference)
        return [LtWay(one.algorithm, one.waves) for one in found[: num_found.value] if one.state == 0]

    def waves(self, way: LtWay, num_rows: int) -> float | None:
        """As of the way, for another number of rows; None if it cannot multiply those."""
        vectors, out = self._layouts(num_rows)
        result = _Heuristic()
        status = library().cublasLtMatmulAlgoCheck(
            self._handle, self._description, self._weights, vectors, out, out, ctypes.byref(way.algorithm),
            ctypes.byref(result),
        )  # fmt: skip
        return None if status or result.state or result.workspace > _WORKSPACE_BYTES else float(result.waves)

    def multiply(self, way: LtWay, vectors: Tensor, weights: Tensor, out: Tensor) -> None:
        """Into `out` [rows, outputs], or onto it; on the current stream."""
        rows, result = self._layouts(len(vectors))
        read, written = _pointer(weights), _pointer(out)
        _call(
            "cublasLtMatmul", self._handle, self._description, ctypes.byref(self._one), read, self._weights,
            _pointer(vectors), rows, ctypes.byref(self._old), written, result, written, result,
            ctypes.byref(way.algorithm), _pointer(self._workspace), ctypes.c_size_t(_WORKSPACE_BYTES),
            ctypes.c_void_p(torch.cuda.current_stream(vectors.device).cuda_stream),
        )  # fmt: skip

    def _layouts(self, num_rows: int) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        found = self._sizes.get(num_rows)
        if found is None:
            if len(self._sizes) == _KEPT_SIZES:
                for layout in self._sizes.popitem(last=False)[1]:
                    _call("cublasLtMatrixLayoutDestroy", layout)
            vectors = _layout(_BFLOAT16, self._size, num_rows, self._size)
            found = vectors, _layout(self._dtype, self._outputs, num_rows, self._outputs)
            self._sizes[num_rows] = found
        return found


def _layout(dtype: int, num_rows: int, num_columns: int, stride: int) -> ctypes.c_void_p:
    """Of a matrix whose columns are contiguous, as cuBLAS has them."""
    layout, sizes = ctypes.c_void_p(), (ctypes.c_uint64(num_rows), ctypes.c_uint64(num_columns))
    _call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), dtype, *sizes, ctypes.c_int64(stride))
    return layout


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


@cache
def _workspace(device: torch.device) -> Tensor:
    """All products are on one stream, so they share it."""
    return torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _call(name: str, *arguments: Any) -> None:  # noqa: ANN401 (whatever the C function takes)
    status = getattr(library(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} failed with status {status}")
