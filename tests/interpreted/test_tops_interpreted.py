"""The likeliest tokens in order, by the kernels, beside torch's sort."""

import pytest
import torch

from loopwright.engine.cuda.buffers import DecodeBuffers
from loopwright.engine.cuda.kernels import TritonOperations
from loopwright.engine.cuda.operations import Operations, TorchOperations
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


@pytest.mark.parametrize(("vocab_size", "size"), [(9001, 256), (5003, 256), (300, 256), (100, 100)])
@pytest.mark.parametrize("is_end", [True, False])
def test_what_rows_are_told_is_what_torch_tells_them_and_so_is_the_next_input(
    vocab_size: int, size: int, *, is_end: bool
) -> None:
    logits = torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(size)) * 3
    logits[1] = logits[1].round()
    logits[2] = 1.5  # all tie: more than there is room for
    logits[3, 7] = torch.nan
    found, expected = (
        _told(operations, logits, size, is_end=is_end) for operations in (TritonOperations(), TorchOperations())
    )
    (packed, *buffers), (right, *others) = found, expected
    good = [0, 1, 2, 4] if is_end else [0, 1, 2]  # the fifth had failed before
    assert torch.equal(packed[good, :size], right[good, :size])
    logprobs, theirs = (one[good, size : 2 * size].contiguous().view(torch.float32) for one in (packed, right))
    torch.testing.assert_close(logprobs, theirs, atol=2e-6, rtol=0)
    covered, mass = (one[good, 2 * size : 2 * size + 2].contiguous().view(torch.float64) for one in (packed, right))
    torch.testing.assert_close(covered, mass, atol=1e-6, rtol=0)
    assert torch.equal(packed[good, 2 * size + 2 :], right[good, 2 * size + 2 :])
    assert packed[3:, -1].tolist() == right[3:, -1].tolist() == [1, 1]
    for one, other in zip(buffers, others, strict=True):
        mine, own = one[:, :5].clone(), other[:, :5].clone()
        mine[0, 3:] = own[0, 3:] = 0  # of rows that failed
        if len(mine) == 3:
            logprob, right_logprob = mine[1].view(torch.float32).clone(), own[1].view(torch.float32).clone()
            torch.testing.assert_close(logprob[:3], right_logprob[:3], atol=2e-6, rtol=0)
            mine[1] = own[1] = 0
        assert torch.equal(mine, own)


def _told(operations: Operations, logits: torch.Tensor, size: int, *, is_end: bool) -> tuple[torch.Tensor, ...]:
    """Packed, and outputs and inputs after it; the last row failed in the step before."""
    buffers = DecodeBuffers.make(8, 2, 0, torch.device("cpu"))
    buffers.inputs[1:4] = torch.arange(24, dtype=torch.int32).view(3, 8)
    buffers.inputs[4, 4] = 1
    if not is_end:
        operations.end_greedy(buffers, len(logits), logits)
    return operations.listed(buffers, logits, size, is_end=is_end), buffers.outputs, buffers.inputs
