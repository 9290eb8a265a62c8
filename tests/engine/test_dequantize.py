"""Each stored kind decodes to exactly what the gguf package makes of it."""

import gguf
import numpy as np
import pytest

from loopwright.core.errors import BadRequest, Unavailable
from loopwright.engine.dequantize import _LAYOUTS, dequantize

QUANTIZED = [kind for kind in _LAYOUTS if kind not in ("F32", "F16", "BF16")]


def random_blocks(kind: str, num_blocks: int) -> np.ndarray:
    """Any bits in the levels, sane float16 in every scale."""
    rng = np.random.default_rng(5)
    blocks = rng.integers(0, 256, (num_blocks, _LAYOUTS[kind].block_bytes), dtype=np.uint8)
    places = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}.get(kind, (0,))
    for place in places:
        blocks[:, place : place + 2] = rng.normal(0, 0.1, (num_blocks, 1)).astype("<f2").view(np.uint8)
    return blocks


@pytest.mark.parametrize("kind", QUANTIZED)
def test_a_quantized_kind_equals_the_gguf_package(kind: str) -> None:
    num_blocks = 3000  # several pieces
    blocks = random_blocks(kind, num_blocks)
    out = np.empty((num_blocks, _LAYOUTS[kind].block_size), np.float32)
    dequantize("t", kind, blocks.reshape(-1), out)
    np.testing.assert_array_equal(out, gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind]))


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_a_plain_kind_keeps_its_values(kind: str) -> None:
    values = np.random.default_rng(1).normal(0, 1, (700, 200)).astype(np.float32)
    stored = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    out = np.empty_like(values)
    dequantize("t", kind, stored.view(np.uint8).reshape(-1), out)
    np.testing.assert_allclose(out, values, rtol=2e-2 if kind == "BF16" else 1e-3, atol=1e-6)
    np.testing.assert_array_equal(out, gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind]))


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(BadRequest, match=r"tensor 'blk\.0' is stored as IQ2_XS; known are F32"):
        dequantize("blk.0", "IQ2_XS", np.zeros(74, np.uint8), np.empty(256, np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_finite_number_names_the_tensor(value: float) -> None:
    values = np.zeros(200_000, np.float32)
    values[150_000] = value
    with pytest.raises(Unavailable, match=r"tensor 'blk\.0' holds values that are not finite"):
        dequantize("blk.0", "F32", values.view(np.uint8), np.empty_like(values))


def test_a_scale_that_is_nan_names_the_tensor() -> None:
    blocks = random_blocks("Q8_0", 4)
    blocks[2, :2] = np.array([np.nan], "<f2").view(np.uint8)
    with pytest.raises(Unavailable, match="not finite"):
        dequantize("t", "Q8_0", blocks.reshape(-1), np.empty(4 * 32, np.float32))
