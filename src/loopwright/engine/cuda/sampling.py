"""What rows ask of a draw, as columns for the device, and the likeliest tokens of many rows in order. Never waits.

`Operations.draw` draws by the columns; penalties and masks were applied before, or are by `RowAdjustments`. The
definitions are those of docs/sampling.md, and engine.sampler has them row by row.
"""

import importlib.util
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.batch import DecodeRows
from loopwright.core.calls import Sampling
from loopwright.engine.draws import uniforms
from loopwright.engine.transfer import to_device

HAS_TRITON = importlib.util.find_spec("triton") is not None
_MAX_KNOWN = 16  # sets of rows whose columns are kept


@dataclass(frozen=True, slots=True, eq=False)
class RowSamplings:
    """The samplings of a step's rows as columns. `special` rows are not for this module."""

    special: tuple[int, ...]
    adjusted: tuple[int, ...]  # of the others, those with penalties, biases or lists of allowed tokens
    is_greedy: bool  # of all other rows, with raw log-probabilities: the likeliest logit will do
    seeds: NDArray[np.uint64]
    has_top_k: bool  # whether any row that draws has it
    has_top_p: bool
    temperatures: Tensor  # [num_rows, 1] float64; 1 for greedy rows, as they do not divide
    greedy: Tensor  # [num_rows] booleans, as the next
    processed: Tensor
    top_k: Tensor  # [num_rows, 1] int64; 0 is off
    top_p: Tensor  # [num_rows, 1] float64, as the next two
    min_p: Tensor
    typical_p: Tensor
    has_typical: bool  # as has_top_k

    @classmethod
    def of(
        cls, samplings: Sequence[Sampling], device: torch.device, others: Sequence[int] = (), *,
        is_adjusted: bool = False,
    ) -> "RowSamplings":  # fmt: skip
        """`others` are special too, whatever their samplings. `is_adjusted` says that what makes rows special was dealt
        with: none is, and none is to be adjusted."""
        own = {row for row, one in enumerate(samplings) if is_special(one)}
        special = () if is_adjusted else tuple(sorted(own.union(others)))
        plain = set(range(len(samplings))).difference(special)
        drawing = [one for row, one in enumerate(samplings) if row in plain and one.temperature > 0]
        rows = [_numbers(one) if row in plain else _NOTHING for row, one in enumerate(samplings)]
        columns = to_device(np.array(rows, np.float64).reshape(-1, 7).T, device)  # one copy for all
        adjusted = () if is_adjusted else tuple(row for row in sorted(plain) if is_adjusting(samplings[row]))
        return cls(
            special=special,
            adjusted=adjusted,
            is_greedy=not adjusted and not drawing and all(samplings[row].logprobs == "raw" for row in plain),
            seeds=np.array([one.seed for one in samplings], np.uint64),
            has_top_k=any(one.top_k for one in drawing),
            has_top_p=any(one.top_p < 1 for one in drawing),
            temperatures=columns[0, :, None],
            greedy=columns[5].bool(),
            processed=columns[6].bool(),
            top_k=columns[1, :, None].long(),
            top_p=columns[2, :, None],
            min_p=columns[3, :, None],
            typical_p=columns[4, :, None],
            has_typical=any(one.typical_p < 1 for one in drawing),
        )

    @property
    def has_filters(self) -> bool:
        """Whether what is left of any row has to be found; min_p can be seen of each token by itself."""
        return self.has_top_k or self.has_top_p or self.has_typical

    def numbers(self, positions: NDArray[np.integer]) -> NDArray[np.float64]:
        """What draws are made with: [num_rows], by seed and position."""
        return uniforms(self.seeds, positions)


class SamplingColumns:
    """The columns of rows that were asked about before: the same rows come step after step."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._known: OrderedDict[tuple[object, ...], tuple[Sequence[Sampling], RowSamplings]] = OrderedDict()
        self._last: tuple[Sequence[object], RowSamplings] | None = (
            None  # a decode group has the same lists for its rows
        )

    def of_decodes(self, rows: DecodeRows) -> RowSamplings:
        """Those with samplers are special."""
        lists = (rows.samplings, rows.samplers)
        if self._last is None or any(one is not other for one, other in zip(self._last[0], lists, strict=True)):
            sampled = [row for row, one in enumerate(rows.samplers) if one is not None]
            self._last = (lists, self.of(rows.samplings, sampled))
        return self._last[1]

    def of(self, samplings: Sequence[Sampling], others: Sequence[int] = ()) -> RowSamplings:
        """As `RowSamplings.of`."""
        return self._find(samplings, tuple(others), is_adjusted=False)

    def of_adjusted(self, samplings: Sequence[Sampling]) -> RowSamplings:
        """Likewise, of rows whose logits are adjusted already."""
        return self._find(samplings, (), is_adjusted=True)

    def _find(self, samplings: Sequence[Sampling], others: tuple[int, ...], *, is_adjusted: bool) -> RowSamplings:
        key = (is_adjusted, others, *map(id, samplings))  # whoever is in `_known` is not freed, so no other has its id
        if (found := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return found[1]
        columns = RowSamplings.of(samplings, self.device, others, is_adjusted=is_adjusted)
        self._known[key] = (list(samplings), columns)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return columns


_NOTHING = (1.0, 0, 1.0, 0.0, 1.0, True, False)  # as a greedy row has it


def _numbers(sampling: Sampling) -> tuple[float, ...]:
    """The columns' entries of one row: temperature, top_k, top_p, min_p, typical_p, whether it is greedy, and whether
    it wants processed log-probabilities."""
    is_processed = sampling.logprobs == "processed"
    if sampling.temperature == 0:
        return (*_NOTHING[:6], is_processed)
    top_k = min(sampling.top_k, 2**31 - 1)
    return sampling.temperature, top_k, sampling.top_p, sampling.min_p, sampling.typical_p, False, is_processed


class Top(Protocol):
    """`Operations.top`."""

    def __call__(self, values: Tensor, size: int) -> tuple[Tensor, Tensor]: ...


class Draw(Protocol):
    """`Operations.draw`."""

    def __call__(self, logits: Tensor, scores: Tensor, samplings: RowSamplings, numbers: Tensor) -> Tensor: ...


def normalizers(logits: Tensor) -> Tensor:
    """What a row's logits are above its log-probabilities, float32 [num_rows]; on a GPU the same bits in any batch."""
    if logits.is_cuda and HAS_TRITON:
        from loopwright.engine.cuda import normalizer_kernels  # noqa: PLC0415 (there may be no Triton)

        return normalizer_kernels.normalizers(logits)
    return logits.logsumexp(-1)


def draw_rows(
    draw: Draw, logits: Tensor, scores: Tensor, samplings: RowSamplings, positions: NDArray[np.integer]
) -> Tensor:
    """As `Operations.draw`, for tokens that will stand at `positions`."""
    return draw(logits, scores, samplings, to_device(samplings.numbers(positions), logits.device))


def is_special(sampling: Sampling) -> bool:
    """Whether it asks for more than can be found beside a draw: the likeliest of what filters leave."""
    return bool(sampling.top_logprobs) and sampling.logprobs == "processed"


def is_adjusting(sampling: Sampling) -> bool:
    """Whether something of it acts on logits before the temperature."""
    return bool(sampling.has_penalties or sampling.logit_bias or sampling.allowed is not None)


def ordered_top(values: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """As `Operations.top`."""
    found, ids = values.sort(dim=-1, descending=True, stable=True)
    return found[:, :size], ids[:, :size]
