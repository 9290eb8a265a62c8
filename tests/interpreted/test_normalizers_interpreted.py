"""The log-sum-exp of a row by its kernel: beside torch's in float64, and with the same bits alone and among others."""

import pytest
import torch

from loopwright.engine.cuda.normalizer_kernels import normalizers


def rows(num_rows: int, vocab_size: int) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * 4


@pytest.mark.parametrize("vocab_size", [1, 17, 4096, 4097, 9001])
def test_it_is_the_log_of_the_sum_of_exponentials(vocab_size: int) -> None:
    logits = rows(3, vocab_size)
    logits[1, vocab_size // 2 :] -= 80.0
    expected = logits.double().logsumexp(-1)
    torch.testing.assert_close(normalizers(logits).double(), expected, rtol=1e-6, atol=1e-6)


def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    logits = rows(7, 9001)
    together = normalizers(logits)
    alone = torch.cat([normalizers(one[None]) for one in logits])
    assert torch.equal(together, alone)
    assert torch.equal(normalizers(logits[::2]), together[::2]), "rows may lie apart"


def test_what_is_minus_infinity_adds_nothing_and_a_whole_row_of_it_is_that() -> None:
    logits = rows(3, 5000)
    logits[0, 4096:] = -torch.inf
    logits[1] = -torch.inf
    logits[2, 4999] = torch.nan
    found = normalizers(logits)
    torch.testing.assert_close(found[0], logits[0, :4096].double().logsumexp(-1).float(), rtol=1e-6, atol=1e-6)
    assert found[1] == -torch.inf
    assert not found[2].isfinite()
    assert normalizers(logits[:0]).shape == (0,)
