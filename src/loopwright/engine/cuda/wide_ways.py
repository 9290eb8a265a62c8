"""The ways to multiply thousands of rows on a GPU: torch's, what else cuBLASLt suggests, and a gate in its product.

Never chooses: `wide_products` measures them.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from loopwright.engine.cuda import cublas_lt, wide_gate_kernels
from loopwright.engine.cuda.gate_kernels import gated
from loopwright.engine.cuda.operations import WideUse
from loopwright.engine.cuda.wide_products import TRIED_ROWS, Run, Way

_ROUND_S = 0.006  # that a way runs for when it is timed


def ways_of(use: WideUse, weights: Tensor) -> tuple[Run, Sequence[Way]]:
    """torch's, and all others that there are for weights of that size: what moves the least comes first."""
    if not weights.is_cuda:
        return partial(by_torch, use), ()
    ways = []
    has_tiles = torch.cuda.get_device_capability(weights.device) >= (9, 0)
    if use in ("silu", "gelu") and has_tiles and weights.shape[1] % 8 == 0 and weights.shape[0] % 16 == 0:
        ways.append(_gating(use, weights))
    if cublas_lt.library() is not None:
        ways += _of_cublas_lt(use, weights)
    return partial(by_torch, use), ways


def seconds(run: Callable[[], None]) -> float:
    """Of one launch among some, on the current stream."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    end.synchronize()
    number = max(2, int(_ROUND_S / max(begin.elapsed_time(end) / 1e3, 1e-6)))
    begin.record()
    for _ in range(number):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / number


def by_torch(use: WideUse, vectors: Tensor, weights: Tensor, out: Tensor) -> None:
    """Into `out`, or onto it."""
    if use == "onto":
        torch.addmm(out, vectors, weights.T, out_dtype=torch.float32, out=out)
    elif use == "project":
        torch.mm(vectors, weights.T, out=out)
    else:
        gated(torch.mm(vectors, weights.T), out, is_gelu=use == "gelu")


def _of_cublas_lt(use: WideUse, weights: Tensor) -> list[Way]:
    is_gated = use in ("silu", "gelu")
    product = cublas_lt.LtProduct(*weights.shape, is_added=use == "onto", device=weights.device)

    def way(place: int, one: cublas_lt.LtWay) -> Way:
        def run(vectors: Tensor, weights: Tensor, out: Tensor) -> None:
            if not is_gated:
                product.multiply(one, vectors, weights, out)
                return
            both = torch.empty(len(vectors), len(weights), dtype=vectors.dtype, device=vectors.device)
            product.multiply(one, vectors, weights, both)
            gated(both, out, is_gelu=use == "gelu")

        return Way(f"cuBLASLt {place}", run, partial(product.waves, one))

    return [way(place, one) for place, one in enumerate(product.ways(TRIED_ROWS))]


def _gating(use: WideUse, weights: Tensor) -> Way:
    num_programs: int = torch.cuda.get_device_properties(weights.device).multi_processor_count
    output_tiles = math.ceil(len(weights) // 2 / wide_gate_kernels.OUTPUTS)

    def run(vectors: Tensor, weights: Tensor, out: Tensor) -> None:
        wide_gate_kernels.gated_product(vectors, weights, out, is_gelu=use == "gelu", num_programs=num_programs)

    def waves(num_rows: int) -> float:
        return math.ceil(num_rows / wide_gate_kernels.ROWS) * output_tiles / num_programs

    return Way("gated", run, waves)
