"""How fast each way of cutting a product is on this GPU, at Llama's sizes: what engine.cuda.tilings is chosen by.

Prints microseconds by tiling and matrix, for some numbers of rows, beside cuBLAS in bf16. A matrix is read from memory
each time: a graph has as many copies as no second-level cache holds. Every result is compared with torch's.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from loopwright.engine.cuda import product_kernels, tilings
from loopwright.engine.cuda.matrices import Matrix, MatrixKind
from loopwright.engine.cuda.products import OwnProducts
from loopwright.engine.cuda.tilings import Tiling

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from loopwright.engine.cuda.products import Use

CUDA = torch.device("cuda")
SHAPES = {
    "1b.qkv": (3072, 2048), "1b.out": (2048, 2048), "1b.gate": (16384, 2048), "1b.down": (2048, 8192),
    "8b.qkv": (6144, 4096), "8b.out": (4096, 4096), "8b.gate": (28672, 4096), "8b.down": (4096, 14336),
    "8b.head": (128256, 4096),
}  # fmt: skip
USES: dict[str, Use] = {"qkv": "project", "out": "onto", "gate": "silu", "down": "onto", "head": "logits"}
CUBLAS_ROWS = (48, 64, 96, 128, 160, 192, 224, 240, 256, 512, 1024)
COLD_BYTES = 160_000_000  # of copies of a matrix


def split(tiling: Tiling, *chunks: int) -> list[Tiling]:
    """In so many parts; 1 is in one."""
    return [tiling if one == 1 else replace(tiling, chunks=one, is_split=True) for one in chunks]


def folded(*some: Tiling) -> list[Tiling]:
    return [replace(one, folds=True) for one in some]


WIDE = folded(*split(Tiling(128, 128, 128, 8, 3), 1, 2, 4), *split(Tiling(64, 128, 128, 4, 3), 2, 4))
WIDE_GATED = folded(Tiling(128, 128, 128, 8, 2), Tiling(64, 64, 128, 4, 3), Tiling(64, 128, 128, 8, 3))
WAYS: dict[tuple[MatrixKind, int], tuple[list[Tiling], list[Tiling]]] = {
    ("plain", 1): ([tilings.FIXED, tilings.PRODUCT[0]], [tilings.FIXED, tilings.GATED[0]]),
    ("plain", 32): ([tilings.FIXED, tilings.PRODUCT[1]], [tilings.FIXED, tilings.GATED[1]]),
    ("plain", 256): (
        [Tiling(32, 128, 128, 4, 3), Tiling(64, 128, 128, 8, 3), Tiling(64, 64, 128, 4, 4)],
        [Tiling(32, 128, 128, 8, 3), Tiling(64, 128, 128, 8, 3)],
    ),
    ("int8", 1): (
        [*split(Tiling(32, 8, 256, 2, 5), 1, 2, 4), *split(Tiling(64, 16, 128, 4, 6), 4)],
        [Tiling(32, 8, 128, 2, 6), Tiling(64, 16, 128, 4, 4)],
    ),
    ("int8", 32): ([*split(Tiling(64, 32, 128, 4, 5), 1, 2, 4)], [Tiling(64, 32, 128, 4, 4)]),
    ("int8", 64): (
        folded(Tiling(64, 64, 128, 4, 4), *split(Tiling(64, 64, 128, 4, 4), 4)), folded(Tiling(64, 64, 128, 4, 3)),
    ),
    ("int8", 128): (WIDE, WIDE_GATED),
    ("int8", 256): (WIDE, WIDE_GATED),
    ("int4", 1): (
        [*split(Tiling(32, 8, 256, 2, 5), 1, 2, 4), *split(Tiling(64, 16, 128, 4, 6), 4)],
        [Tiling(32, 8, 128, 2, 6), Tiling(32, 8, 256, 2, 4), Tiling(64, 16, 128, 4, 4)],
    ),
    ("int4", 32): (
        [*split(Tiling(64, 32, 128, 4, 5), 1, 2, 4), *split(Tiling(64, 32, 256, 4, 3), 4)],
        [Tiling(64, 32, 128, 4, 4), Tiling(32, 32, 256, 2, 3)],
    ),
    ("int4", 256): (WIDE, WIDE_GATED),
}  # fmt: skip
"""What is tried for a kind and a number of rows: for a product, and for a gated one."""


def described(tiling: Tiling) -> str:
    chunks = f" c{tiling.chunks}{'s' if tiling.is_split else ''}" if tiling.chunks > 1 else ""
    size = f"{tiling.outputs}x{tiling.rows}x{tiling.inputs}"
    return f"{size} w{tiling.num_warps} s{tiling.num_stages}{chunks}{' f' if tiling.folds else ''}"


def told(kind: MatrixKind, tiling: Tiling, *, is_gated: bool) -> str:
    return f"{kind} {described(tiling)}{' gated' if is_gated else ''}"


def run(matrix: Matrix, vectors: Tensor, tiling: Tiling, arrivals: Tensor, *, is_gated: bool) -> Tensor:
    if is_gated:
        return product_kernels.gated_product(vectors, matrix, tiling)
    return product_kernels.product(vectors, matrix, None, tiling, arrivals=arrivals)


def compile_some(wanted: Sequence[tuple[MatrixKind, Tiling, bool]]) -> list[str]:
    """Runs each once, on a small matrix: kernels are kept in Triton's cache. What does not run is told."""
    wrong = []
    arrivals = torch.zeros(1024, dtype=torch.int32, device=CUDA)
    for kind, tiling, is_gated in wanted:
        try:
            matrix = Matrix.of(torch.randn(512, 2048, device=CUDA), kind, CUDA, torch.bfloat16)
            run(matrix, torch.randn(2, 2048, device=CUDA).bfloat16(), tiling, arrivals, is_gated=is_gated)
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 (the others are tried)
            wrong.append(f"{told(kind, tiling, is_gated=is_gated)}: {str(error)[:100]}")
    return wrong


def time_us(calls: Sequence[Callable[[], object]]) -> float:
    """Of one of them, in a graph of all."""
    for call in calls[:1]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    found = []
    for _ in range(4):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(1e3 * begin.elapsed_time(end) / len(calls))
    return min(found[1:])


@dataclass(frozen=True)
class Operands:
    """A matrix of a shape, as often as no cache holds it, whole and in few bits, and vectors."""

    copies: list[Matrix]
    plain: list[Tensor]
    vectors: Tensor
    expected: Tensor
    arrivals: Tensor
    is_gated: bool

    @classmethod
    def of(cls, name: str, kind: MatrixKind, num_rows: int) -> Operands:
        num_outputs, size = SHAPES[name]
        whole = torch.randn(num_outputs, size, device=CUDA, dtype=torch.bfloat16).mul_(size**-0.5)
        first = Matrix.of(whole, kind, CUDA, torch.bfloat16)
        num_copies = max(1, min(24, -(-COLD_BYTES // first.nbytes)))
        copies = [first, *(replace(first, values=first.values.clone()) for _ in range(num_copies - 1))]
        plain = [whole, *(whole.clone() for _ in range(max(1, COLD_BYTES // (2 * num_outputs * size)) - 1))]
        vectors = torch.randn(num_rows, size, device=CUDA).bfloat16()
        expected = torch.nn.functional.linear(vectors.float(), first.weights().float())
        if is_gated := name.endswith("gate"):
            gate, up = expected.chunk(2, dim=-1)
            expected = torch.nn.functional.silu(gate) * up
        arrivals = torch.zeros(1 << 14, dtype=torch.int32, device=CUDA)
        return cls(copies, plain, vectors, expected, arrivals, is_gated)

    def ways(self, some: Sequence[Tiling]) -> Iterator[tuple[str, list[Callable[[], Tensor]]]]:
        """By name: a call for each copy."""
        vectors, linear = self.vectors, torch.nn.functional.linear
        yield "cuBLAS bf16", [partial(linear, vectors, one) for one in self.plain]
        if len(vectors) > tilings.NARROW_ROWS and self.copies[0].kind != "plain":
            yield "to bf16, cuBLAS", [partial(self._by_cublas, one) for one in self.copies[:2]]
        for tiling in some:
            calls = [partial(run, one, vectors, tiling, self.arrivals, is_gated=self.is_gated) for one in self.copies]
            yield described(tiling), calls

    def error(self, found: Tensor) -> float:
        """Root mean square, over that of what is expected; 0 for what is not gated yet."""
        if found.shape != self.expected.shape:
            return 0.0
        return float((found.float() - self.expected).square().mean().sqrt() / self.expected.std())

    def _by_cublas(self, matrix: Matrix) -> Tensor:
        return torch.nn.functional.linear(self.vectors, product_kernels.numbers(matrix))


def measure(kind: MatrixKind, num_rows: int, shapes: Sequence[str], bad: Collection[str]) -> None:
    """One table."""
    found: dict[str, dict[str, float]] = {}
    errors: dict[str, float] = {}
    for name in shapes:
        operands = Operands.of(name, kind, num_rows)
        usable = [
            one
            for one in WAYS[kind, num_rows][operands.is_gated]
            if told(kind, one, is_gated=operands.is_gated) not in bad
        ]
        for label, calls in operands.ways(usable):
            try:
                errors[label] = max(errors.get(label, 0.0), operands.error(calls[0]()))
                found.setdefault(label, {})[name] = time_us(calls)
            except RuntimeError as error:
                sys.stdout.write(f"{label} {name}: {str(error)[:150]}\n")
        assert not operands.arrivals.any()
    heads = "".join(f"{name:>9}" for name in shapes)
    sys.stdout.write(f"\n{f'{kind}, {num_rows} rows, us':<30}{heads}    error\n")
    for label, by_name in found.items():
        cells = "".join(f"{by_name[name]:9.1f}" if name in by_name else "        -" for name in shapes)
        sys.stdout.write(f"{label:<30}{cells}  {errors[label]:.5f}\n")
    sys.stdout.flush()


def equal_by_cublas() -> None:
    """Of how many rows cuBLAS gives the bits of the kernels."""
    own = OwnProducts({"plain"})
    for name, (num_outputs, size) in SHAPES.items():
        matrix = Matrix.of(torch.randn(num_outputs, size, device=CUDA), "plain", CUDA, torch.bfloat16)
        use: Use = USES[name.partition(".")[2]]
        found = {rows: own.gives_equal_bits(use, matrix, rows, CUDA) for rows in CUBLAS_ROWS}
        signs = [f"{rows}{'=' if is_equal else '!'}" for rows, is_equal in found.items()]
        sys.stdout.write(f"cuBLAS, {name}: {' '.join(signs)}\n")
        sys.stdout.flush()


def equal_ways() -> None:
    """Which ways of the kernels give a row the bits of FIXED."""
    kinds: tuple[MatrixKind, ...] = ("plain", "int8", "int4")
    for kind in kinds:
        for tiling, is_equal in dict.fromkeys(product_kernels.compared(kind, CUDA)):
            sys.stdout.write(f"{kind}: {described(tiling)}: {'' if is_equal else 'NOT '}the bits of all others\n")
            sys.stdout.flush()


def all_wanted(kinds: Collection[str]) -> list[tuple[MatrixKind, Tiling, bool]]:
    """Those that are slow to compile come first."""
    found = [
        (kind, tiling, is_gated)
        for (kind, num_rows), ways in sorted(WAYS.items(), key=lambda way: -way[0][1])
        if f"{kind}:{num_rows}" in kinds
        for is_gated, some in enumerate(ways)
        for tiling in some
    ]
    return [(kind, tiling, bool(is_gated)) for kind, tiling, is_gated in dict.fromkeys(found)]


def main() -> None:
    every = [f"{kind}:{num_rows}" for kind, num_rows in WAYS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--only", nargs="+", default=every, choices=every, help="a kind and a number of rows")
    parser.add_argument("--no-equal", action="store_true", help="leave out which ways give equal bits")
    arguments = parser.parse_args()
    ends_s = time.monotonic() + arguments.seconds
    wanted = all_wanted(arguments.only)
    # Forked before there is a context of CUDA here, so that nothing is imported again.
    with ProcessPoolExecutor(arguments.processes, get_context("fork")) as pool:
        bad = {one for some in pool.map(compile_some, [[one] for one in wanted]) for one in some}
    sys.stdout.write(f"{len(wanted)} kernels, {ends_s - time.monotonic():.0f} s left\n")
    for one in bad:
        sys.stdout.write(one + "\n")
    bad = {one.split(":")[0] for one in bad}
    if not arguments.no_equal:
        equal_by_cublas()
    for kind, num_rows in WAYS:
        if f"{kind}:{num_rows}" in arguments.only and ends_s - time.monotonic() > 4:
            measure(kind, num_rows, [name for name in SHAPES if kind == "int8" or name != "8b.head"], bad)
    if not arguments.no_equal and ends_s - time.monotonic() > 4:
        equal_ways()


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.inference_mode():
        main()
