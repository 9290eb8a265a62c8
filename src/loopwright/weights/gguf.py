"""Reads the header of a GGUF file: metadata and where each tensor lies. Never reads tensor data, never needs torch.

Called by the engine's loader, the tokenizer and the model store. A corrupt file costs one error and memory bounded by
its own size, never a hang: every count and length is held against the bytes that are left.
Source of the format: the GGUF specification of the ggml project (its gguf.md).
"""

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias

from loopwright.core.errors import BadRequest, Unavailable

MetadataValue: TypeAlias = "int | float | bool | str | tuple[MetadataValue, ...]"

# Tensor kinds by their number in the file: name, elements in a block, bytes of a block.
_KINDS: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}

_SCALARS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_MIN_METADATA_BYTES = 13  # an empty key, a kind, one byte of value
_MIN_TENSOR_BYTES = 24  # an empty name, no dimensions, a kind, an offset
_AGAIN = "download the file again; the copy on disk is damaged"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. `shape` has rows first, where the file has them last; `offset` is absolute."""

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A parsed header. Arrays in the metadata are tuples."""

    path: Path
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, TensorInfo]
    data_offset: int


def read_gguf(path: Path) -> GgufFile:
    """The header of the file at `path`.

    Raises BadRequest for a file that is not GGUF or of a kind we do not read, and Unavailable for one that cannot be
    read or is damaged. The message is one line and names the file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, data)
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # mmap of an empty file
        raise BadRequest(f"{path} is not a GGUF file: it is empty") from error


def _parse(path: Path, data: mmap.mmap) -> GgufFile:
    if data[:4] != b"GGUF":
        raise BadRequest(f"{path} is not a GGUF file: it starts with {bytes(data[:4])!r}, not b'GGUF'")
    cursor = _Cursor(path, data)
    cursor.skip(4)
    version = cursor.scalar("I")
    if version not in _VERSIONS:
        raise BadRequest(f"{path} has GGUF version {version}; versions {_VERSIONS} in little-endian order can be read")
    num_tensors = cursor.count("tensors", _MIN_TENSOR_BYTES)
    num_metadata = cursor.count("metadata entries", _MIN_METADATA_BYTES)
    metadata: dict[str, MetadataValue] = {}
    for _ in range(num_metadata):
        key = cursor.string()
        metadata[key] = cursor.value(key)
    infos = [_read_tensor_info(cursor) for _ in range(num_tensors)]
    data_offset = _aligned(cursor, metadata)
    tensors = {info.name: _placed(path, info, data_offset, len(data)) for info in infos}
    if len(tensors) < num_tensors:
        raise Unavailable(f"{path} is damaged: {num_tensors - len(tensors)} tensor names appear twice", hint=_AGAIN)
    return GgufFile(path, metadata, tensors, data_offset)


def _read_tensor_info(cursor: "_Cursor") -> TensorInfo:
    """One tensor's entry; its offset is still relative to the data section."""
    name = cursor.string()
    num_dimensions = cursor.scalar("I")
    if num_dimensions > _MAX_DIMENSIONS:
        cursor.damaged(f"tensor {name!r} has {num_dimensions} dimensions; {_MAX_DIMENSIONS} is the most")
    shape = tuple(reversed([cursor.scalar("Q") for _ in range(num_dimensions)]))
    kind_number, offset = cursor.scalar("I"), cursor.scalar("Q")
    if kind_number not in _KINDS:
        raise BadRequest(f"{cursor.path}: tensor {name!r} is of kind {kind_number}, which this version does not know")
    kind, block_size, block_bytes = _KINDS[kind_number]
    num_elements = 1
    for size in shape:
        num_elements *= size
    if shape and shape[-1] % block_size:
        cursor.damaged(f"tensor {name!r} of kind {kind} has rows of {shape[-1]}, no multiple of {block_size}")
    return TensorInfo(name, shape, kind, offset, num_elements // block_size * block_bytes)


def _aligned(cursor: "_Cursor", metadata: Mapping[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
        cursor.damaged(f"general.alignment is {alignment!r}")
    return -(-cursor.position // alignment) * alignment


def _placed(path: Path, info: TensorInfo, data_offset: int, file_bytes: int) -> TensorInfo:
    start = data_offset + info.offset
    if start + info.nbytes > file_bytes:
        raise Unavailable(
            f"{path} is truncated: tensor {info.name!r} ends at byte {start + info.nbytes}, the file at {file_bytes}",
            hint=_AGAIN,
        )
    return TensorInfo(info.name, info.shape, info.kind, start, info.nbytes)


class _Cursor:
    """A place in the header that only moves forward and never past the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.position = 0
        self._data = data
        self._size = len(data)

    def damaged(self, what: str) -> NoReturn:
        raise Unavailable(f"{self.path} is damaged: {what}", hint=_AGAIN)

    def skip(self, num_bytes: int) -> int:
        """Moves over `num_bytes` and returns where they start."""
        start = self.position
        if num_bytes > self._size - start:
            raise Unavailable(
                f"{self.path} is truncated: its header needs {num_bytes} bytes at {start}, the file has {self._size}",
                hint=_AGAIN,
            )
        self.position = start + num_bytes
        return start

    def scalar(self, code: str) -> int:
        layout = struct.Struct("<" + code)
        number: int = layout.unpack_from(self._data, self.skip(layout.size))[0]
        return number

    def count(self, what: str, min_bytes: int) -> int:
        """A count of things that take at least `min_bytes` each."""
        number = self.scalar("Q")
        if number * min_bytes > self._size - self.position:
            self.damaged(f"it claims {number} {what} in {self._size} bytes")
        return number

    def string(self) -> str:
        length = self.scalar("Q")
        start = self.skip(length)
        return self._data[start : start + length].decode("utf-8", "replace")

    def value(self, key: str) -> MetadataValue:
        kind = self.scalar("I")
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self._numbers(_SCALARS[kind], 1)[0]
        if kind != _ARRAY:
            self.damaged(f"metadata {key!r} is of kind {kind}")
        element_kind = self.scalar("I")
        if element_kind == _STRING:
            return self._strings(self.count(f"strings in {key!r}", 8))
        if element_kind not in _SCALARS:
            self.damaged(f"metadata {key!r} is an array of kind {element_kind}")
        code = _SCALARS[element_kind]
        return self._numbers(code, self.count(f"numbers in {key!r}", struct.calcsize("<" + code)))

    def _numbers(self, code: str, num_values: int) -> tuple[int | float | bool, ...]:
        layout = struct.Struct(f"<{num_values}{code}")
        return layout.unpack_from(self._data, self.skip(layout.size))

    def _strings(self, num_strings: int) -> tuple[str, ...]:
        """Like `string`, many times; a vocabulary has a hundred thousand, so nothing is called twice for one."""
        data, position, size = self._data, self.position, self._size
        read_length: Callable[[mmap.mmap, int], tuple[int]] = struct.Struct("<Q").unpack_from
        strings: list[str] = []
        for _ in range(num_strings):
            if position + 8 > size:
                break
            end = position + 8 + read_length(data, position)[0]
            if end > size:
                break
            strings.append(data[position + 8 : end].decode("utf-8", "replace"))
            position = end
        self.position = position
        if len(strings) < num_strings:
            raise Unavailable(f"{self.path} is truncated: a list of {num_strings} strings ends early", hint=_AGAIN)
        return tuple(strings)
