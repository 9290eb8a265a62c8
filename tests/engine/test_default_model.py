"""The real default model: equal to transformers and to the oracle, and sane."""

from pathlib import Path

import numpy as np
import pytest
from engine_rig import ANSWER, CLOSE, PROMPT, Rig, dense_rows, transformers_default_model, transformers_logprobs
from transformers import PreTrainedModel

from loopwright.core.batch import ForwardRow
from loopwright.core.calls import Sampling
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.oracle import Oracle

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def reference(default_model_path: Path) -> PreTrainedModel:
    return transformers_default_model(default_model_path)


def test_logits_equal_transformers(default_model: LoadedModel, reference: PreTrainedModel) -> None:
    tokens = PROMPT + ANSWER
    expected = transformers_logprobs(reference, tokens)
    rig = Rig(default_model)
    block_ids = rig.blocks(len(tokens))
    prefill = dense_rows(rig.rows(rig.row(PROMPT, block_ids=block_ids))[0])
    np.testing.assert_allclose(prefill, expected[: len(PROMPT)], atol=1e-4)
    for index, token in enumerate(ANSWER, start=len(PROMPT)):
        decoded = dense_rows(rig.rows(rig.row([token], kv_len=index, block_ids=block_ids))[0])
        np.testing.assert_allclose(decoded[0], expected[index], atol=1e-4)


def test_the_oracle_says_paris(default_model: LoadedModel) -> None:
    assert list(Oracle(default_model).generate(PROMPT, max_tokens=16, stop_tokens=[2]).tokens) == ANSWER


def test_alone_and_with_eight_neighbours_equals_the_oracle(default_model: LoadedModel) -> None:
    expected = Oracle(default_model).generate(PROMPT, max_tokens=8)
    for num_neighbours in (0, 8):
        rig = Rig(default_model)
        prompts = [PROMPT, *([1, 4093, 198, 1780 + i, *([314] * (7 * i))] for i in range(num_neighbours))]
        tables = [rig.blocks(len(prompt) + 8) for prompt in prompts]
        inputs, kv_lens, output = list(prompts), [0] * len(prompts), []
        for _ in range(8):
            results = rig.rows(*(
                ForwardRow(
                    block_ids=table, kv_len=kv_len, positions=list(range(kv_len, kv_len + len(tokens))),
                    token_ids=tokens, sampling=Sampling(temperature=float(i > 0), seed=i),
                    sample_position=kv_len + len(tokens),
                )
                for i, (table, kv_len, tokens) in enumerate(zip(tables, kv_lens, inputs, strict=True))
            ))  # fmt: skip
            kv_lens = [kv_len + len(tokens) for kv_len, tokens in zip(kv_lens, inputs, strict=True)]
            inputs = [[result.token_id] for result in results]
            output.append((results[0].token_id, results[0].logprob))
        assert [token for token, _ in output] == list(expected.tokens)
        np.testing.assert_allclose([logprob for _, logprob in output], expected.logprobs, **CLOSE)


def test_the_file_is_described(default_model: LoadedModel) -> None:
    config = default_model.config
    assert (config.architecture, config.vocab_size, config.num_layers, config.max_context) == ("llama", 49152, 30, 8192)
    assert (config.is_head_tied, default_model.quantization) == (True, "Q4_1")
