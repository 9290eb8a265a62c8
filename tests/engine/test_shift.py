"""Cached keys moved to other positions: they are what the model would have computed there."""

import dataclasses

import numpy as np
import pytest
import torch
from engine_rig import CLOSE, Rig, dense_rows, log_softmax, some_tokens

from loopwright.core.batch import Batch, BlockCopy, ForwardRow, KvShift
from loopwright.engine.byte_model import byte_model
from loopwright.engine.kv_cache import BLOCK_SIZE
from loopwright.engine.loaded_model import LoadedModel, RopeScaling
from loopwright.engine.oracle import Oracle

SCALINGS = {
    "plain": {},
    "linear": {"rope_scaling": RopeScaling("linear", 4.0)},
    "llama3": {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 64)},
    "yarn": {"rope_scaling": RopeScaling("yarn", 4.0, original_max_position=256, attention_factor=1.14)},
    "two bases": {"windows": (None, 32), "rope_theta": 1e6, "local_rope_theta": 1e4},
}


@pytest.fixture(params=SCALINGS)
def rotated(request: pytest.FixtureRequest) -> LoadedModel:
    return byte_model(1, **SCALINGS[request.param])


def shift(rig: Rig, table: list[int], start: int, size: int, delta: int):
    return rig.step(Batch(shifts=[KvShift(table, start, size, delta)])).shifts[0].error


def keys(rig: Rig, table: list[int], start: int, end: int, layer: int) -> np.ndarray:
    places = [table[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(start, end)]
    return rig.runner._cache.keys[layer][places].numpy()


def run(rig: Rig, tokens: list[int], first: int = 0, table: list[int] | None = None) -> list[int]:
    table = table or rig.blocks(len(tokens) + 32)
    [result] = rig.rows(ForwardRow(table, 0, list(range(first, first + len(tokens))), tokens))
    assert result.error is None
    return table


@pytest.mark.parametrize("delta", [1, 37, 3000])
def test_a_module_by_itself_is_the_same_at_any_position(rotated: LoadedModel, delta: int) -> None:
    """Attention depends on distances alone, so what a module computed at 0 … n - 1 is, turned, what it computes later:
    in every layer, and for what is asked of it then."""
    rig, module, question = Rig(rotated), some_tokens(40, 1), some_tokens(5, 2)
    moved = run(rig, module)
    assert shift(rig, moved, 0, 40, delta) is None
    there = run(rig, module, first=delta)
    for layer in (0, 1):
        np.testing.assert_allclose(keys(rig, moved, 0, 40, layer), keys(rig, there, 0, 40, layer), atol=2e-3)
    np.testing.assert_allclose(keys(rig, moved, 0, 40, 0), keys(rig, there, 0, 40, 0), atol=2e-6)
    positions = list(range(delta + 40, delta + 45))
    [result] = rig.rows(rig.row(question, kv_len=40, positions=positions, block_ids=moved))
    expected = Oracle(rotated).logits([*module, *question], list(range(delta, delta + 45)))[40:]
    np.testing.assert_allclose(dense_rows(result), log_softmax(expected), atol=2e-3)


def test_keys_turn_as_the_definition_says_and_values_stay(rotated: LoadedModel) -> None:
    """Against plain trigonometry: a key at position p + delta is its own pair turned by delta more."""
    rig, tokens = Rig(rotated), some_tokens(40, 3)
    table = run(rig, tokens, first=100)
    before = [keys(rig, table, 0, 40, layer) for layer in (0, 1)]
    values = [tensor.clone() for tensor in rig.runner._cache.values]
    assert shift(rig, table, 5, 30, -60) is None
    for layer, old in enumerate(before):
        angles = -60 * rotated.ropes[layer].frequencies.double().numpy()  # [head_dim / 2]
        even, odd = old[5:35, :, 0::2], old[5:35, :, 1::2]
        expected = old.copy()
        expected[5:35, :, 0::2] = even * np.cos(angles) - odd * np.sin(angles)
        expected[5:35, :, 1::2] = even * np.sin(angles) + odd * np.cos(angles)
        np.testing.assert_allclose(keys(rig, table, 0, 40, layer), expected, atol=1e-4)
        assert torch.equal(rig.runner._cache.values[layer], values[layer])
    places = [table[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(40)]
    positions = rig.runner._cache.positions[places].tolist()
    assert positions == [*range(100, 105), *range(45, 75), *range(135, 140)]


def test_there_and_back_is_where_it_was(rotated: LoadedModel) -> None:
    rig = Rig(rotated)
    table = run(rig, some_tokens(33), first=7)
    before = [keys(rig, table, 0, 33, layer) for layer in (0, 1)]
    for delta in (1000, -500, -500):
        assert shift(rig, table, 0, 33, delta) is None
    for layer in (0, 1):
        np.testing.assert_allclose(keys(rig, table, 0, 33, layer), before[layer], atol=2e-5)


def test_streaming_positions_are_those_within_the_cache() -> None:
    """StreamingLLM: four sinks stay, the middle is dropped, and the rest moves up behind the sinks. In one layer keys
    depend on token and position alone, so the cache equals one that was filled with just these tokens there."""
    model = byte_model(2, num_layers=1)
    rig, tokens = Rig(model), some_tokens(48, 5)
    table, packed = run(rig, tokens), rig.blocks(48)
    num_dropped = 20
    copies = [BlockCopy(table[0], packed[0], 0, 0, 4)]
    for target in range(4, 48 - num_dropped):
        source = target + num_dropped
        copies.append(BlockCopy(table[source // 16], packed[target // 16], source % 16, target % 16, 1))
    rig.step(Batch(copies=copies))
    assert shift(rig, packed, 4, 24, -num_dropped) is None
    kept = [*tokens[:4], *tokens[24:]]
    [result] = rig.rows(rig.row([65, 66], kv_len=28, block_ids=packed))
    expected = Oracle(model).logits([*kept, 65, 66])[28:]
    np.testing.assert_allclose(dense_rows(result), log_softmax(expected), **CLOSE)


def test_a_shift_of_some_places_leaves_their_neighbours_alone(model: LoadedModel) -> None:
    rig = Rig(model)
    table = run(rig, some_tokens(40))
    before = [tensor.clone() for tensor in rig.runner._cache.keys]
    assert shift(rig, table, 15, 2, 9) is None
    touched = {table[0] * 16 + 15, table[1] * 16}
    for old, new in zip(before, rig.runner._cache.keys, strict=True):
        differs = (old != new).flatten(1).any(1).nonzero().flatten().tolist()
        assert set(differs) == touched


def test_a_shift_out_of_the_context_fails_alone_and_moves_nothing() -> None:
    model = byte_model(1)
    rig = Rig(dataclasses.replace(model, config=dataclasses.replace(model.config, max_context=64)))
    table, other = run(rig, some_tokens(20)), run(rig, some_tokens(20, 1))
    before = keys(rig, table, 0, 20, 0)
    good = KvShift(other, 0, 20, 3)
    result = rig.step(Batch(shifts=[KvShift(table, 0, 20, 45), KvShift(table, 5, 3, -6), good]))
    too_long, negative, fine = (one.error for one in result.shifts)
    assert too_long.type == "ContextTooLong"
    assert too_long.message == (
        "delta: 45 moves a token to position 64, which needs a context of 65 tokens; the model's is 64"
    )
    assert (negative.type, negative.message) == ("BadRequest", "delta: -6 moves a token to position -1")
    assert fine is None
    np.testing.assert_array_equal(keys(rig, table, 0, 20, 0), before)
    assert shift(rig, [table[0]], 10, 10, 1).type == "InternalError"
