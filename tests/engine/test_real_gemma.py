"""The real Gemma 3, on request: see CONTRIBUTING.md. A sequence longer than its windows equals the oracle."""

import os
from pathlib import Path

import numpy as np
import pytest
from engine_rig import Rig, dense_rows, log_softmax, some_tokens

from loopwright.engine.loader import load_model
from loopwright.engine.oracle import Oracle

PATH = os.environ.get("LOOPWRIGHT_TEST_GEMMA_GGUF", "")
pytestmark = [
    pytest.mark.gemma,
    pytest.mark.skipif(not PATH, reason="LOOPWRIGHT_TEST_GEMMA_GGUF names no file"),
]


def test_the_real_gemma_equals_the_oracle_beyond_its_windows() -> None:
    model = load_model(Path(PATH))
    window = model.config.window(0)
    assert window is not None
    assert model.config.window(5) is None
    tokens = some_tokens(window + 40, vocab_size=model.config.vocab_size)
    rig, expected = Rig(model), log_softmax(Oracle(model).logits(tokens))
    block_ids = rig.blocks(len(tokens))
    prompt, last = len(tokens) - 10, len(tokens) - 1
    rows = [
        rig.row(tokens[:prompt], block_ids=block_ids),
        rig.row(tokens[prompt:last], kv_len=prompt, block_ids=block_ids),
        rig.row(tokens[last:], kv_len=last, block_ids=block_ids),
    ]
    actual = np.concatenate([dense_rows(rig.rows(row)[0])[-9:] for row in rows])
    np.testing.assert_allclose(actual, np.concatenate([expected[prompt - 9 : prompt], expected[prompt:]]), atol=1e-3)
