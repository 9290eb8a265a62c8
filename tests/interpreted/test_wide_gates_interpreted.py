"""The gate in its product, for thousands of rows: beside torch, with sizes that fill no tile."""

import pytest
import torch

from loopwright.engine.cuda.matrices import Matrix
from loopwright.engine.cuda.operations import TorchOperations
from loopwright.engine.cuda.wide_gate_kernels import gated_product

GENERATOR = torch.Generator().manual_seed(6)


@pytest.mark.parametrize(
    ("num_rows", "num_outputs", "size", "num_programs"), [(200, 96, 128, 3), (130, 200, 72, 4), (128, 8, 8, 9)]
)
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gates_open_within_the_product(
    num_rows: int, num_outputs: int, size: int, num_programs: int, activation: str
) -> None:
    vectors = torch.randn(num_rows, size, generator=GENERATOR).bfloat16()
    weights = (torch.randn(2 * num_outputs, size, generator=GENERATOR) / size**0.5).bfloat16()
    found = torch.full((num_rows, num_outputs), torch.nan).bfloat16()
    gated_product(vectors, weights, found, is_gelu=activation == "gelu", num_programs=num_programs)
    matrix = Matrix("plain", weights.float(), None, size)
    expected = TorchOperations().gate(vectors.float(), matrix, activation)  # type: ignore[arg-type]
    assert torch.allclose(found.float(), expected, rtol=0.01, atol=0.01)
    other = TorchOperations().gate(vectors.float(), matrix, "silu" if activation == "gelu" else "gelu")
    assert not torch.allclose(found.float(), other, rtol=0.01, atol=0.01)
