"""The GGUF reader: what it reads, and that no damaged file gets past it as anything but one of our errors."""

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from loopwright.core.errors import BadRequest, LoopwrightError, Unavailable
from loopwright.engine.byte_model import byte_model
from loopwright.engine.model_files import write_gguf
from loopwright.weights.gguf import _KINDS, read_gguf


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    tiny = byte_model(num_layers=1, vocab_size=8, hidden_size=8, intermediate_size=8, head_dim=4, num_heads=2)
    write_gguf(tiny, path, metadata={"a.list": [1, -2, 3], "a.names": ["x", "", "ö"], "a.flag": True, "a.text": "é"})
    return path.read_bytes()


def header(num_tensors: int = 0, num_metadata: int = 0, version: int = 3, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_metadata) + rest


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def test_metadata_and_tensors_are_those_that_the_gguf_package_wrote(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("n.u32", 2**32 - 1)
    writer.add_int32("n.i32", -5)
    writer.add_uint64("n.u64", 2**63)
    writer.add_float32("n.f32", 0.5)
    writer.add_float64("n.f64", 0.1)
    writer.add_bool("n.bool", True)
    writer.add_string("n.string", "ångström")
    writer.add_array("n.names", ["a", "", "ü"])
    writer.add_array("n.numbers", [1, 2, 3])
    matrix = np.arange(64 * 3, dtype=np.float32).reshape(3, 64)
    writer.add_tensor("first", matrix)
    writer.add_tensor("second", gguf.quantize(matrix, gguf.GGMLQuantizationType.Q8_0),
                      raw_dtype=gguf.GGMLQuantizationType.Q8_0)  # fmt: skip
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = read_gguf(path)
    assert file.metadata == {
        "general.architecture": "llama", "n.u32": 2**32 - 1, "n.i32": -5, "n.u64": 2**63, "n.f32": 0.5, "n.f64": 0.1,
        "n.bool": True, "n.string": "ångström", "n.names": ("a", "", "ü"), "n.numbers": (1, 2, 3),
    }  # fmt: skip
    first, second = file.tensors["first"], file.tensors["second"]
    assert (first.shape, first.kind, first.nbytes) == ((3, 64), "F32", 3 * 64 * 4)
    assert (second.shape, second.kind, second.nbytes) == ((3, 64), "Q8_0", 3 * 2 * 34)
    stored = np.frombuffer(path.read_bytes(), "<f4", 3 * 64, first.offset).reshape(3, 64)
    np.testing.assert_array_equal(stored, matrix)


def test_the_sizes_of_all_kinds_are_those_of_the_gguf_package() -> None:
    for number, (name, block_size, block_bytes) in _KINDS.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, *gguf.GGML_QUANT_SIZES[kind]) == (name, block_size, block_bytes)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", BadRequest, "is not a GGUF file: it is empty"),
        (b"PK\x03\x04 and so on", BadRequest, r"is not a GGUF file: it starts with b'PK"),
        (header(version=1), BadRequest, "has GGUF version 1"),
        (header(version=0x03000000), BadRequest, "in little-endian order"),
        (b"GGUF\x03\0\0\0", Unavailable, "is truncated"),
        (header(num_tensors=2**60), Unavailable, "claims 1152921504606846976 tensors"),
        (header(num_metadata=10**9), Unavailable, "claims 1000000000 metadata entries"),
        (header(num_metadata=1, rest=struct.pack("<Q", 2**63) + bytes(20)), Unavailable, "is truncated"),
        (header(num_metadata=1, rest=string("k") + struct.pack("<I", 77) + bytes(9)), Unavailable, "is of kind 77"),
        (header(num_metadata=1, rest=string("k") + struct.pack("<IIQ", 9, 4, 2**61)), Unavailable, "numbers in 'k'"),
        (header(num_metadata=1, rest=string("k") + struct.pack("<IIQ", 9, 8, 2**40)), Unavailable, "strings in 'k'"),
        (header(num_metadata=1, rest=string("k") + struct.pack("<IIQQ", 9, 8, 1, 99)), Unavailable, "ends early"),
        (header(num_metadata=1, rest=string("k") + struct.pack("<IIQ", 9, 9, 1)), Unavailable, "array of kind 9"),
        (header(1, rest=string("t") + struct.pack("<I", 9) + bytes(80)), Unavailable, "'t' has 9 dimensions"),
        (header(1, rest=string("t") + struct.pack("<IQIQ", 1, 4, 99, 0)), BadRequest, "'t' is of kind 99"),
        (header(1, rest=string("t") + struct.pack("<IQIQ", 1, 33, 8, 0)), Unavailable, "rows of 33, no multiple of 32"),
        (header(1, rest=string("t") + struct.pack("<IQIQ", 1, 2**62, 0, 0)), Unavailable, "'t' ends at byte"),
        (header(1, rest=string("t") + struct.pack("<IQIQ", 1, 4, 0, 2**63)), Unavailable, "'t' ends at byte"),
        (header(0, 1, rest=string("general.alignment") + struct.pack("<II", 4, 0)), Unavailable, "alignment is 0"),
        (header(2, rest=(string("t") + struct.pack("<IQIQ", 1, 0, 0, 0)) * 2 + bytes(64)), Unavailable, "appear twice"),
    ],
)  # fmt: skip
def test_a_damaged_header_is_one_line_that_names_the_file(
    tmp_path: Path, content: bytes, error: type[LoopwrightError], message: str
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(error, match=message) as caught:
        read_gguf(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message


def test_a_missing_file_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No such file"):
        read_gguf(tmp_path / "absent.gguf")


def test_a_file_cut_anywhere_is_refused(tmp_path: Path, written: bytes) -> None:
    path = tmp_path / "model.gguf"
    for length in [*range(0, 1500, 7), len(written) // 2, len(written) - 33]:
        path.write_bytes(written[:length])
        with pytest.raises(LoopwrightError):
            read_gguf(path)


def test_random_damage_to_the_header_is_read_or_refused_and_never_crashes(tmp_path: Path, written: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(written)
    header_bytes = read_gguf(path).data_offset
    chance = random.Random(7)
    num_refused = 0
    for _ in range(3000):
        damaged = bytearray(written)
        for _ in range(chance.choice([1, 1, 2, 8])):
            damaged[chance.randrange(4, header_bytes)] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
        path.write_bytes(damaged)
        try:
            read_gguf(path)
        except LoopwrightError:
            num_refused += 1
    assert num_refused > 100
