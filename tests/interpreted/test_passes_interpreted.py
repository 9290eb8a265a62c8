"""A pass over prompts as a graph would have it equals the pass launch by launch, with rows of one token and without."""

import dataclasses

import pytest
import torch
from test_kernels import is_near

from loopwright.engine.attention import AttentionRow
from loopwright.engine.byte_model import byte_model
from loopwright.engine.cuda import passes as passes_module
from loopwright.engine.cuda.buffers import DecodeBuffers
from loopwright.engine.cuda.parts import DeviceParts
from loopwright.engine.cuda.passes import Passes

CPU = torch.device("cpu")
MAX_ROWS, MAX_BLOCKS = 6, 8


@pytest.mark.parametrize("windows", [(None, None), (20, None)], ids=["no window", "a window"])
def test_a_pass_over_prompts_is_that_of_launches(
    windows: tuple[int | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of one token: none, few, and more than few, with what an earlier pass has left behind. A prompt begins, and
    another one goes on."""
    monkeypatch.setattr(passes_module, "FEW_ROWS", 3)
    model = byte_model(seed=2, num_layers=2, num_heads=4, num_kv_heads=2, windows=windows)
    ways = [
        DeviceParts.make(model, num_blocks=60, device=CPU, dtype=torch.bfloat16, attention="triton", has_kernels=True)
        for _ in range(2)
    ]
    passes = Passes(ways[0].decoder, MAX_ROWS, MAX_BLOCKS)
    with torch.inference_mode():
        for way in ways:
            for layer in way.cache.layers:
                layer.copy_(torch.randn(layer.shape, generator=torch.Generator().manual_seed(1)))
            way.cache.positions.copy_(torch.arange(len(way.cache.positions)) % 128)
        for number, num_singles in enumerate([5, 0, 2]):
            rows = [AttentionRow(list(range(8)), 0, 37), AttentionRow(list(range(8, 16)), 70, 9)]
            positions = torch.cat([torch.arange(37), torch.arange(70, 79)])
            hidden = torch.randn(46, model.config.hidden_size, generator=torch.Generator().manual_seed(number))
            found = []
            for way in ways:
                buffers = DecodeBuffers.make(MAX_ROWS, MAX_BLOCKS, way.cache.scratch_block, CPU)
                for row in range(num_singles):
                    length = 10 + 13 * row + number
                    buffers.table[row] = torch.arange(16 + 8 * row, 24 + 8 * row)[:MAX_BLOCKS]
                    buffers.inputs[:4, row] = torch.tensor([7 + row, length, length, 1])
                if way is ways[0]:
                    assert not passes.has(num_singles, rows), "nothing is captured on the CPU"
                    normalized, others = passes.run(buffers, num_singles, hidden.clone(), positions, rows)
                    found.append((way.decoder.logits(normalized), others.clone()))
                elif num_singles:
                    found.append(way.decoder.forward_beside(buffers, num_singles, hidden.clone(), positions, rows))
                else:
                    found.append((torch.zeros(0, 260), way.decoder.forward(hidden.clone(), positions, rows)))
            (logits, others), (expected, wanted) = found
            assert len(logits) == num_singles
            assert num_singles == 0 or is_near(logits, expected)
            assert is_near(others, wanted)
            for mine, theirs in zip(ways[0].cache.layers, ways[1].cache.layers, strict=True):
                assert is_near(mine[:59], theirs[:59])
            assert torch.equal(ways[0].cache.positions[: 59 * 16], ways[1].cache.positions[: 59 * 16])


def test_what_a_graph_is_not_for() -> None:
    row = AttentionRow([0], 0, 16)
    assert passes_module.fits([row])
    assert not passes_module.fits([dataclasses.replace(row, mask=((0, 1),) * 16)])
    assert not passes_module.fits([dataclasses.replace(row, kv_len=passes_module.MAX_PLACES)])
    assert not passes_module.fits([row] * (passes_module.MAX_PROMPTS + 1))
