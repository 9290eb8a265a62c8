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
from loopwright.engine.cuda.tilings import Tiling

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

CUDA = torch.device("cuda")
SHAPES = {
    "1b.qkv": (3072, 2048), "1b.out": (2048, 2048), "1b.gate": (16384, 2048), "1b.down": (2048, 8192),
    "8b.qkv": (6144, 4096), "8b.out": (4096, 4096), "8b.gate": (28672, 4096), "8b.down": (4096, 14336),
    "8b.head": (128256, 4096),
}  # fmt: skip
COLD_BYTES = 160_000_000  # of copies of a matrix


def split(tiling: Tiling, *chunks: int) -> list[Tiling]:
    """In so many parts; 1 is in one."""
    return [tiling if one == 1 else replace(tiling, chunks=one, is_split=True) for one in chunks]


def folded(*some: Tiling) -> list[Tiling]:
    return [replace(one, folds=True) for one in some]


NARROW = [
    *split(Tiling(32, 8, 256, 2, 5), 1, 2, 4), *split(Tiling(64, 16, 128, 4, 6), 1, 4),
]  # fmt: skip
MIDDLE = [*split(Tiling(64, 32, 128, 4, 5), 1, 4), *split(Tiling(64, 32, 256, 4, 3), 2, 4)]
WIDE = folded(*split(Tiling(64, 128, 128, 4, 3), 1, 2), *split(Tiling(128, 128, 128, 8, 3), 1, 2, 4))
GATED = {
    1: [Tiling(32, 8, 128, 2, 6), Tiling(64, 16, 128, 4, 4)],
    32: [Tiling(64, 32, 128, 4, 4)],
    256: folded(Tiling(64, 128, 128, 4, 3), Tiling(64, 64, 128, 4, 3), Tiling(128, 128, 128, 8, 2)),
}  # fmt: skip
GATED_OWN_BITS = {
    1: [tilings.FIXED, Tiling(64, 16, 128, 4, 4)],
    32: [tilings.FIXED, Tiling(64, 32, 128, 4, 4)],
    256: [tilings.WIDE_GATED, Tiling(64, 128, 128, 8, 3)],
}
PRODUCTS = {1: NARROW, 32: MIDDLE, 256: WIDE}
OWN_BITS = {  # what a row's bits may not depend on
    1: [tilings.FIXED, *split(Tiling(64, 16, 128, 4, 5), 4)],
    32: [tilings.FIXED, *split(Tiling(64, 32, 128, 4, 5), 4)],
    256: [tilings.WIDE, replace(Tiling(64, 128, 128, 8, 3), chunks=4)],
}  # fmt: skip


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


def candidates(kind: MatrixKind, num_rows: int, *, is_gated: bool) -> list[Tiling]:
    if kind == "plain":
        return (GATED_OWN_BITS if is_gated else OWN_BITS)[num_rows]
    return (GATED if is_gated else PRODUCTS)[num_rows]


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
        some = candidates(kind, num_rows, is_gated=operands.is_gated)
        usable = [one for one in some if told(kind, one, is_gated=operands.is_gated) not in bad]
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


def alike() -> None:
    """Which ways give a row the same bits."""
    vectors = torch.randn(200, 4096, device=CUDA).bfloat16()
    arrivals = torch.zeros(1 << 14, dtype=torch.int32, device=CUDA)
    kinds: tuple[MatrixKind, ...] = ("plain", "int8", "int4")
    for kind in kinds:
        matrix = Matrix.of(torch.randn(1000, 4096, device=CUDA), kind, CUDA, torch.bfloat16)
        seen: dict[bytes, list[str]] = {}
        for tiling in dict.fromkeys(one for some in OWN_BITS.values() for one in some):
            if kind == "plain" or tiling.inputs >= 128:
                for num_rows in (1, 200):
                    out = product_kernels.product(vectors[:num_rows], matrix, None, tiling, torch.float32, arrivals)
                    seen.setdefault(out[0].cpu().numpy().tobytes(), []).append(f"{described(tiling)} of {num_rows}")
        for same in seen.values():
            sys.stdout.write(f"alike, {kind}: {'; '.join(same)}\n")


def all_wanted(kinds: Sequence[MatrixKind]) -> Iterator[tuple[MatrixKind, Tiling, bool]]:
    for kind in kinds:
        for num_rows in PRODUCTS:
            for is_gated in (False, True):
                yield from ((kind, one, is_gated) for one in candidates(kind, num_rows, is_gated=is_gated))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=12)
    arguments = parser.parse_args()
    ends_s = time.monotonic() + arguments.seconds
    kinds: tuple[MatrixKind, ...] = ("int8", "plain", "int4")
    wanted = list(dict.fromkeys(all_wanted(kinds)))
    with ProcessPoolExecutor(arguments.processes, get_context("spawn")) as pool:
        shares = [wanted[start :: arguments.processes] for start in range(arguments.processes)]
        bad = {one for some in pool.map(compile_some, shares) for one in some}
    sys.stdout.write(f"{len(wanted)} kernels, {ends_s - time.monotonic():.0f} s left\n")
    for one in bad:
        sys.stdout.write(one + "\n")
    bad = {one.split(":")[0] for one in bad}
    alike()
    for kind, num_rows in (
        ("int8", 1),
        ("int8", 32),
        ("int8", 256),
        ("plain", 256),
        ("plain", 1),
        ("plain", 32),
        ("int4", 1),
        ("int4", 32),
        ("int4", 256),
    ):
        names = [name for name in SHAPES if not (kind == "plain" and name == "8b.head")]
        if kind == "int4":
            names.remove("8b.head")
        if ends_s - time.monotonic() > 4:
            measure(kind, num_rows, names, bad)


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.inference_mode():
        main()
