"""How weights of fewer bits become bfloat16 by instructions of our own, and products that several programs share."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ptx_on_cpu import run
from torch import Tensor

from loopwright.engine.cuda import few_bits_kernels, product_kernels, tilings
from loopwright.engine.cuda.kernels import TritonOperations
from loopwright.engine.cuda.matrices import Matrix, MatrixKind
from loopwright.engine.cuda.tilings import Tiling

CPU = torch.device("cpu")
PAIRS = np.arange(1 << 16, dtype=np.uint32) | np.arange(1 << 16, dtype=np.uint32)[::-1] << np.uint32(16)
"""Every word in either half of a register."""


def halves(register: np.ndarray) -> Tensor:
    """float32 [2, registers]: the low and the high bfloat16 of each."""
    bits = np.stack([register << np.uint32(16), register & np.uint32(0xFFFF0000)])
    return torch.from_numpy(bits.view(np.float32))


def words() -> Tensor:
    """int32 [2, registers]."""
    return torch.from_numpy(np.stack([PAIRS & np.uint32(0xFFFF), PAIRS >> np.uint32(16)]).astype(np.int32))


@pytest.mark.parametrize(("text", "dtype"), [("_INT8", torch.int8), ("_FP8", torch.float8_e4m3fn)])
def test_every_byte_becomes_its_number(text: str, dtype: torch.dtype) -> None:
    found = run(getattr(few_bits_kernels, text).value, [PAIRS], 2)
    for register, shift in zip(found, (0, 8), strict=True):
        expected = (words() >> shift & 255).to(torch.uint8).view(dtype).float()
        is_number = ~expected.isnan()  # nothing is kept as NaN
        assert torch.equal(halves(register)[is_number], expected[is_number])
        assert int(is_number.sum()) > 0.99 * is_number.numel()


@pytest.mark.parametrize("zero", [0.0, 7.5, -1.0, 3.171875, 15.25])
def test_every_nibble_becomes_its_number_less_the_zero_rounded_once(zero: float) -> None:
    kept = torch.tensor(zero).bfloat16()
    bits = np.full_like(PAIRS, int(kept.view(torch.int16)) & 0xFFFF) * np.uint32(0x10001)
    found = run(few_bits_kernels._INT4.value, [PAIRS, bits, bits, bits, bits], 4)
    for register, shift in zip(found, (0, 4, 8, 12), strict=True):
        expected = ((words() >> shift & 15).float() - kept.float()).bfloat16().float()
        assert torch.equal(halves(register), expected)


@pytest.mark.parametrize("kind", ["plain", "int8", "int4"])
def test_parts_of_a_product_add_up_in_order_in_one_program_or_in_several(kind: MatrixKind) -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = Matrix.of(torch.randn(70, 1300, generator=generator), kind, CPU, torch.bfloat16)
    vectors = torch.randn(19, 1300, generator=generator).bfloat16()
    bias, arrivals = torch.randn(70, generator=generator).bfloat16(), torch.zeros(16, dtype=torch.int32)
    whole = Tiling(32, 16, 256, 4, 2, chunks=4)
    split = replace(whole, is_split=True)
    expected = torch.nn.functional.linear(vectors.float(), matrix.weights().float(), bias.float())
    found = product_kernels.product(vectors, matrix, bias, whole, torch.float32)
    assert (found - expected).square().mean().sqrt() < 0.01 * expected.std()
    assert torch.equal(found, product_kernels.product(vectors, matrix, bias, split, torch.float32, arrivals))
    residual = torch.randn(19, 70, generator=generator)
    sums = [residual.clone(), residual.clone()]
    product_kernels.add_product(vectors, matrix, bias, sums[0], whole)
    product_kernels.add_product(vectors, matrix, bias, sums[1], split, arrivals)
    assert torch.equal(*sums)
    assert not arrivals.any()


def test_a_narrow_product_of_few_outputs_is_split_and_its_zeros_are_kept() -> None:
    operations = TritonOperations()
    matrix = Matrix.of(torch.randn(96, 2048), "int8", CPU, torch.bfloat16)
    tiling = tilings.tiling_for(matrix, 3, is_gated=False)
    assert tiling is not None
    assert tiling.is_split
    vectors = torch.randn(3, 2048).bfloat16()
    expected = torch.nn.functional.linear(vectors.float(), matrix.weights())
    for _ in range(2):
        found = operations.project(vectors, matrix, None).float()
        assert (found - expected).square().mean().sqrt() < 0.02 * expected.std()
