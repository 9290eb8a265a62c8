"""The likeliest tokens of each row of a decode step, packed, so that one copy brings a whole step's to the host.

For rows that ask for those and for nothing else, which is what a program that looks at every token asks. Never chooses
a token, and never waits for the device. Used by the decode steps, as a captured graph, and by the runner.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.batch import ForwardRow, RowResult
from loopwright.core.executor import EngineShape
from loopwright.core.results import Distribution
from loopwright.engine.cuda.buffers import DecodeBuffers
from loopwright.engine.cuda.distributions import Tops
from loopwright.engine.cuda.operations import Operations
from loopwright.engine.cuda.sampling import normalizers
from loopwright.engine.sampler import not_finite
from loopwright.engine.transfer import HostCopies

WIDTH = 256
"""So many are listed of every row; who wants fewer gets the first of them."""


def is_listing(row: ForwardRow) -> bool:
    """Whether all that the row asks for is in the list that there is of each."""
    if row.sampling is not None or len(row.distributions) != 1:
        return False
    asked = row.distributions[0]
    is_plain = not (asked.must_include or asked.entropy or asked.logits or asked.ranks)
    return is_plain and asked.k <= WIDTH and asked.allowed is None


def is_right(row: ForwardRow, shape: EngineShape) -> bool:
    """Whether a row of one token that `is_listing` passes all checks; if not, `row_checks` say what is wrong."""
    asked, blocks = row.distributions[0], row.block_ids
    return (
        0 <= row.token_ids[0] < shape.vocab_size
        and len(row.positions) == 1
        and 0 <= row.positions[0] < 1 << 31
        and 0 <= row.kv_len < len(blocks) * shape.block_size
        and min(blocks) >= 0
        and max(blocks) < shape.num_blocks
        and -1 <= asked.index < 1
        and 1 <= asked.k <= shape.vocab_size
        and not (row.num_drafts or row.generated)
        and row.allowed_bits is None
    )


def listed(operations: Operations, buffers: DecodeBuffers, logits: Tensor) -> Tensor:
    """Of float32 logits [num_rows, vocab_size] of the first rows of the buffers, whose outputs say which have failed:
    int32 [num_rows, 2 * width + 4], which are ids, log-probabilities as bits of float32, their probability together as
    those of float64, how many are finite, and 1 if the row failed."""
    values, ids = operations.top(logits, min(WIDTH, logits.shape[1]))
    logprobs = (values.double() - normalizers(logits).double()[:, None]).float()
    covered = logprobs.double().exp().sum(-1, keepdim=True)
    num_finite = logprobs.isfinite().sum(-1, keepdim=True)
    failed = buffers.outputs[2, : len(logits), None]
    parts = (ids.int(), logprobs.view(torch.int32), covered.view(torch.int32), num_finite.int(), failed)
    return torch.cat(parts, dim=1)


def tops_of(packed: NDArray[np.int32], rows: NDArray[np.int64], sizes: Sequence[int]) -> Tops:
    """Of `packed` as `listed` gives it, the first `sizes` tokens of some rows."""
    width, most = packed.shape[1] // 2 - 2, max(sizes)
    ids, logprobs = packed[rows, :most], packed[rows, width : width + most].view(np.float32)
    return Tops(ids, logprobs, [min(size, width) for size in sizes])


class Listed:
    """What some rows of a step were told. Implements Pending."""

    def __init__(self, packed: Tensor, rows: Sequence[int], sizes: Sequence[int], vocab_size: int) -> None:
        """`packed` is as `listed` gives it; of each of `rows` the first `sizes` tokens are asked for."""
        self._rows, self._sizes, self._vocab_size = rows, sizes, vocab_size
        self._width = packed.shape[1] // 2 - 2
        self._copies = HostCopies()
        self._landed = self._copies.take(packed)
        self._copies.sent()

    def results(self) -> list[RowResult]:
        """One for each row. Waits for the device."""
        self._copies.wait()
        width, numbers = self._width, self._landed()
        raw, num_bytes = numbers.tobytes(), numbers.shape[1] * 4
        covered = numbers[:, 2 * width : 2 * width + 2].copy().view(np.float64)[:, 0].tolist()
        nums_finite, have_failed = numbers[:, 2 * width + 2].tolist(), numbers[:, 2 * width + 3].tolist()
        found = []
        for row, size in zip(self._rows, self._sizes, strict=True):
            if have_failed[row]:
                found.append(not_finite())
                continue
            start, k = row * num_bytes, min(size, width)
            mass = covered[row]
            if k < width:
                some = numbers[row, width : width + k].view(np.float32)
                mass = float(np.exp(some.astype(np.float64)).cumsum()[-1])
            mass = min(1.0, mass)
            told = Distribution(
                ids=raw[start : start + 4 * k],
                logprobs=raw[start + 4 * width : start + 4 * (width + k)],
                covered=mass,
                tail_mass=1.0 - mass,
                truncated=min(nums_finite[row], k) < self._vocab_size,
            )
            found.append(RowResult((), (told,)))
        return found
