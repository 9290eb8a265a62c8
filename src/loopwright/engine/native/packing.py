"""Weights as the kernels want them: panels of 32 outputs, in bf16 or in levels of 8 or 4 bits. Never multiplies.

Called when a model is loaded. The layouts are those that matrices.h documents.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from loopwright.engine.native.structs import KINDS, Matrix, WeightType

PANEL = 32  # outputs
GROUP = 32  # inputs that share a scale


@dataclass(frozen=True, slots=True, eq=False)
class PackedMatrix:
    """A matrix [num_outputs, num_inputs] with the tensors that `struct` points into."""

    struct: Matrix
    kind: WeightType
    tensors: tuple[Tensor, ...]  # the weights first

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


def pack(weight: Tensor, kind: WeightType, bias: Tensor | None = None) -> PackedMatrix:
    """Packs a float32 matrix [num_outputs, num_inputs]; levels are those of GGUF's Q8_0, Q4_1 or Q4_0, by 32.

    A matrix that ggml's reference quantizer made gets its own levels and scales again, because each group of it uses
    the levels that its scale was made from. What has no whole groups stays bf16."""
    num_outputs, num_inputs = weight.shape
    if num_inputs % GROUP:
        kind = "bf16"
    padded = _padded(weight, -num_outputs % PANEL)
    scales = offsets = None
    match kind:
        case "bf16":
            weights = _panels(padded.bfloat16().view(torch.int16), 2)
        case "q8":
            levels, scales = _bytes(padded)
            weights = _panels(levels, 4)
        case "q4" | "q4_0":
            levels, scales, offsets = _nibbles(padded, is_centred=kind == "q4_0")
            weights = _panels(levels, 4)
    padded_bias = None if bias is None else _padded(bias[:, None], -num_outputs % PANEL)[:, 0].float().contiguous()
    tensors = {"weights": weights, "scales": scales, "offsets": offsets, "bias": padded_bias}
    struct = Matrix(
        kind=KINDS[kind],
        num_outputs=num_outputs,
        num_inputs=num_inputs,
        **{name: None if tensor is None else tensor.data_ptr() for name, tensor in tensors.items()},
    )
    return PackedMatrix(struct, kind, tuple(tensor for tensor in tensors.values() if tensor is not None))


def interleaved(gate_up: Tensor) -> Tensor:
    """Gates above ups [2 · size, num_inputs] → panels of 16 gates and their 16 ups, so that both meet in registers."""
    size, num_inputs = gate_up.shape[0] // 2, gate_up.shape[1]
    return gate_up.view(2, size // 16, 16, num_inputs).transpose(0, 1).reshape(2 * size, num_inputs)


def _padded(matrix: Tensor, num_rows: int) -> Tensor:
    return torch.nn.functional.pad(matrix, (0, 0, 0, num_rows))


def _panels(rows: Tensor, width: int) -> Tensor:
    """[num_outputs, n · width] → [panels, n, 32, width]."""
    return rows.view(len(rows) // PANEL, PANEL, -1, width).transpose(1, 2).contiguous()


def _scales(values: Tensor) -> Tensor:
    """[num_outputs, groups] → float16 [panels, groups, 32]."""
    return values.view(len(values) // PANEL, PANEL, -1).transpose(1, 2).contiguous()


def _bytes(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Levels -127 … 127 as bytes 1 … 255, and their scales."""
    groups = weight.view(len(weight), -1, GROUP)
    scale = (groups.abs().amax(2) / 127).half()
    levels = _levels(groups, scale.float(), 0.0).clamp_(-127, 127)
    return (levels + 128).to(torch.uint8).view(len(weight), -1), _scales(scale)


def _nibbles(weight: Tensor, *, is_centred: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Two levels a byte, inputs 0 … 3 of each 8 low and 4 … 7 high; scales and offsets. Centred: the value that is
    farthest from zero is level 0, and zero is level 8."""
    groups = weight.view(len(weight), -1, GROUP)
    if is_centred:
        farthest = groups.gather(2, groups.abs().argmax(2, keepdim=True))[:, :, 0]
        scale = (farthest / -8).half()
        offset = scale * -8
    else:
        low = groups.amin(2)
        scale, offset = ((groups.amax(2) - low) / 15).half(), low.half()
    levels = _levels(groups, scale.float(), offset.float()[:, :, None]).clamp_(0, 15).to(torch.uint8)
    halves = levels.view(len(weight), -1, 2, 4)
    packed = (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1)
    return packed, _scales(scale), _scales(offset)


def _levels(groups: Tensor, scale: Tensor, offset: Tensor | float) -> Tensor:
    """(value - offset) / scale, to nearest. A group of zeros has scale 0 and levels 0."""
    inverse = torch.where(scale != 0, 1 / scale, 0.0)
    return torch.round((groups - offset) * inverse[:, :, None])
