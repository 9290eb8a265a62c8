"""The likeliest tokens in order, by the kernels, beside torch's sort."""

import pytest
import torch

from loopwright.engine.cuda.kernels import TritonOperations
from loopwright.engine.cuda.sampling import ordered_top


@pytest.mark.parametrize(("vocab_size", "size"), [(9001, 1), (9001, 20), (9001, 256), (5003, 40), (300, 256), (17, 9)])
def test_the_likeliest_are_in_order_and_the_lowest_id_first_on_a_tie(vocab_size: int, size: int) -> None:
    values = torch.randn(4, vocab_size, generator=torch.Generator().manual_seed(size)) * 3
    values[1] = values[1].round()  # thousands tie, in every part
    values[2, 10:] = -torch.inf
    values[3] = -values[3].abs()
    values[3, 3], values[3, -2] = 0.0, -0.0
    found, ids = TritonOperations().top(values, size)
    expected, expected_ids = ordered_top(values, size)
    assert torch.equal(ids, expected_ids)
    assert torch.equal(found, expected)


def test_rows_may_lie_apart() -> None:
    values = torch.randn(6, 5000, generator=torch.Generator().manual_seed(3))[::2]
    found, ids = TritonOperations().top(values, 5)
    assert torch.equal(ids, ordered_top(values, 5)[1])
    assert torch.equal(found, values.gather(1, ids))
