"""A weight matrix as a device keeps it: as it is, or in 8 or 4 bits with a scale for each few inputs of an output.

Never multiplies: the operations do. Made by the decoder, of a whole matrix or of a rank's share of one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from loopwright.core.model_info import WeightDtype

MatrixKind = Literal["plain", "fp8", "int8", "int4"]
"""plain: in the dtype of what it multiplies. fp8: float8_e4m3, and int8: whole numbers, of both a scale for 128 inputs.
int4: whole numbers from 0 to 15, with a scale and a zero for 32 inputs."""

KindOf = Callable[[str], MatrixKind]
"""How the matrix of a name is kept."""

FEWER_BITS: tuple[WeightDtype, ...] = ("fp8", "int8", "int4")
"""The values of engine.dtype that a device keeps its matrices in."""

GROUP = 128
"""Inputs that share a scale, in 8 bits; the last group of an output is filled up with zeros."""

SMALL_GROUP = 32
"""The same in 4 bits, as most files of 4 bits have it."""

_LEVELS = {"fp8": 448.0, "int8": 127.0}
_TRIED, _TRIED_ON_GPU = 1 << 18, 1 << 26  # numbers at a time
_CLIPS = (1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.82, 0.79)
"""How much of a small group's range its 16 levels may span: where the error is least, it does."""


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """[num_outputs, size]. `values` has that shape, or of fewer bits they are int16: word i of 128 inputs has in its
    low half number i of 8 bits and in its high one number 64 + i, or number i of each of four groups of 4 bits. So
    words become bfloat16 two at a time, and what each part multiplies is contiguous. `scales` are bfloat16
    [num_outputs, groups], of int4 [num_outputs, groups, 2], scales and zeros; none of a plain one."""

    kind: MatrixKind
    values: Tensor
    scales: Tensor | None
    size: int

    @classmethod
    def of(cls, weight: Tensor, kind: MatrixKind, device: torch.device, dtype: torch.dtype) -> "Matrix":
        """`dtype` is that of what it will multiply; the rounding is computed on `device` in float32."""
        size = weight.shape[1]
        if kind == "plain":
            return cls(kind, weight.to(device, dtype).contiguous(), None, size)
        if kind == "int4":
            levels, scales = _least_error(_grouped(weight.to(device).float(), SMALL_GROUP))
            return cls(kind, _nibbles(levels), scales, size)
        grouped = _grouped(weight.to(device).float(), GROUP)  # [num_outputs, groups, 128]
        scales = _rounded_up(grouped.abs().amax(-1) / _LEVELS[kind])
        levels = (grouped / scales.float()[..., None]).nan_to_num_(0.0)
        kept = levels.to(torch.float8_e4m3fn) if kind == "fp8" else levels.round_().to(torch.int8)
        return cls(kind, _bytes(kept), scales, size)

    @property
    def num_outputs(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def weights(self) -> Tensor:
        """[num_outputs, size]: the values of a plain one, else the numbers that are kept, in float32."""
        if self.scales is None:
            return self.values
        if self.kind == "int4":
            scales, zeros = self.scales.float()[..., None].unbind(2)
            numbers: Tensor = (_levels_of_4(self.values) - zeros).bfloat16().float().mul_(scales)
        else:
            dtype = torch.float8_e4m3fn if self.kind == "fp8" else torch.int8
            numbers = _levels_of_8(self.values, dtype).mul_(self.scales.float()[..., None])
        return numbers.flatten(1)[:, : self.size]


def kinds(dtype: WeightDtype) -> KindOf:
    """How an engine of that dtype keeps its matrices. A head of fewer bits is int8: a logit has no layer after it."""
    if dtype == "fp8" or dtype == "int8" or dtype == "int4":
        kind: MatrixKind = dtype
        return lambda name: "int8" if name == "head" else kind
    return lambda _: "plain"


def matrix_bytes(kind: MatrixKind, num_outputs: int, size: int, dtype: torch.dtype) -> int:
    """What `Matrix.of` takes."""
    match kind:
        case "plain":
            return num_outputs * size * dtype.itemsize
        case "int4":
            return num_outputs * -(-size // GROUP) * (GROUP // 2 + 16)
        case _:
            return num_outputs * -(-size // GROUP) * (GROUP + 2)


def _grouped(weight: Tensor, group: int) -> Tensor:
    """[num_outputs, groups, group], for a multiple of 128 inputs; what is not there is 0."""
    padded = torch.nn.functional.pad(weight, (0, -weight.shape[1] % GROUP))
    return padded.view(len(weight), -1, group)


def _rounded_up(scales: Tensor) -> Tensor:
    """In bfloat16 and not below, so that the largest number of a group is one of its levels."""
    near = scales.bfloat16()
    above = (near.view(torch.int16) + 1).view(torch.bfloat16)  # they are not negative
    return torch.where(near.float() < scales, above, near)


def _least_error(grouped: Tensor) -> tuple[Tensor, Tensor]:
    """Levels from 0 to 15, and scales and zeros [num_outputs, groups, 2]: a number is scale · (level - zero). A few
    outputs at a time, so that what is tried stays in a cache."""
    rows = max(1, (_TRIED_ON_GPU if grouped.is_cuda else _TRIED) // grouped[0].numel())
    found = [_least_error_of(some) for some in grouped.split(rows)]
    levels, scales = (torch.cat(some) for some in zip(*found, strict=True))
    return levels, scales


def _least_error_of(grouped: Tensor) -> tuple[Tensor, Tensor]:
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    scales, zeros, least = torch.zeros_like(low), torch.zeros_like(low), torch.full_like(low, torch.inf)
    for clip in _CLIPS:
        cut = (high - low) * ((1 - clip) / 2)
        scale = ((high - low) * (clip / 15)).bfloat16().float()
        # All numbers of a group may be one: its scale is that number, and its level 1.
        scale = torch.where(scale == 0, low, scale)
        zero = torch.where(high == low, -1.0, -(low + cut) / scale).nan_to_num_(0.0).bfloat16().float()
        error = _levels_at(grouped, scale, zero).sub_(zero).mul_(scale).sub_(grouped).square_().sum(-1, keepdim=True)
        is_better = error < least
        scales, zeros = torch.where(is_better, scale, scales), torch.where(is_better, zero, zeros)
        least = torch.where(is_better, error, least)
    levels = _levels_at(grouped, scales, zeros)
    return levels.to(torch.uint8), torch.cat([scales, zeros], dim=-1).bfloat16()


def _levels_at(grouped: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """The nearest ones; 0 where the scale is."""
    at = torch.where(scale == 0, torch.inf, scale)
    return grouped.div(at).add_(zero).nan_to_num_(0.0).round_().clamp_(0, 15)


def _bytes(levels: Tensor) -> Tensor:
    """Words of [num_outputs, groups, 128] levels of 8 bits."""
    halves: Tensor = levels.view(torch.uint8).unflatten(2, (2, GROUP // 2)).transpose(2, 3)
    return halves.contiguous().view(torch.int16).flatten(1)


def _levels_of_8(words: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 [num_outputs, groups, 128]."""
    halves = words.view(torch.uint8).view(len(words), -1, GROUP // 2, 2).transpose(2, 3)
    return halves.flatten(2).view(dtype).float()


def _nibbles(levels: Tensor) -> Tensor:
    """Words of [num_outputs, groups, 32] levels from 0 to 15."""
    first, second, third, fourth = levels.int().unflatten(1, (-1, 4)).unbind(2)
    words: Tensor = first | second << 4 | third << 8 | fourth << 12
    return words.to(torch.int16).flatten(1)


def _levels_of_4(words: Tensor) -> Tensor:
    """float32 [num_outputs, groups, 32]."""
    blocks = words.view(len(words), -1, SMALL_GROUP).int()
    return torch.stack([blocks >> shift & 15 for shift in (0, 4, 8, 12)], dim=2).flatten(1, 2).float()
