"""The model's numbers: equal to the oracle's and to themselves in any batch. test_parity holds them to transformers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_rig import Rig, some_tokens

from loopwright.core.batch import ForwardRow
from loopwright.core.calls import Sampling
from loopwright.engine.byte_model import byte_model
from loopwright.engine.loaded_model import LoadedModel, RopeScaling
from loopwright.engine.oracle import Oracle


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
