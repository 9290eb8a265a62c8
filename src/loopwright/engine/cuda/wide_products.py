"""Who multiplies thousands of rows with a matrix: of several ways the one that was seen to be the fastest here.

Measured once for each size of matrix, at start, on weights of the model. torch's own way is one of them, and does what
was never measured. Asked by the fast products, whose rows may have other bits beside others.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor

from loopwright.engine.cuda import cublas_lt, wide_gate_kernels
from loopwright.engine.cuda.gate_kernels import gated
from loopwright.engine.cuda.operations import WideUse

logger = logging.getLogger(__name__)

Run = Callable[[Tensor, Tensor, Tensor], None]
"""(vectors [rows, size], weights [outputs, size], out): all but what is added to is bfloat16."""

WIDE_ROWS = 4096
"""From so many on, what was measured counts."""
_TRIED_ROWS = 8192
_SMALLEST = 1 << 21  # weights of a matrix: a smaller one's products take no time
_ROUNDS, _ROUND_S = 5, 0.006
_LEAST_GAIN = 0.005  # by which a way has to be faster than torch's


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """`waves` says how often it fills the device with so many rows, None that it cannot multiply them."""

    name: str
    run: Run
    waves: Callable[[int], float | None]


@dataclass(frozen=True, slots=True, eq=False)
class _Tried:
    way: Way
    wave_s: float  # of one wave

    def takes_s(self, num_rows: int) -> float:
        waves = self.way.waves(num_rows)
        return math.inf if waves is None else self.wave_s * math.ceil(waves)


class WideProducts:
    """What was measured, by what becomes of a product and the matrix's size."""

    def __init__(self) -> None:
        self._tried: dict[tuple[WideUse, int, int], list[_Tried]] = {}
        self._chosen: dict[tuple[WideUse, int, int, int], Run | None] = {}

    def run_for(self, use: WideUse, num_rows: int, weights: Tensor) -> Run | None:
        """What multiplies so many rows with weights [outputs, size]; None leaves it to torch."""
        if num_rows < WIDE_ROWS:
            return None
        key = use, *weights.shape, num_rows
        if key not in self._chosen:
            if len(self._chosen) > 1 << 12:
                self._chosen.clear()
            tried = self._tried.get(key[:3], ())
            best = min(tried, key=lambda one: one.takes_s(num_rows), default=None)
            self._chosen[key] = best.way.run if best and best.takes_s(num_rows) < math.inf else None
        return self._chosen[key]

    def measure(self, use: WideUse, weights: Tensor) -> None:
        """Tries all ways with weights of that size, unless that was done."""
        key = use, *weights.shape
        is_for_it = weights.is_cuda and weights.dtype == torch.bfloat16 and weights.numel() >= _SMALLEST
        if key in self._tried or not is_for_it:
            return
        self._tried[key] = []
        try:
            self._tried[key] = _measured(use, weights, _ways(use, weights), partial(_by_torch, use))
        except torch.OutOfMemoryError:
            logger.info("no memory to measure products of %d by %d", *weights.shape)


def _measured(use: WideUse, weights: Tensor, ways: Sequence[Way], usual: Run) -> list[_Tried]:
    """The ways that are right and faster than the usual one, by turns on the same random vectors."""
    device, (num_outputs, size) = weights.device, weights.shape
    generator = torch.Generator(device).manual_seed(num_outputs)
    vectors = torch.randn(_TRIED_ROWS, size, generator=generator, device=device).bfloat16()
    dtype = torch.float32 if use == "onto" else torch.bfloat16
    out = torch.zeros(_TRIED_ROWS, num_outputs // (2 if use in ("silu", "gelu") else 1), dtype=dtype, device=device)
    usual(vectors, weights, out)
    expected = out.clone()
    right = [way for way in ways if _is_right(way, vectors, weights, out, expected)]
    runs = [usual, *(way.run for way in right)]
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(_ROUNDS):
        for run, taken in zip(runs, times, strict=True):
            taken.append(_seconds(partial(run, vectors, weights, out.zero_())))
    usual_s, *found_s = (median(taken) for taken in times)
    logger.debug("%s of %d by %d: torch %.6f s; %s", use, num_outputs, size, usual_s,
                 ", ".join(f"{way.name} {one:.6f}" for way, one in zip(right, found_s, strict=True)))  # fmt: skip
    if not found_s or min(found_s) > usual_s * (1 - _LEAST_GAIN):
        return []
    return [_Tried(way, one / math.ceil(way.waves(_TRIED_ROWS) or 1)) for way, one in zip(right, found_s, strict=True)]


def _is_right(way: Way, vectors: Tensor, weights: Tensor, out: Tensor, expected: Tensor) -> bool:
    """Whether it gives what torch does, up to rounding."""
    try:
        way.run(vectors, weights, out.zero_())
        torch.cuda.synchronize(vectors.device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 (a way that cannot run here is none)
        logger.warning("%s cannot multiply by %d by %d: %s", way.name, *weights.shape, error)
        return False
    off = torch.linalg.vector_norm((out - expected).float()) / torch.linalg.vector_norm(expected.float())
    return bool(off < 0.01)


def _seconds(run: Callable[[], None]) -> float:
    """Of one launch among some."""
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


def _by_torch(use: WideUse, vectors: Tensor, weights: Tensor, out: Tensor) -> None:
    if use == "onto":
        torch.addmm(out, vectors, weights.T, out_dtype=torch.float32, out=out)
    elif use == "project":
        torch.mm(vectors, weights.T, out=out)
    else:
        gated(torch.mm(vectors, weights.T), out, is_gelu=use == "gelu")


def _ways(use: WideUse, weights: Tensor) -> list[Way]:
    """All that are not torch's."""
    ways = _of_cublas_lt(use, weights) if cublas_lt.library() is not None else []
    has_tiles = torch.cuda.get_device_capability(weights.device) >= (9, 0)
    if use in ("silu", "gelu") and has_tiles and weights.shape[1] % 8 == 0 and weights.shape[0] % 16 == 0:
        ways += _gating(use, weights)
    return ways


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

    return [way(place, one) for place, one in enumerate(product.ways(_TRIED_ROWS))]


def _gating(use: WideUse, weights: Tensor) -> list[Way]:
    num_programs: int = torch.cuda.get_device_properties(weights.device).multi_processor_count
    output_tiles = math.ceil(len(weights) // 2 / wide_gate_kernels.OUTPUTS)

    def run(vectors: Tensor, weights: Tensor, out: Tensor) -> None:
        wide_gate_kernels.gated_product(vectors, weights, out, is_gelu=use == "gelu", num_programs=num_programs)

    def waves(num_rows: int) -> float:
        return math.ceil(num_rows / wide_gate_kernels.ROWS) * output_tiles / num_programs

    return [Way("gated", run, waves)]
