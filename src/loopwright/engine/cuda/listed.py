"""The likeliest tokens of each row of a decode step, packed, so that one copy brings a whole step's to the host.

For rows that ask for those and for nothing else, which is what a program that looks at every token asks. Never chooses
a token, and never waits for the device. Used by the decode steps, as a captured graph, and by the runner.
"""

from collections.abc import Sequence
from operator import attrgetter

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.batch import ForwardRow, RowResult
from loopwright.core.calls import DistributionRequest
from loopwright.core.executor import EngineShape
from loopwright.core.results import Distribution
from loopwright.engine.cuda.distributions import Tops
from loopwright.engine.cuda.tables import Due
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


def ids_of(rows: Sequence[ForwardRow], due: Due, shape: EngineShape) -> list[int] | None:
    """The tokens of rows that are due, a token on, and pass `is_listing` and `is_right`: of their blocks only one that
    a row reaches now may be wrong. None if any row is another, or wrong."""
    if len(rows) != len(due.block_ids):
        return None
    vocab_size, block_size, num_blocks = shape.vocab_size, shape.block_size, shape.num_blocks
    most, found = min(WIDTH, vocab_size), []
    for row, blocks, position, kv_len in zip(rows, due.block_ids, due.positions, due.kv_lens, strict=True):
        own, token_ids, positions, own_len, distributions, *others = _FIELDS(row)
        if own is not blocks or own_len != kv_len or others != _NOTHING or kv_len >= len(own) * block_size:
            return None
        if not len(token_ids) == len(positions) == len(distributions) == 1 or positions[0] != position:
            return None
        if not 0 <= token_ids[0] < vocab_size or position >= 1 << 31:
            return None
        if not kv_len % block_size and not 0 <= own[kv_len // block_size] < num_blocks:
            return None
        index, k, *more = _REQUEST(distributions[0])
        if more != _NO_MORE or not 1 <= k <= most or not -1 <= index < 1:
            return None
        found.append(token_ids[0])
    return found


def _defaults(kind: type[msgspec.Struct], names: Sequence[str]) -> list[object]:
    return [field.default for field in msgspec.structs.fields(kind) if field.name in names]


_OTHERS = (
    "input_slots", "mask", "output_slots", "sampling", "num_drafts", "generated", "allowed_bits", "sampler", "source",
    "late_bits",
)  # fmt: skip
_FIELDS = attrgetter("block_ids", "token_ids", "positions", "kv_len", "distributions", *_OTHERS)
_NOTHING = _defaults(ForwardRow, _OTHERS)
_EXTRAS = ("must_include", "allowed", "entropy", "logits", "ranks")
_REQUEST = attrgetter("index", "k", *_EXTRAS)
_NO_MORE = _defaults(DistributionRequest, _EXTRAS)


def tops_of(packed: NDArray[np.int32], rows: NDArray[np.int64], sizes: Sequence[int]) -> Tops:
    """Of `packed` as `Operations.listed` gives it, the first `sizes` tokens of some rows."""
    width, most = packed.shape[1] // 2 - 2, max(sizes)
    ids, logprobs = packed[rows, :most], packed[rows, width : width + most].view(np.float32)
    return Tops(ids, logprobs, [min(size, width) for size in sizes])


class Listed:
    """What some rows of a step were told. Implements Pending."""

    def __init__(self, packed: Tensor, rows: Sequence[int], sizes: Sequence[int], vocab_size: int) -> None:
        """`packed` is as `Operations.listed` gives it; of each of `rows` the first `sizes` tokens are asked for."""
        self._rows, self._sizes, self._vocab_size = rows, sizes, vocab_size
        self._width = packed.shape[1] // 2 - 2
        self._copies = HostCopies()
        self._landed = self._copies.take(packed)
        self._copies.sent()

    def results(self) -> list[RowResult]:
        """One for each row. Waits for the device."""
        width = self._width
        self._copies.wait()
        numbers = self._landed()
        raw, num_bytes = numbers.tobytes(), numbers.shape[1] * 4
        covered = numbers[:, 2 * width : 2 * width + 2].copy().view(np.float64)[:, 0].clip(max=1.0).tolist()
        nums_finite, have_failed = numbers[:, 2 * width + 2].tolist(), numbers[:, 2 * width + 3].tolist()
        found = []
        for row, size in zip(self._rows, self._sizes, strict=True):
            if have_failed[row]:
                found.append(not_finite())
                continue
            start, k, mass = row * num_bytes, size if size < width else width, covered[row]
            if k < width:
                some = numbers[row, width : width + k].view(np.float32)
                mass = min(1.0, float(np.exp(some.astype(np.float64)).cumsum()[-1]))
            logprobs, num_finite = start + 4 * width, nums_finite[row]
            told = Distribution(
                raw[start : start + 4 * k], raw[logprobs : logprobs + 4 * k], mass, 1.0 - mass,
                (num_finite if num_finite < k else k) < self._vocab_size,
            )  # fmt: skip
            found.append(RowResult((), (told,)))
        return found
