"""What a sampler's tokens tell, by the kernel, beside torch: tokens, log-probabilities, what is wrong, and states."""

import pytest
import torch

from loopwright.engine.cuda import told_kernels
from loopwright.engine.cuda.buffers import DecodeBuffers
from loopwright.engine.cuda.traced_graphs import Whole, told_by_torch
from loopwright.engine.traced import TracedResults

NAN, INF = torch.nan, torch.inf
VALUES = [3.0, 0.0, 4999.0, 5000.0, -1.0, 2.5, NAN, INF, -INF, 7.0, 8.0, 9.0]


@pytest.mark.parametrize("num_states", [0, 1, 3])
@pytest.mark.parametrize("is_whole", [True, False])
def test_each_row_is_told_what_torch_tells_it(num_states: int, *, is_whole: bool) -> None:
    num_rows, generator = len(VALUES), torch.Generator().manual_seed(5)
    logits = torch.randn(num_rows, 5000, generator=generator) * 3
    scores = logits.clone()
    scores[9, 7] = -INF
    value = torch.tensor(VALUES, dtype=torch.float64)[:, None]
    states = {f"number {one}": torch.rand(num_rows, 1, generator=generator).double() for one in range(num_states)}
    states["vector"] = torch.zeros(num_rows, 5000, dtype=torch.float64)
    node, vector = (torch.arange(num_rows)[:, None] == row for row in (10, 11))
    if num_states:
        states["number 0"][[2, 10]] = torch.tensor([[INF], [NAN]], dtype=torch.float64)
    checks = [node, value, *(one for name, one in states.items() if name != "vector"), vector]
    found = TracedResults(value, states, checks, 1, [str(one) for one in range(len(checks))])
    wholes = []
    for _ in range(2):
        buffers = DecodeBuffers.make(num_rows + 4, 2, 0, torch.device("cpu"))
        buffers.outputs[2, : num_rows // 2] = buffers.inputs[4, : num_rows // 2] = 1  # who had failed before
        buffers.inputs[1:4] = 5
        wholes.append(Whole(logits, buffers.outputs[:, :num_rows], buffers.inputs[:, :num_rows]))
    mine, theirs = wholes
    told, chosen = told_kernels.told_of(
        found, logits, scores, *((mine.outputs, mine.inputs) if is_whole else (None,) * 2)
    )
    right, right_chosen = told_by_torch(found, logits, scores, theirs if is_whole else None)
    torch.testing.assert_close(told, right, atol=2e-6, rtol=0, equal_nan=True)
    assert torch.equal(chosen, right_chosen)
    assert torch.equal(mine.outputs, theirs.outputs)
    assert torch.equal(mine.inputs, theirs.inputs)
    assert len(set(told[:, 2].tolist())) >= 5
