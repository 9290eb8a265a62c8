"""Turns the bytes of a stored tensor into float32. Never opens a file, never allocates the result.

Called by the loader, from several threads at once: numpy releases the GIL in each of these operations and starts no
threads of its own. Work goes in pieces that stay in a core's cache.
Layouts follow the block structures of the ggml project (ggml-common.h); each is tested equal to `gguf.quants`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from loopwright.core.errors import BadRequest, Unavailable

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]

_PIECE_ELEMENTS = 1 << 16
_ONE, _FOUR, _FIFTEEN = np.uint8(1), np.uint8(4), np.uint8(15)


@dataclass(frozen=True, slots=True)
class _Layout:
    """How one kind stores `block_size` elements in `block_bytes` bytes.

    `decode` reads blocks [n, block_bytes] and writes floats [n, block_size]."""

    block_size: int
    block_bytes: int
    decode: Callable[[Bytes, Floats], None]


def dequantize(name: str, kind: str, data: Bytes, out: Floats) -> None:
    """Writes the tensor `name`, stored as `kind` in `data`, to `out` (contiguous, any shape).

    Raises BadRequest for a kind without a decoder, Unavailable for values that are not finite numbers."""
    layout = _LAYOUTS.get(kind)
    if layout is None:
        raise BadRequest(f"tensor {name!r} is stored as {kind}; known are {', '.join(_LAYOUTS)}")
    blocks = data.reshape(-1, layout.block_bytes)
    floats = out.reshape(-1, layout.block_size)
    assert len(blocks) == len(floats), f"{name}: {len(blocks)} blocks of {kind} for {len(floats)}"
    piece = max(1, _PIECE_ELEMENTS // layout.block_size)
    with np.errstate(all="ignore"):  # a damaged file may hold any bits; the check below finds what they make
        for start in range(0, len(blocks), piece):
            decoded = floats[start : start + piece]
            layout.decode(blocks[start : start + piece], decoded)
            if not np.isfinite(decoded.sum()):
                raise Unavailable(
                    f"tensor {name!r} holds values that are not finite numbers", hint="the file is damaged"
                )


def dequantize_columns(name: str, kind: str, rows: Bytes, columns: slice, num_columns: int, out: Floats) -> None:
    """As `dequantize`, for some columns of rows [num_rows, bytes] that hold `num_columns` each: reads only the blocks
    that these columns lie in."""
    layout = _LAYOUTS.get(kind)
    if layout is None or num_columns % layout.block_size:
        return dequantize(name, kind, rows, out)  # which says what is wrong
    first, end = columns.start // layout.block_size, -(-columns.stop // layout.block_size)
    blocks = rows.reshape(len(rows), -1, layout.block_bytes)[:, first:end]
    start = columns.start - first * layout.block_size
    num_decoded = (end - first) * layout.block_size
    piece = max(1, _PIECE_ELEMENTS // num_decoded)
    for row in range(0, len(rows), piece):
        some = np.ascontiguousarray(blocks[row : row + piece])
        decoded = np.empty((len(some), num_decoded), np.float32)
        dequantize(name, kind, some.reshape(-1), decoded)
        out[row : row + piece] = decoded[:, start : start + columns.stop - columns.start]
    return None


def _float32(blocks: Bytes, out: Floats) -> None:
    out[:] = blocks.view("<f4")


def _float16(blocks: Bytes, out: Floats) -> None:
    out[:] = blocks.view("<f2")


def _bfloat16(blocks: Bytes, out: Floats) -> None:
    np.left_shift(blocks.view("<u2"), 16, out=out.view(np.uint32), dtype=np.uint32)


def _q4_0(blocks: Bytes, out: Floats) -> None:
    nibbles = blocks[:, 2:]
    np.subtract(nibbles & 15, np.float32(8), out=out[:, :16])
    np.subtract(nibbles >> 4, np.float32(8), out=out[:, 16:])
    out *= _halves(blocks, 0)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    nibbles, scale = blocks[:, 4:], _halves(blocks, 0)
    np.multiply(nibbles & 15, scale, out=out[:, :16])
    np.multiply(nibbles >> 4, scale, out=out[:, 16:])
    out += _halves(blocks, 2)


def _q5_0(blocks: Bytes, out: Floats) -> None:
    np.subtract(_five_bits(blocks[:, 2:]), np.float32(16), out=out)
    out *= _halves(blocks, 0)


def _q5_1(blocks: Bytes, out: Floats) -> None:
    np.multiply(_five_bits(blocks[:, 4:]), _halves(blocks, 0), out=out)
    out += _halves(blocks, 2)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    np.multiply(blocks[:, 2:].view(np.int8), _halves(blocks, 0), out=out)


def _q4_k(blocks: Bytes, out: Floats) -> None:
    scale, minimum = _scales_and_minima(blocks)
    _spread(_nibble_rows(blocks[:, 16:144], 32), scale, minimum, out)


def _q5_k(blocks: Bytes, out: Floats) -> None:
    scale, minimum = _scales_and_minima(blocks)
    high = blocks[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1) & _ONE
    _spread(_nibble_rows(blocks[:, 48:176], 32) | high << _FOUR, scale, minimum, out)


def _q6_k(blocks: Bytes, out: Floats) -> None:
    low = _nibble_rows(blocks[:, :128], 64).reshape(-1, 8, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1) & 3
    levels = (low | high.reshape(-1, 8, 32) << 4).view(np.int8) - np.int8(32)
    scale = blocks[:, 192:208].view(np.int8) * _halves(blocks, 208)  # [n, 16]
    np.multiply(levels.reshape(-1, 16, 16), scale[:, :, None], out=out.reshape(-1, 16, 16))


def _halves(blocks: Bytes, offset: int) -> Floats:
    """The float16 at `offset` of each block: [n, 1]."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").astype(np.float32)


def _five_bits(blocks: Bytes) -> Bytes:
    """Levels 0 … 31 from 4 bytes of fifth bits and 16 bytes of nibbles: [n, 32]."""
    high = np.unpackbits(np.ascontiguousarray(blocks[:, :4]), axis=1, bitorder="little")
    levels: Bytes = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1) | high << _FOUR
    return levels


def _nibble_rows(packed: Bytes, width: int) -> Bytes:
    """[n, bytes] → [n, 2 · bytes / width, width]: of each run of `width` bytes first the low nibbles, then the high."""
    runs = packed.reshape(len(packed), -1, 1, width)
    nibbles: Bytes = runs >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1) & _FIFTEEN
    return nibbles.reshape(len(packed), -1, width)


def _scales_and_minima(blocks: Bytes) -> tuple[Floats, Floats]:
    """The 6-bit scales and minima of 8 sub-blocks, packed in 12 bytes at 4, times their float16: two of [n, 8, 1]."""
    low_scale, low_minimum, high = blocks[:, 4:16].reshape(-1, 3, 4).transpose(1, 0, 2)
    scales = np.concatenate([low_scale & 63, high & 15 | low_scale >> 2 & 48], axis=1)
    minima = np.concatenate([low_minimum & 63, high >> 4 | low_minimum >> 2 & 48], axis=1)
    return (scales * _halves(blocks, 0))[:, :, None], (minima * _halves(blocks, 2))[:, :, None]


def _spread(levels: Bytes, scale: Floats, minimum: Floats, out: Floats) -> None:
    values = out.reshape(-1, 8, 32)
    np.multiply(levels, scale, out=values)
    values -= minimum


_LAYOUTS: Mapping[str, _Layout] = {
    "F32": _Layout(1, 4, _float32),
    "F16": _Layout(1, 2, _float16),
    "BF16": _Layout(1, 2, _bfloat16),
    "Q4_0": _Layout(32, 18, _q4_0),
    "Q4_1": _Layout(32, 20, _q4_1),
    "Q5_0": _Layout(32, 22, _q5_0),
    "Q5_1": _Layout(32, 24, _q5_1),
    "Q8_0": _Layout(32, 34, _q8_0),
    "Q4_K": _Layout(256, 144, _q4_k),
    "Q5_K": _Layout(256, 176, _q5_k),
    "Q6_K": _Layout(256, 210, _q6_k),
}
