"""The model's numbers: equal to transformers, to the oracle, and to themselves in any batch."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_rig import Rig, dense_rows, log_softmax, some_tokens, transformers_logprobs, transformers_model
from transformers import LlamaForCausalLM

from loopwright.core.batch import ForwardRow
from loopwright.core.calls import Sampling
from loopwright.engine.byte_model import byte_model
from loopwright.engine.loaded_model import LoadedModel, RopeScaling
from loopwright.engine.oracle import Oracle

SHAPES = {
    "heads 4 of 2": {},
    "heads 4 of 4": {"num_kv_heads": 4},
    "heads 3 of 1": {"num_heads": 3, "num_kv_heads": 1, "hidden_size": 48},
    "heads 4 of 1": {"num_kv_heads": 1},
    "tied head": {"is_head_tied": True},
    "head size beside hidden size": {"head_dim": 8},
    "linear scaling": {"rope_scaling": RopeScaling("linear", 4.0)},
    "llama3 scaling": {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 64)},
    "another theta and epsilon": {"rope_theta": 500000.0, "norm_epsilon": 1e-6},
}


@pytest.fixture(scope="module", params=SHAPES)
def shaped(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoadedModel, LlamaForCausalLM]:
    model = byte_model(seed=2, **SHAPES[request.param])
    return model, transformers_model(model, tmp_path_factory.mktemp("hf"))


def test_a_prefill_equals_transformers(shaped: tuple[LoadedModel, LlamaForCausalLM]) -> None:
    model, reference = shaped
    tokens = some_tokens(75)
    np.testing.assert_allclose(Rig(model).logprobs(tokens), transformers_logprobs(reference, tokens), atol=1e-4)


def test_chunks_and_single_tokens_equal_transformers(shaped: tuple[LoadedModel, LlamaForCausalLM]) -> None:
    model, reference = shaped
    rig = Rig(model)
    tokens = some_tokens(60)
    block_ids = rig.blocks(len(tokens))
    parts, start = [], 0
    for size in (33, 1, 1, 5, 16, 1, 3):
        row = rig.row(tokens[start : start + size], kv_len=start, block_ids=block_ids)
        parts.append(dense_rows(rig.rows(row)[0]))
        start += size
    assert start == len(tokens)
    np.testing.assert_allclose(np.concatenate(parts), transformers_logprobs(reference, tokens), atol=1e-4)


def test_positions_with_gaps_equal_transformers(shaped: tuple[LoadedModel, LlamaForCausalLM]) -> None:
    model, reference = shaped
    tokens, positions = some_tokens(20), [*range(5), *range(40, 50), *range(300, 305)]
    expected = transformers_logprobs(reference, tokens, positions)
    np.testing.assert_allclose(Rig(model).logprobs(tokens, positions), expected, atol=1e-4)
    assert np.abs(expected - transformers_logprobs(reference, tokens)).max() > 0.01  # the gaps do count


def test_rows_of_any_length_share_a_batch(shaped: tuple[LoadedModel, LlamaForCausalLM]) -> None:
    model, reference = shaped
    rig = Rig(model)
    lengths = [(0, 40), (17, 1), (90, 1), (31, 1), (16, 7), (0, 1), (15, 1), (20, 7), (33, 1), (50, 40)]
    sequences = [some_tokens(kv_len + size, seed=i) for i, (kv_len, size) in enumerate(lengths)]
    tables = [rig.blocks(len(sequence)) for sequence in sequences]
    for (kv_len, _), sequence, table in zip(lengths, sequences, tables, strict=True):
        if kv_len:
            rig.rows(rig.row(sequence[:kv_len], block_ids=table))
    batch = [
        rig.row(sequence[kv_len:], kv_len=kv_len, block_ids=table)
        for (kv_len, _), sequence, table in zip(lengths, sequences, tables, strict=True)
    ]
    for (kv_len, _), sequence, result in zip(lengths, sequences, rig.rows(*batch), strict=True):
        np.testing.assert_allclose(dense_rows(result), transformers_logprobs(reference, sequence)[kv_len:], atol=1e-4)


def test_the_oracle_equals_transformers(shaped: tuple[LoadedModel, LlamaForCausalLM]) -> None:
    model, reference = shaped
    tokens, positions = some_tokens(30), [*range(20), *range(100, 110)]
    is_visible = torch.ones(30, 30, dtype=torch.bool).tril()
    is_visible[10:, 3:7] = False
    logits = Oracle(model).logits(tokens, positions, is_visible)
    np.testing.assert_allclose(
        log_softmax(logits), transformers_logprobs(reference, tokens, positions, is_visible), atol=1e-4
    )


@pytest.mark.parametrize("batch_size", [1, 2, 4, 8])
def test_a_row_is_the_same_in_a_batch_of_any_size(model: LoadedModel, batch_size: int) -> None:
    """Prompts differ in length, and so do the rows of each step."""
    rig, oracle = Rig(model), Oracle(model)
    samplings = [Sampling(temperature=0.8, top_p=0.9, seed=i) if i % 2 else Sampling() for i in range(batch_size)]
    prompts = [some_tokens(3 + 19 * i, seed=i) for i in range(batch_size)]
    tables = [rig.blocks(len(prompt) + 12) for prompt in prompts]
    outputs: list[list[tuple[int, float]]] = [[] for _ in prompts]
    inputs, kv_lens = [list(prompt) for prompt in prompts], [0] * batch_size
    for _ in range(12):
        results = rig.rows(*(
            ForwardRow(
                block_ids=tables[i],
                kv_len=kv_lens[i],
                positions=list(range(kv_lens[i], kv_lens[i] + len(inputs[i]))),
                token_ids=inputs[i],
                sampling=samplings[i],
                sample_position=kv_lens[i] + len(inputs[i]),
            )
            for i in range(batch_size)
        ))  # fmt: skip
        for i, result in enumerate(results):
            assert result.error is None
            kv_lens[i] += len(inputs[i])
            inputs[i] = [result.token_id]
            outputs[i].append((result.token_id, result.logprob))
    for prompt, sampling, output in zip(prompts, samplings, outputs, strict=True):
        expected = oracle.generate(prompt, sampling, max_tokens=12)
        assert [token for token, _ in output] == list(expected.tokens)
        np.testing.assert_allclose([logprob for _, logprob in output], expected.logprobs, atol=1e-5)


def test_the_same_shape_gives_the_same_bits(model: LoadedModel) -> None:
    tokens = some_tokens(50)
    assert (Rig(model, seed=1).logprobs(tokens) == Rig(model, seed=2).logprobs(tokens)).all()


def test_rope_scaling_changes_the_answer() -> None:
    tokens = some_tokens(40)
    plain = byte_model(seed=2)
    for scaling in (RopeScaling("linear", 4.0), RopeScaling("llama3", 8.0, 1.0, 4.0, 64)):
        scaled = byte_model(seed=2, rope_scaling=scaling)
        assert np.abs(Rig(plain).logprobs(tokens) - Rig(scaled).logprobs(tokens)).max() > 0.01


@pytest.mark.parametrize("damaged", ["layers.0.qkv", "layers.1.down", "final_norm"])
def test_every_weight_counts(model: LoadedModel, damaged: str, tmp_path: Path) -> None:
    weights = dict(model.weights) | {damaged: model.weights[damaged] * 1.1}
    tokens = some_tokens(10)
    other = Rig(replace(model, weights=weights)).logprobs(tokens)
    assert np.abs(other - Rig(model).logprobs(tokens)).max() > 1e-3
