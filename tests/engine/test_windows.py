"""Windows go by position, whatever the page table, the mask and the copies; the oracle is dense."""

import numpy as np
import pytest
import torch
from engine_rig import CLOSE, Rig, dense_rows, log_softmax, runs_of, some_tokens

from loopwright.core.batch import Batch, BlockCopy, EmbedRow, ForwardRow
from loopwright.engine.byte_model import byte_model
from loopwright.engine.loaded_model import Experts, LoadedModel
from loopwright.engine.oracle import Oracle


@pytest.fixture(scope="module")
def windowed() -> LoadedModel:
    """A layer with a short window, one with a longer one, and one that sees all."""
    return byte_model(seed=5, num_layers=3, windows=(5, 20, None), local_rope_theta=500.0)


def assert_equal(actual: np.ndarray, expected: torch.Tensor) -> None:
    np.testing.assert_allclose(actual, log_softmax(expected), **CLOSE)


def test_windows_change_the_answer_from_their_length_on(windowed: LoadedModel) -> None:
    tokens = some_tokens(60)
    wide = byte_model(seed=5, num_layers=3, windows=(60, 60, None), local_rope_theta=500.0)
    difference = np.abs(Rig(windowed).logprobs(tokens) - Rig(wide).logprobs(tokens)).max(axis=1)
    assert difference[:5].max() < 1e-5
    assert difference[5:].min() > 1e-4


@pytest.mark.parametrize("stride", [1, 2, 5, 6])
def test_gaps_between_positions_count(windowed: LoadedModel, stride: int) -> None:
    """With a stride of the window or more, its layer shows each token only itself."""
    tokens, positions = some_tokens(30), [7 + stride * i for i in range(30)]
    expected = Oracle(windowed).logits(tokens, positions)
    rig = Rig(windowed)
    table = rig.blocks(30)
    parts = [
        dense_rows(rig.rows(rig.row(tokens[a:b], kv_len=a, positions=positions[a:b], block_ids=table))[0])
        for a, b in ((0, 11), (11, 12), (12, 29), (29, 30))
    ]
    assert_equal(np.concatenate(parts), expected)


def test_positions_that_go_back_are_near_and_causal_by_place(windowed: LoadedModel) -> None:
    tokens, positions = some_tokens(24), [*range(100, 112), *range(12)]
    assert_equal(Rig(windowed).logprobs(tokens, positions), Oracle(windowed).logits(tokens, positions))


def test_rows_of_one_batch_have_windows_of_their_own(windowed: LoadedModel) -> None:
    rig, oracle = Rig(windowed), Oracle(windowed)
    sequences = [(some_tokens(size + 1, size), [3 * i if size % 2 else i for i in range(size + 1)])
                 for size in (3, 4, 30, 31, 45, 17)]  # fmt: skip
    tables = [rig.blocks(len(tokens)) for tokens, _ in sequences]
    for (tokens, positions), table in zip(sequences, tables, strict=True):
        rig.rows(rig.row(tokens[:-1], positions=positions[:-1], block_ids=table))
    rows = [
        rig.row(tokens[-1:], kv_len=len(tokens) - 1, positions=positions[-1:], block_ids=table)
        for (tokens, positions), table in zip(sequences, tables, strict=True)
    ]
    for (tokens, positions), result in zip(sequences, rig.rows(*rows), strict=True):
        assert_equal(dense_rows(result), oracle.logits(tokens, positions)[-1:])


def test_a_mask_and_a_window_hide_what_either_hides(windowed: LoadedModel) -> None:
    """Some tokens see nothing in the layer of the shortest window: their attention there is zero."""
    tokens = some_tokens(40)
    mask = torch.rand(40, 40, generator=torch.Generator().manual_seed(1)) < 0.2
    mask[:, 0] = True
    mask = mask.tril()
    is_blind = ~(mask & (torch.arange(40)[:, None] - torch.arange(40) < 5)).any(dim=1)
    assert is_blind.any()
    actual = Rig(windowed).logprobs(tokens, mask=[runs_of(row.tolist()) for row in mask])
    assert_equal(actual, Oracle(windowed).logits(tokens, mask=mask))


def test_copies_carry_positions_with_the_kv(windowed: LoadedModel) -> None:
    """Tokens 4 … 9 are dropped: those before keep their positions, and are out of the short window."""
    rig, tokens = Rig(windowed), some_tokens(16)
    table, packed = rig.blocks(16), rig.blocks(16)
    rig.rows(ForwardRow(block_ids=table, kv_len=0, positions=list(range(16)), token_ids=tokens))
    rig.step(Batch(copies=[BlockCopy(table[0], packed[0], 0, 0, 4), BlockCopy(table[0], packed[0], 10, 4, 6)]))
    [result] = rig.rows(rig.row([65], kv_len=10, positions=[16], block_ids=packed))
    is_visible = torch.ones(17, 17, dtype=torch.bool).tril()
    is_visible[16, 4:10] = False
    assert_equal(dense_rows(result), Oracle(windowed).logits([*tokens, 65], mask=is_visible)[16:])


def test_a_reused_block_forgets_the_positions_of_its_last_user(windowed: LoadedModel) -> None:
    rig, tokens = Rig(windowed), some_tokens(20)
    table = rig.blocks(20)
    rig.rows(rig.row(some_tokens(20, 9), positions=list(range(1000, 1020)), block_ids=table))
    assert_equal(rig.logprobs(tokens, block_ids=table), Oracle(windowed).logits(tokens))


def test_slots_bring_their_positions(windowed: LoadedModel) -> None:
    rig, tokens, positions = Rig(windowed), some_tokens(12), [4 * i for i in range(12)]
    rig.step(Batch(embeds=[EmbedRow(tokens, positions, list(range(12)))]))
    row = ForwardRow(block_ids=rig.blocks(12), kv_len=0, positions=(), input_slots=list(range(12)),
                     distributions=rig.everything(12))  # fmt: skip
    assert_equal(dense_rows(rig.rows(row)[0]), Oracle(windowed).logits(tokens, positions))


@pytest.mark.parametrize("name", ["windowed", "experts"])
def test_nan_stays_in_its_row(name: str, windowed: LoadedModel) -> None:
    experts = Experts(num_experts=4, num_chosen=2, intermediate_size=32, is_normalized=True)
    model = windowed if name == "windowed" else byte_model(seed=5, architecture="qwen3moe", experts=experts)
    rig, tokens = Rig(model), some_tokens(20)
    tables = [rig.blocks(21) for _ in range(3)]
    rig.step(Batch(rows=[rig.row(tokens, block_ids=table) for table in tables]))
    last = tables[1][1] * 16 + 3  # the last place that holds KV: in every window
    rig.runner._cache.values[0][last] = torch.nan
    results = rig.rows(*(rig.row([66], kv_len=20, block_ids=table) for table in tables))
    assert results[1].error is not None
    assert results[1].error.type == "InternalError"
    for result in (results[0], results[2]):
        assert_equal(dense_rows(result), Oracle(model).logits([*tokens, 66])[20:])
