"""Who multiplies with a matrix, for how many rows: kernels of our own, cut one way or another, or cuBLAS.

Never computes anything itself. The operations have one of the two: the fast ones, or those by which no row's bits
depend on the others.
"""

from collections.abc import Collection
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from loopwright.engine.cuda import product_kernels, tilings, wide_ways
from loopwright.engine.cuda.gate_kernels import gated
from loopwright.engine.cuda.matrices import Matrix, MatrixKind
from loopwright.engine.cuda.operations import WideUse
from loopwright.engine.cuda.wide_products import WideProducts

ADDED_ROWS = 1024
"""From so many on, cuBLAS adds a product to the residual stream itself. Of 128 and 256 it takes as long either way."""

PIECES = (1024, 512, 256)
"""Rows that cuBLAS multiplies at once, where no row's bits may depend on the others: each is tried by itself."""
_STEP = 16  # what fewer rows are a multiple of, as the batches of a decode step are

Use = Literal["project", "onto", "logits", "silu", "gelu"]
"""What becomes of a product: bfloat16, a sum with the residual stream, float32, or a gate with that activation."""


class Products(Protocol):
    """As Operations has them."""

    def measure(self, use: WideUse, matrix: Matrix) -> None: ...

    def project(self, vectors: Tensor, matrix: Matrix, bias: Tensor | None) -> Tensor: ...

    def logits(self, vectors: Tensor, head: Matrix) -> Tensor: ...

    def project_onto(self, residual: Tensor, vectors: Tensor, matrix: Matrix, bias: Tensor | None) -> Tensor | None: ...

    def gate(self, vectors: Tensor, gate_up: Matrix, *, is_gelu: bool) -> Tensor: ...


class FastProducts:
    """The fastest for each number of rows."""

    def __init__(self) -> None:
        self._arrivals, self._wide = Arrivals(), WideProducts(wide_ways.ways_of, wide_ways.seconds)

    def measure(self, use: WideUse, matrix: Matrix) -> None:
        self._wide.measure(use, _all_weights(matrix, torch.bfloat16))

    def project(self, vectors: Tensor, matrix: Matrix, bias: Tensor | None) -> Tensor:
        tiling = _fast_tiling(vectors, matrix)
        if tiling is None:
            weights = _all_weights(matrix, vectors.dtype)
            run = None if bias is not None else self._wide.run_for("project", len(vectors), weights)
            if run is None:
                return linear(vectors, weights, bias)
            out = torch.empty(len(vectors), matrix.num_outputs, dtype=vectors.dtype, device=vectors.device)
            run(vectors, weights, out)
            return out
        return product_kernels.product(vectors, matrix, bias, tiling, arrivals=self._arrivals.of(tiling, vectors))

    def logits(self, vectors: Tensor, head: Matrix) -> Tensor:
        tiling = _fast_tiling(vectors, head) if head.kind != "plain" else None
        if tiling is not None:
            arrivals = self._arrivals.of(tiling, vectors)
            return product_kernels.product(vectors, head, None, tiling, torch.float32, arrivals)
        weights = _all_weights(head, vectors.dtype)
        if vectors.dtype == torch.float32 or not vectors.is_cuda:
            return linear(vectors, weights).float()
        return torch.mm(vectors, weights.T, out_dtype=torch.float32)

    def project_onto(self, residual: Tensor, vectors: Tensor, matrix: Matrix, bias: Tensor | None) -> Tensor | None:
        tiling = _fast_tiling(vectors, matrix)
        if tiling is not None:
            arrivals = self._arrivals.of(tiling, vectors)
            product_kernels.add_product(vectors, matrix, bias, residual, tiling, arrivals)
            return None
        weights = _all_weights(matrix, vectors.dtype)
        if bias is None and vectors.is_cuda and vectors.dtype == torch.bfloat16 and len(vectors) >= ADDED_ROWS:
            if (run := self._wide.run_for("onto", len(vectors), weights)) is not None:
                run(vectors, weights, residual)
                return None
            torch.addmm(residual, vectors, weights.T, out_dtype=torch.float32, out=residual)
            return None
        return linear(vectors, weights, bias)

    def gate(self, vectors: Tensor, gate_up: Matrix, *, is_gelu: bool) -> Tensor:
        tiling = _fast_tiling(vectors, gate_up, is_gated=True)
        if tiling is not None:
            return product_kernels.gated_product(vectors, gate_up, tiling, is_gelu=is_gelu)
        out = torch.empty(len(vectors), gate_up.num_outputs // 2, dtype=vectors.dtype, device=vectors.device)
        weights = _all_weights(gate_up, vectors.dtype)
        if (run := self._wide.run_for("gelu" if is_gelu else "silu", len(vectors), weights)) is not None:
            run(vectors, weights, out)
        else:
            gated(linear(vectors, weights), out, is_gelu=is_gelu)
        return out


class OwnProducts:
    """All add up in the same order, whatever the number of rows. Those of the kinds `alike` are cut as is best for that
    number, all others in one way. cuBLAS multiplies as many rows of a plain matrix as were seen to get the same bits
    from it: of each size of matrix, number of rows and use that is tried on random vectors, and all results are looked
    at, when it first comes up. cuBLAS takes one kernel for the same sizes, and what comes first is no captured step."""

    def __init__(self, alike: Collection[MatrixKind]) -> None:
        self._alike = alike
        self._arrivals = Arrivals()
        self._is_equal: dict[tuple[Use, int, int, int], bool] = {}

    def measure(self, use: WideUse, matrix: Matrix) -> None:
        """Nothing: what a way is trusted for is not its speed."""

    def project(self, vectors: Tensor, matrix: Matrix, bias: Tensor | None) -> Tensor:
        out = torch.empty(len(vectors), matrix.num_outputs, dtype=vectors.dtype, device=vectors.device)
        self._multiply("project", vectors, matrix, out, bias)
        return out

    def logits(self, vectors: Tensor, head: Matrix) -> Tensor:
        out = torch.empty(len(vectors), head.num_outputs, dtype=torch.float32, device=vectors.device)
        self._multiply("logits", vectors, head, out)
        return out

    def project_onto(self, residual: Tensor, vectors: Tensor, matrix: Matrix, bias: Tensor | None) -> Tensor | None:
        self._multiply("onto", vectors, matrix, residual, bias)
        return None

    def gate(self, vectors: Tensor, gate_up: Matrix, *, is_gelu: bool) -> Tensor:
        out = torch.empty(len(vectors), gate_up.num_outputs // 2, dtype=vectors.dtype, device=vectors.device)
        self._multiply("gelu" if is_gelu else "silu", vectors, gate_up, out)
        return out

    def _multiply(self, use: Use, vectors: Tensor, matrix: Matrix, out: Tensor, bias: Tensor | None = None) -> None:
        assert vectors.dtype == torch.bfloat16, vectors.dtype
        begin = 0
        if bias is None and matrix.kind == "plain":
            while size := self._piece(use, matrix, len(vectors) - begin, vectors.device):
                by_cublas(use, vectors[begin : begin + size], matrix, out[begin : begin + size])
                begin += size
        if begin < len(vectors):
            self._by_kernels(use, vectors[begin:], matrix, out[begin:], bias)

    def _piece(self, use: Use, matrix: Matrix, num_rows: int, device: torch.device) -> int:
        """How many of so many rows cuBLAS multiplies next."""
        for size in _pieces(use):
            if num_rows >= size and self.gives_equal_bits(use, matrix, size, device):
                return size
        is_step = tilings.NARROW_ROWS < num_rows < PIECES[-1] and num_rows % _STEP == 0
        return num_rows if is_step and self.gives_equal_bits(use, matrix, num_rows, device) else 0

    def gives_equal_bits(self, use: Use, matrix: Matrix, num_rows: int, device: torch.device) -> bool:
        """Whether cuBLAS does, of so many rows of such a matrix. While a graph is captured, nothing new is tried; what
        is new is tried in pieces too, so that prompts need not: the steps before a capture come first."""
        key = use, matrix.num_outputs, matrix.size
        if (*key, num_rows) not in self._is_equal:
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return False
            for size in {num_rows, *_pieces(use)}:
                if (*key, size) not in self._is_equal:
                    self._is_equal[*key, size] = self._try(use, matrix, size, device)
        return self._is_equal[*key, num_rows]

    def _try(self, use: Use, matrix: Matrix, num_rows: int, device: torch.device) -> bool:
        generator = torch.Generator(device).manual_seed(num_rows)
        num_outputs = matrix.num_outputs // 2 if use in ("silu", "gelu") else matrix.num_outputs
        dtype = torch.float32 if use in ("onto", "logits") else torch.bfloat16
        try:
            vectors = torch.randn(num_rows, matrix.size, generator=generator, device=device).bfloat16()
            found = torch.empty(num_rows, num_outputs, dtype=dtype, device=device)
            if use == "onto":
                found.normal_(generator=generator)
            expected = found.clone()
            by_cublas(use, vectors, matrix, found)
        except torch.OutOfMemoryError:  # what it takes beside two results is what the product would take
            return False
        self._by_kernels(use, vectors, matrix, expected, None)
        return torch.equal(found, expected)

    def _by_kernels(self, use: Use, vectors: Tensor, matrix: Matrix, out: Tensor, bias: Tensor | None) -> None:
        is_gated = use in ("silu", "gelu")
        tiling = tilings.own_tiling(matrix, len(vectors), self._alike, is_gated=is_gated)
        arrivals = self._arrivals.of(tiling, vectors)
        if is_gated:
            product_kernels.gated_product(vectors, matrix, tiling, is_gelu=use == "gelu", out=out)
        elif use == "onto":
            product_kernels.add_product(vectors, matrix, bias, out, tiling, arrivals)
        else:
            product_kernels.product(vectors, matrix, bias, tiling, arrivals=arrivals, out=out)


def _pieces(use: Use) -> tuple[int, ...]:
    """Of more rows, logits would take the memory of others."""
    return PIECES[-1:] if use == "logits" else PIECES


def by_cublas(use: Use, vectors: Tensor, matrix: Matrix, out: Tensor) -> None:
    """Of a plain matrix, into `out`; float32 until it is rounded once. Without a GPU torch's in its place."""
    weights = matrix.values.T
    if use in ("silu", "gelu"):
        gated(_in_float32(vectors, weights), out, is_gelu=use == "gelu")
    elif not vectors.is_cuda:
        out.copy_(_in_float32(vectors, weights) + out if use == "onto" else _in_float32(vectors, weights))
    elif use == "onto":
        torch.addmm(out, vectors, weights, out_dtype=torch.float32, out=out)
    elif use == "logits":
        torch.mm(vectors, weights, out_dtype=torch.float32, out=out)
    else:
        torch.mm(vectors, weights, out=out)


def _in_float32(vectors: Tensor, weights: Tensor) -> Tensor:
    if vectors.is_cuda:
        return torch.mm(vectors, weights, out_dtype=torch.float32)
    return vectors.float() @ weights.float()


class Arrivals:
    """Zeros for products that are split, which every launch leaves as it finds them: all are on one stream."""

    def __init__(self) -> None:
        self._zeros: Tensor | None = None

    def of(self, tiling: tilings.Tiling, vectors: Tensor) -> Tensor | None:
        if tiling.is_split and self._zeros is None:
            self._zeros = torch.zeros(tilings.ARRIVALS, dtype=torch.int32, device=vectors.device)
        return self._zeros


def _fast_tiling(vectors: Tensor, matrix: Matrix, *, is_gated: bool = False) -> tilings.Tiling | None:
    if vectors.dtype != torch.bfloat16:
        return None
    return tilings.tiling_for(matrix, len(vectors), is_gated=is_gated)


def _all_weights(matrix: Matrix, dtype: torch.dtype) -> Tensor:
    """For cuBLAS."""
    if matrix.kind == "plain" or dtype != torch.bfloat16:
        return matrix.weights().to(dtype)
    return product_kernels.numbers(matrix)
