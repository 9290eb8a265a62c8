"""One batch at a time: handlers apart and fused, copies, isolation of rows, and what is refused."""

import math

import numpy as np
import pytest
import torch
from engine_rig import CLOSE, Rig, dense, dense_rows, log_softmax, pairs, some_tokens
from msgspec.structs import replace

from loopwright.core.batch import Batch, BlockCopy, EmbedRow, ForwardRow, HeadRow
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.core.errors import InternalError
from loopwright.engine.byte_model import byte_model
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.oracle import Oracle


def prompt_row(rig: Rig, tokens: list[int], **fields) -> ForwardRow:
    fields.setdefault("block_ids", rig.blocks(len(tokens)))
    return ForwardRow(kv_len=0, positions=list(range(len(tokens))), token_ids=tokens, **fields)


def test_embed_then_forward_then_head_equals_the_fused_row(model: LoadedModel) -> None:
    rig, tokens = Rig(model), some_tokens(21)
    positions = [*range(15), *range(50, 56)]
    sampling = Sampling(temperature=1.0, top_p=0.9, seed=5)
    fused = rig.rows(
        ForwardRow(block_ids=rig.blocks(21), kv_len=0, positions=positions, token_ids=tokens, sampling=sampling,
                   sample_position=56, distributions=[DistributionRequest(k=9)])
    )[0]  # fmt: skip

    slots = list(range(10, 31))
    rig.step(Batch(embeds=[EmbedRow(tokens, positions, slots)]))
    result = rig.rows(
        ForwardRow(block_ids=rig.blocks(21), kv_len=0, positions=(), input_slots=slots, output_slots=[40, 41])
    )[0]
    assert (result.token_id, result.distributions, result.error) == (None, (), None)
    apart = rig.heads(HeadRow(41, [DistributionRequest(k=9)], sampling, sample_position=56))[0]
    assert apart.token_id == fused.token_id
    assert apart.logprob == pytest.approx(fused.logprob, abs=1e-6)
    assert [i for i, _ in pairs(apart.distributions[0])] == [i for i, _ in pairs(fused.distributions[0])]


def test_positions_may_be_ranges_that_begin_anywhere(model: LoadedModel) -> None:
    """Which are checked by their ends."""
    rig, tokens = Rig(model), some_tokens(30)
    blocks = rig.blocks(30)
    found = [
        rig.rows(rig.row(tokens[start:end], start, range(start, end), block_ids=blocks))[0]
        for start, end in ((0, 20), (20, 30))
    ]
    expected = log_softmax(Oracle(model).logits(tokens))
    np.testing.assert_allclose(np.concatenate([dense_rows(one) for one in found]), expected, **CLOSE)
    for positions in (range((1 << 31) - 2, (1 << 31) + 1), range(-1, 2)):
        refused = rig.rows(rig.row(tokens[:3], positions=positions))[0]
        assert refused.error is not None
        assert f"{positions[2] if positions[0] > 0 else -1} is outside" in refused.error.message


def test_one_batch_takes_rows_of_tokens_and_rows_of_slots(model: LoadedModel) -> None:
    rig = Rig(model)
    first, second, third = some_tokens(5, 1), some_tokens(7, 2), some_tokens(3, 3)
    rig.step(Batch(embeds=[EmbedRow(second, list(range(100, 107)), list(range(7)))]))
    rows = [
        rig.row(first),
        ForwardRow(block_ids=rig.blocks(7), kv_len=0, positions=(), input_slots=list(range(7)),
                   distributions=rig.everything(7)),
        rig.row(third),
    ]  # fmt: skip
    results = rig.rows(*rows)
    for tokens, start, result in zip((first, second, third), (0, 100, 0), results, strict=True):
        expected = Oracle(model).logits(tokens, list(range(start, start + len(tokens))))
        np.testing.assert_allclose(dense_rows(result), log_softmax(expected), **CLOSE)


def test_output_slots_hold_the_last_tokens_in_order(model: LoadedModel) -> None:
    rig, tokens = Rig(model), some_tokens(6)
    rig.rows(prompt_row(rig, tokens, output_slots=[3, 1, 2]))
    expected = log_softmax(Oracle(model).logits(tokens))
    everything = [DistributionRequest(k=rig.vocab_size)]
    results = rig.heads(*(HeadRow(slot, everything) for slot in (3, 1, 2)))
    for index, result in zip((3, 4, 5), results, strict=True):
        np.testing.assert_allclose(dense(result.distributions[0]), expected[index], **CLOSE)
    assert rig.runner._slots.positions[[3, 1, 2]].tolist() == [3, 4, 5]


def test_distributions_come_in_the_order_asked_whatever_their_index(model: LoadedModel) -> None:
    rig, tokens = Rig(model), some_tokens(4)
    indices = [2, -1, 0, 2, 3]
    requests = [DistributionRequest(index=index, k=k) for index, k in zip(indices, (5, 6, 7, 8, 9), strict=True)]
    [result] = rig.rows(prompt_row(rig, tokens, distributions=requests, sampling=Sampling()))
    expected = log_softmax(Oracle(model).logits(tokens))
    for index, k, one in zip(indices, (5, 6, 7, 8, 9), result.distributions, strict=True):
        listed = pairs(one)
        assert [i for i, _ in listed] == np.argsort(-expected[index], kind="stable")[:k].tolist()
    assert result.token_id == int(expected[3].argmax())


def test_more_logits_than_fit_at_once_are_answered_in_order(model: LoadedModel) -> None:
    rig, tokens = Rig(model), some_tokens(150)
    expected = log_softmax(Oracle(model).logits(tokens))
    np.testing.assert_allclose(rig.logprobs(tokens), expected, **CLOSE)


def test_copies_move_ranges_of_tokens_of_every_layer(model: LoadedModel) -> None:
    """A fork: the full block is shared, the tail is copied, and both branches go on."""
    rig, tokens = Rig(model), some_tokens(21)
    table = rig.blocks(21)
    rig.rows(prompt_row(rig, tokens, block_ids=table))
    [copy] = rig.blocks(1)
    rig.step(Batch(copies=[BlockCopy(table[1], copy, 0, 0, 5)]))
    branches = [some_tokens(8, 8), some_tokens(8, 9)]
    rows = [
        rig.row(branch, kv_len=21, block_ids=blocks)
        for branch, blocks in zip(branches, (table, [table[0], copy]), strict=True)
    ]
    for branch, result in zip(branches, rig.rows(*rows), strict=True):
        expected = log_softmax(Oracle(model).logits(tokens + branch))[21:]
        np.testing.assert_allclose(dense_rows(result), expected, **CLOSE)


def test_copies_at_offsets_compact_a_page(model: LoadedModel) -> None:
    """Tokens 4 … 9 are dropped: what is left keeps its positions, and equals a run that masked them."""
    rig, tokens = Rig(model), some_tokens(16)
    table, packed = rig.blocks(16), rig.blocks(16)
    rig.rows(prompt_row(rig, tokens, block_ids=table))
    rig.step(Batch(copies=[BlockCopy(table[0], packed[0], 0, 0, 4), BlockCopy(table[0], packed[0], 10, 4, 6)]))
    [result] = rig.rows(rig.row([65], kv_len=10, positions=[16], block_ids=packed))
    is_visible = torch.ones(17, 17, dtype=torch.bool).tril()
    is_visible[16, 4:10] = False
    expected = log_softmax(Oracle(model).logits([*tokens, 65], mask=is_visible))[16:]
    np.testing.assert_allclose(dense_rows(result), expected, **CLOSE)


def test_copies_read_before_any_of_them_writes(model: LoadedModel) -> None:
    rig, tokens = Rig(model), some_tokens(32)
    table = rig.blocks(32)
    rig.rows(prompt_row(rig, tokens, block_ids=table))
    cache = rig.runner._cache.keys[1].clone()
    first, second = table
    rig.step(Batch(copies=[BlockCopy(first, second, 0, 0, 16), BlockCopy(second, first, 0, 0, 16)]))
    after = rig.runner._cache.keys[1]
    assert torch.equal(after[first * 16 : first * 16 + 16], cache[second * 16 : second * 16 + 16])
    assert torch.equal(after[second * 16 : second * 16 + 16], cache[first * 16 : first * 16 + 16])


def test_a_row_of_nan_fails_alone(model: LoadedModel) -> None:
    rig, tokens = Rig(model), some_tokens(20)
    tables = [rig.blocks(21) for _ in range(3)]
    rig.step(Batch(rows=[prompt_row(rig, tokens, block_ids=table) for table in tables]))
    rig.runner._cache.values[0][tables[1][0] * 16] = torch.nan
    rows = [rig.row([66], kv_len=20, block_ids=table, sampling=Sampling()) for table in tables]
    results = rig.rows(*rows)
    assert results[1].error is not None
    assert results[1].error.code == "internal"
    assert results[1].token_id is None
    expected = log_softmax(Oracle(model).logits([*tokens, 66]))[20:]
    for i in (0, 2):
        np.testing.assert_allclose(dense_rows(results[i]), expected, **CLOSE)


def test_nan_in_a_neighbour_of_another_length_does_not_spread(model: LoadedModel) -> None:
    rig = Rig(model)
    short, long = some_tokens(17, 1), some_tokens(40, 2)
    tables = [rig.blocks(18), rig.blocks(41)]
    rig.step(Batch(rows=[prompt_row(rig, t, block_ids=b) for t, b in zip((short, long), tables, strict=True)]))
    for layer in (0, 1):
        rig.runner._cache.values[layer][tables[1][0] * 16 : tables[1][0] * 16 + 16] = torch.inf
    rows = [rig.row([66], kv_len=len(t), block_ids=b) for t, b in zip((short, long), tables, strict=True)]
    results = rig.rows(*rows)
    assert results[1].error is not None
    expected = log_softmax(Oracle(model).logits([*short, 66]))[17:]
    np.testing.assert_allclose(dense_rows(results[0]), expected, **CLOSE)


def test_seeded_rows_repeat_in_any_batch(model: LoadedModel) -> None:
    rig, tokens = Rig(model), some_tokens(30)
    sampling = Sampling(temperature=1.0, seed=123)

    def row(seed: int) -> ForwardRow:
        return prompt_row(rig, tokens, sampling=replace_seed(sampling, seed), sample_position=30)

    [alone] = rig.rows(row(123))
    together = rig.rows(row(123), *(row(seed) for seed in range(6)), row(123))
    assert together[0].token_id == together[-1].token_id == alone.token_id
    assert len({result.token_id for result in together}) > 1


def replace_seed(sampling: Sampling, seed: int) -> Sampling:
    return Sampling(temperature=sampling.temperature, seed=seed)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"token_ids": [1, 260, 3]}, "token_ids"),
        ({"token_ids": [1, -1, 3]}, "token_ids"),
        ({"token_ids": []}, "token_ids"),
        ({"input_slots": [1]}, "token_ids"),
        ({"positions": [0, 1]}, "positions"),
        ({"positions": [0, 1, -1]}, "positions"),
        ({"kv_len": 14}, "kv_len"),
        ({"kv_len": -1}, "kv_len"),
        ({"block_ids": []}, "kv_len"),
        ({"block_ids": [10**6]}, "block_ids"),
        ({"output_slots": [64]}, "output_slots"),
        ({"output_slots": [1, 2, 3, 4]}, "outputs"),
        ({"mask": [(0, 1), (0, 2)]}, "mask"),
        ({"mask": [(0, 1), (0, 2), (3,)]}, "mask"),
        ({"mask": [(0, 1), (0, 2), (0, 4)]}, "mask"),
        ({"mask": [(0, 1), (2, 1), (0, 3)]}, "mask"),
        ({"distributions": [DistributionRequest(index=3)]}, "index"),
        ({"distributions": [DistributionRequest(index=-4)]}, "index"),
        ({"distributions": [DistributionRequest(k=261)]}, "k"),
        ({"distributions": [DistributionRequest(k=1, must_include=(300,))]}, "must_include"),
        ({"sampling": Sampling(allowed=())}, "allowed"),
        ({"sampling": Sampling(allowed=(260, 999))}, "allowed"),
        ({"sampling": Sampling(logit_bias={260: 1.0})}, "logit_bias"),
        ({"sampling": Sampling(logit_bias={1: math.inf})}, "logit_bias"),
    ],
)
def test_a_wrong_row_is_its_own_error_and_the_batch_goes_on(model: LoadedModel, changes: dict, field: str) -> None:
    rig = Rig(model)
    good = rig.row([1, 2, 3])
    wrong = replace(prompt_row(rig, [1, 2, 3]), **changes)
    results = rig.rows(wrong, good, wrong)
    for result in (results[0], results[2]):
        assert result.error is not None
        assert result.error.field == field
        assert "\n" not in result.error.message
    np.testing.assert_allclose(dense_rows(results[1]), log_softmax(Oracle(model).logits([1, 2, 3])), **CLOSE)


def test_a_batch_of_wrong_rows_only_has_only_errors(model: LoadedModel) -> None:
    rig = Rig(model)
    results = rig.step(
        Batch(rows=[prompt_row(rig, [999])], heads=[HeadRow(64), HeadRow(0, [DistributionRequest(k=300)])])
    )
    assert [one.error.field for one in (*results.rows, *results.heads)] == ["token_ids", "slot", "k"]


@pytest.mark.parametrize(
    "batch",
    [
        Batch(copies=[BlockCopy(0, 128, 0, 0, 1)]),
        Batch(copies=[BlockCopy(0, 1, 10, 0, 7)]),
        Batch(copies=[BlockCopy(0, 1, 0, -1, 1)]),
        Batch(copies=[BlockCopy(0, 1, 0, 0, 0)]),
        Batch(embeds=[EmbedRow([260], [0], [0])]),
        Batch(embeds=[EmbedRow([1], [0], [64])]),
        Batch(embeds=[EmbedRow([1, 2], [0], [1])]),
    ],
)
def test_a_copy_or_an_embed_that_cannot_be_fails_the_step_before_anything_ran(model: LoadedModel, batch: Batch) -> None:
    rig = Rig(model)
    row = prompt_row(rig, [1, 2, 3])
    with pytest.raises(InternalError):
        rig.step(replace(batch, rows=[row]))
    assert not any(tensor.any() for tensor in rig.runner._cache.keys)


def test_an_empty_batch_gives_an_empty_result(model: LoadedModel) -> None:
    result = Rig(model).step(Batch())
    assert (result.rows, result.heads) == ((), ())


def test_the_shape_is_that_of_the_model_and_the_sizes_asked_for() -> None:
    shape = Rig(byte_model(), num_blocks=7, num_slots=5).runner.shape
    assert (shape.vocab_size, shape.max_context, shape.block_size, shape.num_blocks, shape.num_slots) == (
        260, 4096, 16, 7, 5,
    )  # fmt: skip
