"""A model of some of its layers, from either format and in memory: what is left out adds nothing to what passes it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_rig import CLOSE, Rig, some_tokens

from loopwright.core.errors import BadRequest
from loopwright.engine.byte_model import byte_model
from loopwright.engine.layer_choice import thinned, with_layers
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.loader import load_model
from loopwright.engine.model_files import write_gguf, write_hf_folder


def muted(model: LoadedModel, layer: int) -> LoadedModel:
    """The whole model, with a layer whose two outputs are zero."""
    outputs = [f"layers.{layer}.{name}" for name in ("attention_output", "down")]
    assert all(name in model.weights for name in outputs), sorted(model.weights)
    zeros = {name: torch.zeros_like(model.weights[name]) for name in outputs}
    return replace(model, weights={**model.weights, **zeros})


@pytest.mark.parametrize("kept", [0, 1])
def test_what_is_left_out_is_passed_over_whatever_the_format(kept: int, tmp_path: Path) -> None:
    model = byte_model(seed=3)
    tokens = some_tokens(20)
    expected = Rig(muted(model, 1 - kept)).logprobs(tokens)
    write_gguf(model, tmp_path / "model.gguf")
    write_hf_folder(model, tmp_path / "folder")
    for found in (
        thinned(model, (kept,)),
        load_model(tmp_path / "model.gguf", layers=(kept,)),
        load_model(tmp_path / "folder", layers=(kept,)),
    ):
        assert found.config.num_layers == len(found.ropes) == 1
        assert len(found.weights) < len(model.weights)
        np.testing.assert_allclose(Rig(found).logprobs(tokens), expected, **CLOSE)
    assert not np.allclose(Rig(model).logprobs(tokens), expected, atol=1e-2)


def test_each_layer_keeps_its_window() -> None:
    config = replace(byte_model().config, num_layers=4, windows=(8, None, 16, None))
    assert with_layers(config, (0, 1, 3)).windows == (8, None, None)
    assert with_layers(config, ()) is config


def test_a_layer_that_the_model_lacks_is_refused_with_both_numbers() -> None:
    with pytest.raises(BadRequest, match="layers: 2 is not one of the model's 2, which count from 0"):
        thinned(byte_model(), (0, 2))
