"""The deterministic class of a GPU through the device's runner: whoever is beside a row, one answer."""

import numpy as np
import pytest
import torch

from loopwright.core.batch import Batch, BlockCopy, DecodeRows, ForwardRow
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.core.model_info import WeightDtype
from loopwright.engine.byte_model import byte_model
from loopwright.engine.cuda.matrices import kinds
from loopwright.engine.cuda.parts import DeviceParts
from loopwright.engine.cuda.runner import DeviceRunner
from loopwright.engine.loaded_model import LoadedModel
from runner_rig import Rig, dense_rows, runs_of, some_tokens

CPU = torch.device("cpu")
TOKENS = some_tokens(24)


def rig_of(model: LoadedModel, dtype: WeightDtype = "bfloat16") -> Rig:
    def make(model: LoadedModel, num_blocks: int, num_slots: int) -> DeviceRunner:
        parts = DeviceParts.make(
            model, num_blocks=num_blocks, device=CPU, dtype=torch.bfloat16, attention="triton", has_kernels=True,
            kind_of=kinds(dtype), is_deterministic=True,
        )  # fmt: skip
        return DeviceRunner(model, parts, num_slots=num_slots, max_rows=64)

    return Rig(model, 256, make_runner=make)


def small(**changes: object) -> LoadedModel:
    return byte_model(seed=3, num_layers=1, hidden_size=48, intermediate_size=64, **changes)


def test_a_row_of_a_decode_step_has_its_own_bits_at_any_batch() -> None:
    """Beside 0, 1, 6, 31 and 63 others, at either end of a few."""
    rig = rig_of(small())
    tables = [rig.blocks(16) for _ in range(64)]
    for start in range(0, 64, 16):
        rig.rows(*(rig.row(some_tokens(3 + row % 3, row), block_ids=tables[row]) for row in range(start, start + 16)))
    asked = [DistributionRequest(k=1, logits=True)]
    found = set()
    for size in (1, 2, 7, 32, 64):
        for place in {0, size - 1} if size < 8 else {size - 2}:
            others = [row for row in range(64) if row != 9][: size - 1]
            rows = [*others[:place], 9, *others[place:]]
            result = rig.rows(
                *(ForwardRow(tables[row], 3 + row % 3, [3 + row % 3], [7], distributions=asked if row == 9 else ())
                  for row in rows)
            )  # fmt: skip
            found.add(result[place].distributions[0].logits)
    assert len(found) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "int4"])
def test_prompts_in_pieces_copies_and_recomputing_give_the_same_bits(dtype: WeightDtype) -> None:
    """Cold and in one piece; in pieces, beside others; token by token, as decode steps; on a copy of the pages; with a
    mask that hides nothing."""
    rig = rig_of(small(), dtype)
    cold = rig.logprobs(TOKENS)
    blocks = rig.blocks(24)
    pieces = [dense_rows(rig.rows(rig.row(TOKENS[:5], block_ids=blocks))[0])]
    pieces.append(
        dense_rows(rig.rows(rig.row(some_tokens(9, 2)), rig.row(TOKENS[5:18], kv_len=5, block_ids=blocks))[1])
    )
    fork = rig.blocks(24)
    rig.step(Batch(copies=[BlockCopy(blocks[0], fork[0], 0, 0, 16), BlockCopy(blocks[1], fork[1], 0, 0, 2)]))
    for place in range(18, 24):
        row = rig.row(TOKENS[place : place + 1], kv_len=place, block_ids=blocks)
        pieces.append(dense_rows(rig.rows(row, rig.row(TOKENS[:2]))[0]))
    np.testing.assert_array_equal(np.concatenate(pieces), cold)
    np.testing.assert_array_equal(dense_rows(rig.rows(rig.row(TOKENS[18:], kv_len=18, block_ids=fork))[0]), cold[18:])
    mask = tuple(runs_of([True] * (own + 1)) for own in range(24))
    np.testing.assert_array_equal(rig.logprobs(TOKENS, mask=mask), cold)


def test_norms_of_heads_biases_and_windows_keep_bits_too() -> None:
    rig = rig_of(small(architecture="qwen3", windows=(6,), has_qkv_bias=True))
    cold, blocks = rig.logprobs(TOKENS[:14]), rig.blocks(14)
    pieces = [
        dense_rows(rig.rows(rig.row(TOKENS[start:end], kv_len=start, block_ids=blocks), rig.row(TOKENS[:3]))[0])
        for start, end in ((0, 4), (4, 13), (13, 14))
    ]
    np.testing.assert_array_equal(np.concatenate(pieces), cold)


def test_a_seeded_row_draws_the_same_alone_and_among_any_others() -> None:
    model = small()
    own = Sampling(temperature=1.0, seed=11)
    texts = []
    for mix in range(3):
        rig, rng = rig_of(model), np.random.default_rng(mix)
        others = [Sampling(temperature=0.7, seed=int(rng.integers(99))) for _ in range(2 * mix)]
        place = int(rng.integers(len(others) + 1))
        samplings = [*others[:place], own, *others[place:]]
        num_rows = len(samplings)
        tables = [rig.blocks(32) for _ in samplings]
        rig.rows(*(rig.row(some_tokens(6, 0 if row == place else 50 + row), block_ids=tables[row])
                   for row in range(num_rows)))  # fmt: skip
        tokens, text = [7] * num_rows, []
        for step in range(4):
            columns = DecodeRows(
                tables, [6] * num_rows, [6] * num_rows, samplings, [()] * num_rows, tokens, step, [1] * num_rows
            )
            tokens = rig.step(Batch(decodes=columns)).decodes.token_ids
            text.append(tokens[place])
        texts.append(text)
    assert texts[1:] == texts[:1] * 2
    assert len(set(texts[0])) > 2
