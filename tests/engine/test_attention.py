"""Masks, groups and page tables of the reference back-end."""

import numpy as np
import pytest
import torch
from engine_rig import CLOSE, Rig, dense_rows, log_softmax, runs_of, some_tokens
from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.batch import ForwardRow
from loopwright.core.errors import Unavailable
from loopwright.engine.attention import make_attention, seen_places, visible_places
from loopwright.engine.byte_model import BYTE_CONFIG
from loopwright.engine.kv_cache import KvCache
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.oracle import Oracle


def random_mask(num_tokens: int, seed: int) -> torch.Tensor:
    mask = torch.rand(num_tokens, num_tokens, generator=torch.Generator().manual_seed(seed)) < 0.6
    mask.fill_diagonal_(True)
    return mask.tril()


def test_run_lengths_alternate_from_hidden() -> None:
    assert visible_places((2, 3, 1), 8).tolist() == [False, False, True, True, True, False, False, False]
    assert visible_places((0, 1, 2, 1), 5).tolist() == [True, False, False, True, False]
    assert not visible_places((), 3).any()


@given(st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=7), st.integers(0, 12)), max_size=6))
def test_visibilities_of_many_tokens_are_those_of_each(tokens: list[tuple[list[int], int]]) -> None:
    """Each with as many places as its visible runs reach, and some more; a hidden run at the end has any length."""
    masks = [tuple(runs) for runs, _ in tokens]
    widths = [sum(runs[: len(runs) // 2 * 2]) + more for runs, more in tokens]
    expected = [visible_places(runs, width) for runs, width in zip(masks, widths, strict=True)]
    found = seen_places(masks, np.array(widths, np.int64))
    assert found.tolist() == [bool(one) for row in expected for one in row]


@pytest.mark.parametrize("num_tokens", [1, 2, 17, 50])
def test_a_masked_prefill_equals_dense_attention(model: LoadedModel, num_tokens: int) -> None:
    tokens, mask = some_tokens(num_tokens), random_mask(num_tokens, seed=3)
    runs = [runs_of(row.tolist()) for row in mask]
    expected = log_softmax(Oracle(model).logits(tokens, mask=mask))
    np.testing.assert_allclose(Rig(model).logprobs(tokens, mask=runs), expected, **CLOSE)


def test_masked_and_plain_rows_of_one_batch_keep_to_themselves(model: LoadedModel) -> None:
    rig, oracle = Rig(model), Oracle(model)
    masks = [random_mask(40, seed) for seed in range(6)]
    sequences = [some_tokens(40, seed) for seed in range(6)]
    tables = [rig.blocks(40) for _ in sequences]
    starts = [39, 39, 39, 33, 33, 0]  # three single tokens, two short rows, one whole
    for mask, tokens, table, start in zip(masks, sequences, tables, starts, strict=True):
        if start:
            rig.rows(rig.row(tokens[:start], block_ids=table, mask=[runs_of(row.tolist()) for row in mask[:start]]))
    plain = torch.ones(40, 40, dtype=torch.bool).tril()
    for i in (1, 3):
        masks[i] = torch.cat([masks[i][: starts[i]], plain[starts[i] :]])
    batch = [
        rig.row(tokens[start:], kv_len=start, block_ids=table,
                mask=None if i in (1, 3) else [runs_of(row.tolist()) for row in mask[start:]])
        for i, (mask, tokens, table, start) in enumerate(zip(masks, sequences, tables, starts, strict=True))
    ]  # fmt: skip
    for mask, tokens, start, result in zip(masks, sequences, starts, rig.rows(*batch), strict=True):
        expected = log_softmax(oracle.logits(tokens, mask=mask))[start:]
        np.testing.assert_allclose(dense_rows(result), expected, **CLOSE)


def test_a_far_start_hidden_from_a_late_token_makes_no_nan(model: LoadedModel) -> None:
    """More than one tile of the kernel is hidden before the first visible place."""
    rig, tokens = Rig(model), some_tokens(1300)
    table = rig.blocks(len(tokens))
    rig.rows(ForwardRow(block_ids=table, kv_len=0, positions=list(range(1299)), token_ids=tokens[:1299]))
    mask = torch.ones(1300, 1300, dtype=torch.bool).tril()
    mask[1299, :1290] = False
    row = rig.row(tokens[1299:], kv_len=1299, block_ids=table, mask=[(1290, 10)])
    expected = log_softmax(Oracle(model).logits(tokens, mask=mask))[1299:]
    np.testing.assert_allclose(dense_rows(rig.rows(row)[0]), expected, **CLOSE)


def test_consecutive_and_scattered_pages_give_the_same(model: LoadedModel) -> None:
    tokens = some_tokens(40)
    results = []
    for table in ([4, 5, 6], [6, 4, 5], [9, 2, 30]):
        rig = Rig(model)
        rig.rows(ForwardRow(block_ids=table, kv_len=0, positions=list(range(39)), token_ids=tokens[:39]))
        results.append(dense_rows(rig.rows(rig.row(tokens[39:], kv_len=39, block_ids=table))[0]))
    assert (results[0] == results[1]).all()
    assert (results[0] == results[2]).all()


def test_pages_beyond_the_tokens_are_not_read(model: LoadedModel) -> None:
    rig, tokens = Rig(model), some_tokens(20)
    rig.runner._cache.keys[0][100 * 16 :] = torch.nan
    block_ids = [*rig.blocks(20), 100, 101]
    expected = log_softmax(Oracle(model).logits(tokens))
    np.testing.assert_allclose(rig.logprobs(tokens, block_ids=block_ids), expected, **CLOSE)


def test_two_rows_read_one_shared_page(model: LoadedModel) -> None:
    rig, oracle = Rig(model), Oracle(model)
    prefix, [shared] = some_tokens(16), rig.blocks(16)
    rig.rows(ForwardRow(block_ids=[shared], kv_len=0, positions=list(range(16)), token_ids=prefix))
    tails = [some_tokens(9, seed) for seed in (5, 6)]
    rows = [rig.row(tail, kv_len=16, block_ids=[shared, *rig.blocks(9)]) for tail in tails]
    for tail, result in zip(tails, rig.rows(*rows), strict=True):
        expected = log_softmax(oracle.logits(prefix + tail))[16:]
        np.testing.assert_allclose(dense_rows(result), expected, **CLOSE)


def test_an_unknown_back_end_says_what_exists() -> None:
    with pytest.raises(Unavailable, match=r"'flashinfer' does not exist; known are sdpa"):
        make_attention("flashinfer", KvCache(BYTE_CONFIG, num_blocks=1))


def test_a_hidden_run_at_the_end_of_any_length_harms_no_neighbour(model: LoadedModel) -> None:
    rig, tokens = Rig(model), some_tokens(4)
    expected = rig.logprobs(tokens)
    endless = [(0, place + 1, 2**70) for place in range(4)]
    nothing_after = [(0, place + 1, 100, 0) for place in range(4)]
    for mask in (endless, nothing_after):
        for result in rig.rows(rig.row(tokens), rig.row(tokens, mask=mask)):
            np.testing.assert_allclose(dense_rows(result), expected, **CLOSE)
