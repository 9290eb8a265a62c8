"""Draws from more tokens than are sorted, by the kernel, beside the sampler that does one row after the other."""

import numpy as np
import torch

from loopwright.core.calls import Sampling
from loopwright.engine.cuda.kernels import TritonOperations
from loopwright.engine.cuda.sampling import RowSamplings, draw_rows
from loopwright.engine.sampler import choose

CPU = torch.device("cpu")


def test_each_row_draws_from_its_own_open_nucleus() -> None:
    """Rows that ask for different things beside each other: each is read by its own place in the columns."""
    samplings = [
        Sampling(temperature=3.0, top_p=0.97, seed=1),
        Sampling(temperature=1.0, top_k=50, seed=2),
        Sampling(temperature=2.0, top_p=0.999, min_p=0.001, seed=3),
        Sampling(),
        Sampling(temperature=1.5, top_p=0.99, seed=4),
    ] * 2
    logits = torch.randn(len(samplings), 5003, generator=torch.Generator().manual_seed(7))
    logits[:, 5] = logits[:, 7]
    ids, _ = draw_rows(
        logits, RowSamplings.of(samplings, CPU), np.arange(len(samplings)) + 100, TritonOperations().draw_open
    )
    rows = zip(logits, samplings, strict=True)
    assert ids.tolist() == [choose(row, sampling, 100 + number) for number, (row, sampling) in enumerate(rows)]
