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

from loopwright.engine.cuda.operations import WideUse

logger = logging.getLogger(__name__)

Run = Callable[[Tensor, Tensor, Tensor], None]
"""(vectors [rows, size], weights [outputs, size], out): all but what is added to is bfloat16."""

Clock = Callable[[Callable[[], None]], float]

WIDE_ROWS = 4096
"""From so many on, what was measured counts."""
TRIED_ROWS = 8192
SMALLEST = 1 << 21  # weights of a matrix: a smaller one's products take no time
MOST_OFF = 0.01
"""Root mean square of the difference from torch's results, over theirs: three times what rounding to bfloat16 gives."""
_ROUNDS = 5
ALIKE = 1.015
"""Times that differ by less are alike, as far as a board tells whose power is used up: of these the first counts."""
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

    def __init__(self, ways_of: Callable[[WideUse, Tensor], tuple[Run, Sequence[Way]]], seconds: Clock) -> None:
        """`ways_of` gives torch's way with such weights, and all others in the order of choice; `seconds` says how long
        one takes."""
        self._ways_of, self._seconds = ways_of, seconds
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
            most_s = min((one.takes_s(num_rows) for one in tried), default=math.inf) * ALIKE
            good = (one.way.run for one in tried if one.takes_s(num_rows) <= most_s < math.inf)
            self._chosen[key] = next(good, None)
        return self._chosen[key]

    def measure(self, use: WideUse, weights: Tensor) -> None:
        """Tries all ways with weights of that size, unless that was done."""
        key = use, *weights.shape
        is_for_it = weights.dtype == torch.bfloat16 and weights.numel() >= SMALLEST
        if key in self._tried or not is_for_it:
            return
        self._tried[key] = []
        try:
            self._tried[key] = _measured(use, weights, *self._ways_of(use, weights), self._seconds)
        except torch.OutOfMemoryError:
            logger.info("no memory to measure products of %d by %d", *weights.shape)


def _measured(use: WideUse, weights: Tensor, usual: Run, ways: Sequence[Way], seconds: Clock) -> list[_Tried]:
    """The ways that are right and faster than the usual one, by turns on the same random vectors."""
    if not ways:
        return []
    device, (num_outputs, size) = weights.device, weights.shape
    generator = torch.Generator(device).manual_seed(num_outputs)
    vectors = torch.randn(TRIED_ROWS, size, generator=generator, device=device).bfloat16()
    dtype = torch.float32 if use == "onto" else torch.bfloat16
    out = torch.zeros(TRIED_ROWS, num_outputs // (2 if use in ("silu", "gelu") else 1), dtype=dtype, device=device)
    usual(vectors, weights, out)
    expected = out.clone()
    right = [way for way in ways if _is_right(way, vectors, weights, out, expected)]
    runs = [usual, *(way.run for way in right)]
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(_ROUNDS):
        for run, taken in zip(runs, times, strict=True):
            taken.append(seconds(partial(run, vectors, weights, out.zero_())))
    usual_s, *found_s = (median(taken) for taken in times)
    logger.debug("%s of %d by %d: torch %.6f s; %s", use, num_outputs, size, usual_s,
                 ", ".join(f"{way.name} {one:.6f}" for way, one in zip(right, found_s, strict=True)))  # fmt: skip
    if not found_s or min(found_s) > usual_s * (1 - _LEAST_GAIN):
        return []
    return [_Tried(way, one / math.ceil(way.waves(TRIED_ROWS) or 1)) for way, one in zip(right, found_s, strict=True)]


def _is_right(way: Way, vectors: Tensor, weights: Tensor, out: Tensor, expected: Tensor) -> bool:
    """Whether it gives what torch does, up to rounding."""
    try:
        way.run(vectors, weights, out.zero_())
        off = torch.linalg.vector_norm((out - expected).float()) / torch.linalg.vector_norm(expected.float())
        return float(off) < MOST_OFF  # waits for it, so that what it fails with is known here
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 (a way that cannot run here is none)
        logger.warning("%s cannot multiply by %d by %d: %s", way.name, *weights.shape, error)
        return False
