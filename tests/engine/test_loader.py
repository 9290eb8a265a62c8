"""Loading: GGUF and Hugging Face give one model, and whatever is wrong with a file is named in one line."""

import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_rig import CLOSE, Rig, some_tokens
from safetensors.torch import load_file, save_file

from loopwright.core.errors import BadRequest, LoopwrightError, Unavailable
from loopwright.engine.byte_model import byte_model
from loopwright.engine.loaded_model import LoadedModel, RopeScaling
from loopwright.engine.loader import load_model
from loopwright.engine.model_files import write_gguf, write_hf_folder
from loopwright.weights.gguf import read_gguf

VARIANTS = {
    "plain": {},
    "tied": {"is_head_tied": True},
    "linear": {"rope_scaling": RopeScaling("linear", 4.0)},
    "llama3": {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 64)},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_gguf_and_hugging_face_files_load_as_the_model_that_was_written(variant: str, tmp_path: Path) -> None:
    model = byte_model(seed=3, **VARIANTS[variant])
    write_gguf(model, tmp_path / "model.gguf")
    write_hf_folder(model, tmp_path / "one")
    write_hf_folder(model, tmp_path / "sharded", num_files=3)
    tokens = some_tokens(30)
    expected = Rig(model).logprobs(tokens)
    for path in (tmp_path / "model.gguf", tmp_path / "one", tmp_path / "sharded"):
        loaded = load_model(path)
        assert {name: one.tolist() for name, one in loaded.weights.items()} == {
            name: one.tolist() for name, one in model.weights.items()
        }
        for rope, written in zip(loaded.ropes, model.ropes, strict=True):
            torch.testing.assert_close(rope.frequencies, written.frequencies)
            assert rope.magnitude == pytest.approx(written.magnitude)
        assert loaded.quantization == "F32"
        np.testing.assert_allclose(Rig(loaded).logprobs(tokens), expected, **CLOSE)


def test_the_configs_of_both_formats_are_equal(tmp_path: Path) -> None:
    model = byte_model(seed=3, rope_scaling=RopeScaling("linear", 4.0))
    write_gguf(model, tmp_path / "model.gguf")
    write_hf_folder(model, tmp_path / "hf")
    from_gguf, from_hf = load_model(tmp_path / "model.gguf").config, load_model(tmp_path / "hf").config
    assert from_hf == model.config
    assert replace(from_gguf, norm_epsilon=1e-5) == model.config  # GGUF keeps it in float32
    assert from_gguf.norm_epsilon == pytest.approx(1e-5)


def test_float16_matrices_are_read_and_named(tmp_path: Path) -> None:
    write_gguf(byte_model(seed=3), tmp_path / "model.gguf", kind="F16")
    assert load_model(tmp_path / "model.gguf").quantization == "F16"


def test_bfloat16_safetensors_are_read_and_named(tmp_path: Path) -> None:
    model = byte_model(seed=3)
    write_hf_folder(model, tmp_path)
    tensors = {name: one.bfloat16() for name, one in load_file(tmp_path / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors")
    loaded = load_model(tmp_path)
    assert loaded.quantization == "BF16"
    assert torch.equal(loaded.weights["layers.0.down"], model.weights["layers.0.down"].bfloat16().float())


def test_old_rope_settings_of_a_config_are_understood(tmp_path: Path) -> None:
    write_hf_folder(byte_model(seed=3), tmp_path)
    edit_config(tmp_path, rope_parameters=None, rope_theta=1234.0, rope_scaling={"type": "linear", "factor": 2.0})
    config = load_model(tmp_path).config
    assert (config.rope_theta, config.rope_scaling) == (1234.0, RopeScaling("linear", 2.0))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "mamba"}, r"'mamba' cannot be run; known are llama \(LlamaForCausalLM\), mistral"),
        ({"general.architecture": None}, "architecture 'None' cannot be run"),
        ({"llama.block_count": None}, r"llama\.block_count is None"),
        ({"llama.block_count": 3}, r"has no tensor 'blk\.2\.attn_norm\.weight'"),
        ({"llama.block_count": 1 << 20}, "1048576 layers; 1024 is the most"),
        ({"llama.embedding_length": "big"}, r"llama\.embedding_length is 'big'"),
        ({"llama.embedding_length": 128}, r"tensor 'token_embd\.weight' has shape \[260, 64\]; the config wants"),
        ({"llama.attention.head_count": 3}, "3 heads, no multiple of its 2 KV heads"),
        ({"llama.attention.key_length": 15}, "heads of 15"),
        ({"llama.attention.key_length": 32}, r"tensor 'blk\.0\.attn_q\.weight' has shape \[64, 64\]"),
        ({"llama.rope.dimension_count": 8}, r"rope\.dimension_count is 8; not the head size 16"),
        ({"llama.rope.scaling.type": "longrope"}, r"rope\.scaling\.type is 'longrope'; known are none, linear, yarn"),
        ({"llama.rope.freq_base": 0.0}, r"rope\.freq_base is 0\.0"),
    ],
)  # fmt: skip
def test_a_gguf_that_cannot_be_run_says_why(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    write_gguf(byte_model(seed=3), tmp_path / "model.gguf", metadata=metadata)
    with pytest.raises(BadRequest, match=message) as caught:
        load_model(tmp_path / "model.gguf")
    assert "\n" not in caught.value.message


def test_random_damage_to_a_gguf_is_loaded_or_refused_and_never_crashes(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(byte_model(num_layers=1, vocab_size=8, hidden_size=8, intermediate_size=8, head_dim=4), path)
    content = path.read_bytes()
    header_bytes = read_gguf(path).data_offset
    chance = random.Random(11)
    num_loaded = 0
    for _ in range(1500):
        damaged = bytearray(content)
        damaged[chance.randrange(24, header_bytes)] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
        path.write_bytes(damaged)
        try:
            load_model(path)
            num_loaded += 1
        except LoopwrightError:
            pass
    assert 0 < num_loaded < 1500


def test_a_gguf_of_an_unknown_tensor_kind_names_tensor_and_kind(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(byte_model(seed=3), path)
    content = path.read_bytes()
    entry = content.index(b"blk.1.ffn_up.weight") + len(b"blk.1.ffn_up.weight") + 4 + 16
    assert content[entry : entry + 4] == bytes(4)  # F32
    path.write_bytes(content[:entry] + (28).to_bytes(4, "little") + content[entry + 4 :])  # F64
    with pytest.raises(LoopwrightError, match=r"'blk\.1\.ffn_up\.weight' is stored as F64"):
        load_model(path)


def test_nan_weights_name_the_tensor(tmp_path: Path) -> None:
    model = byte_model(seed=3)
    weights = dict(model.weights) | {"layers.1.down": model.weights["layers.1.down"] * torch.nan}
    write_gguf(replace(model, weights=weights), tmp_path / "model.gguf")
    with pytest.raises(Unavailable, match=r"tensor 'blk\.1\.ffn_down\.weight' holds values that are not finite"):
        load_model(tmp_path / "model.gguf")


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")


def reshape_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(65)
    save_file(tensors, folder / "model.safetensors")


def poison_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.weight"][0, 0] = torch.nan
    save_file(tensors, folder / "model.safetensors")


def whole_numbers(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(64, dtype=torch.int8)
    save_file(tensors, folder / "model.safetensors")


def truncate_weights(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 5000)


def index_of(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def escape_the_folder(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../secret.safetensors"}}')


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), r"has no config\.json"),
        (lambda folder: (folder / "config.json").write_text("{"), r"config\.json is not JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), "holds no JSON object"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"has no model\.safetensors"),
        (lambda folder: edit_config(folder, architectures=["GPT2LMHeadModel"]), "'GPT2LMHeadModel' cannot be run"),
        (lambda folder: edit_config(folder, architectures=None), "architecture 'None' cannot be run"),
        (lambda folder: edit_config(folder, attention_bias=True), r"no tensor 'model.layers.0.self_attn.q_proj.bias'"),
        (lambda folder: edit_config(folder, mlp_bias=True), "mlp_bias is True"),
        (lambda folder: edit_config(folder, hidden_act="gelu"), "hidden_act is 'gelu'"),
        (lambda folder: edit_config(folder, num_hidden_layers=None), "num_hidden_layers is None"),
        (lambda folder: edit_config(folder, hidden_size=True), "hidden_size is True"),
        (lambda folder: edit_config(folder, vocab_size=10**12), "vocab_size is 1000000000000"),
        (lambda folder: edit_config(folder, rope_parameters={"rope_type": "dynamic"}), "'dynamic'; known are"),
        (drop_tensor, r"has no tensor 'model\.norm\.weight'"),
        (reshape_tensor, r"'model\.norm\.weight' has shape \[65\]; the config wants \[64\]"),
        (poison_tensor, r"'model\.layers\.0\.self_attn\.q_proj\.weight' holds values that are not finite"),
        (whole_numbers, r"'model\.norm\.weight' is stored as I8"),
        (truncate_weights, r"model\.safetensors is damaged"),
        (escape_the_folder, "outside its folder"),
        (lambda folder: index_of(folder, ["a"]), "has no object 'weight_map'"),
        (lambda folder: index_of(folder, 5), "has no object 'weight_map'"),
        (lambda folder: index_of(folder, {"a": "x" * 5000}), "has no xxxx"),
        (lambda folder: index_of(folder, {"a": ".."}), r"has no \.\."),
    ],
)
def test_a_damaged_folder_says_what_is_wrong(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    write_hf_folder(byte_model(seed=3), tmp_path)
    damage(tmp_path)
    with pytest.raises(LoopwrightError, match=message) as caught:
        load_model(tmp_path)
    assert "\n" not in caught.value.message


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No such file"):
        load_model(tmp_path / "absent.gguf")


def test_the_weights_of_a_seed_are_always_the_same(model: LoadedModel) -> None:
    again, other = byte_model(seed=1), byte_model(seed=2)
    assert all(torch.equal(again.weights[name], model.weights[name]) for name in model.weights)
    assert not torch.equal(other.weights["head"], model.weights["head"])
