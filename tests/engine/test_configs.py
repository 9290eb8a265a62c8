"""Configs of both formats: older keys and absent ones mean what transformers and llama.cpp take them for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_rig import Rig, some_tokens, transformers_logprobs
from parity import ARCHITECTURES, MAX_ERROR
from transformers import AutoModelForCausalLM

from loopwright.core.errors import BadRequest
from loopwright.engine.byte_model import byte_model
from loopwright.engine.config_fields import yarn_attention_factor
from loopwright.engine.gguf_config import config_from_gguf
from loopwright.engine.hf_config import config_from_hf
from loopwright.engine.loaded_model import LoadedModel, RopeScaling
from loopwright.engine.loader import load_model
from loopwright.engine.model_files import write_gguf, write_hf_folder

ABSENT = object()
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def model_of(name: str) -> LoadedModel:
    return byte_model(seed=2, num_layers=3, **ARCHITECTURES[name])


def edit_config(folder: Path, changes: dict[str, Any]) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value is not ABSENT}
    (folder / "config.json").write_text(json.dumps(config))


OLD_GEMMA3 = {"rope_parameters": ABSENT, "layer_types": ABSENT, "rope_theta": 500000.0, "rope_local_base_freq": 777.0}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Llama 2", {"rope_parameters": ABSENT, "rope_theta": 1234.0}),
        ("Llama 2", {"rope_parameters": ABSENT, "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 50.0}),
        ("Llama 2", {"rope_parameters": ABSENT, "rope_scaling": YARN, "rope_theta": 10000.0}),
        ("Llama 2", {"rope_parameters": {"rope_theta": 10000.0, **YARN, "beta_fast": 8, "beta_slow": 0.25}}),
        ("Llama 2", {"rope_parameters": {"rope_theta": 10000.0, **YARN, "attention_factor": 1.5}}),
        ("Llama 2", {"rope_parameters": ABSENT, "sliding_window": 5, "head_dim": ABSENT}),
        ("Mistral", {"sliding_window": ABSENT}),
        ("Mistral: window", {"head_dim": None}),
        ("Qwen2", {"use_sliding_window": False, "sliding_window": 5, "layer_types": ABSENT, "max_window_layers": 0}),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 5, "layer_types": ABSENT, "max_window_layers": 1}),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 5, "layer_types": ABSENT}),
        ("Qwen3", {"use_sliding_window": True, "sliding_window": 5, "layer_types": ABSENT, "max_window_layers": 2}),
        ("Qwen3-MoE", {"use_sliding_window": True, "sliding_window": 5}),
        ("Qwen3-MoE", {"norm_topk_prob": ABSENT, "decoder_sparse_step": 1, "mlp_only_layers": []}),
        ("Gemma 3", {**OLD_GEMMA3, "sliding_window_pattern": 2}),
        ("Gemma 3", {**OLD_GEMMA3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
        ("Gemma 3", {"rope_parameters": ABSENT, "tie_word_embeddings": ABSENT, "hidden_activation": ABSENT}),
        ("Gemma 3", {"query_pre_attn_scalar": ABSENT, "sliding_window": ABSENT}),
    ],
)
def test_a_config_means_what_transformers_takes_it_for(tmp_path: Path, name: str, changes: dict[str, Any]) -> None:
    write_hf_folder(model_of(name), tmp_path)
    edit_config(tmp_path, changes)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = some_tokens(40)
    actual = Rig(load_model(tmp_path)).logprobs(tokens)
    np.testing.assert_allclose(actual, transformers_logprobs(reference, tokens), atol=MAX_ERROR)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("Llama 2", {"rope_parameters": {"rope_type": "longrope"}}, "'longrope'; known are default, linear, llama3"),
        ("Llama 2", {"rope_parameters": {**YARN, "mscale": 1.0}}, r"mscale is 1\.0; models with it cannot be run"),
        ("Llama 2", {"rope_parameters": {**YARN, "truncate": False}}, "truncate is False"),
        ("Llama 2", {"rope_parameters": {**YARN, "rope_theta": 0.5}}, "yarn needs one above 1"),
        ("Llama 2", {"rope_parameters": {"partial_rotary_factor": 0.5}}, r"partial_rotary_factor is 0\.5"),
        ("Llama 2", {"rope_parameters": [1]}, "must be an object"),
        ("Qwen2: window in late layers", {"layer_types": ["full_attention"] * 2}, "layer_types is .* a list of 3"),
        ("Qwen2: window in late layers", {"layer_types": ["linear_attention"] * 3}, "layer_types is .* a list of 3"),
        ("Qwen2: window in late layers", {"layer_types": [{}] * 3}, "layer_types is .* a list of 3"),
        ("Qwen2: window in late layers", {"sliding_window": 0}, "sliding_window is 0"),
        ("Qwen2: window in late layers", {"layer_types": None, "max_window_layers": "all"}, "max_window_layers is 'al"),
        ("Qwen3", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; only silu"),
        ("Qwen3-MoE", {"mlp_only_layers": [1]}, r"mlp_only_layers is \[1\]"),
        ("Qwen3-MoE", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
        ("Qwen3-MoE", {"num_experts_per_tok": 9}, "chooses 9 of 8 experts"),
        ("Qwen3-MoE", {"num_experts": 9}, r"no tensor 'model\.layers\.0\.mlp\.experts\.8\.gate_proj\.weight'|shape"),
        ("Gemma 3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30"),
        ("Gemma 3", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("Gemma 3", {"hidden_activation": "silu"}, "hidden_activation is 'silu'; only gelu_pytorch_tanh"),
        ("Gemma 3", {"rope_parameters": {"full_attention": 3}}, "rope_parameters holds 3"),
        ("Gemma 3", {"rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}}, "window know no scaling"),
    ],
)
def test_what_a_config_asks_beyond_that_is_named(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    write_hf_folder(model_of(name), tmp_path)
    edit_config(tmp_path, changes)
    with pytest.raises(BadRequest, match=message) as caught:
        load_model(tmp_path)
    assert "\n" not in caught.value.message


def gguf_config(name: str, tmp_path: Path, **changes: Any) -> LoadedModel:
    """`changes` are metadata, with the prefix left out and dots as double underscores."""
    model = model_of(name)
    prefix = "llama" if model.config.architecture == "mistral" else model.config.architecture
    metadata = {f"{prefix}.{key.replace('__', '.')}": value for key, value in changes.items()}
    write_gguf(model, tmp_path / "model.gguf", metadata=metadata)
    return load_model(tmp_path / "model.gguf")


def test_a_gguf_of_gemma_has_its_windows_and_bases_unsaid(tmp_path: Path) -> None:
    unsaid = {
        "attention__sliding_window_pattern": None, "rope__freq_base_swa": None, "attention__scale": None,
        "attention__key_length": 16, "attention__value_length": 16,
    }  # fmt: skip
    config = gguf_config("Gemma 3", tmp_path, **unsaid).config
    assert (config.windows, config.local_rope_theta, config.score_scale) == ((24, 24, 24), 10000.0, None)
    assert gguf_config("Gemma 3", tmp_path, attention__sliding_window_pattern=2).config.windows == (24, None, 24)


def test_only_the_largest_gemma_scales_its_scores_by_other_than_the_head_size() -> None:
    fields = {
        "embedding_length": 5376, "attention.head_count": 32, "attention.head_count_kv": 16, "context_length": 131072,
        "attention.key_length": 128, "feed_forward_length": 21504, "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 1024, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0,
    }  # fmt: skip

    def config(num_layers: int):
        metadata = {"general.architecture": "gemma3", "gemma3.block_count": num_layers}
        metadata |= {f"gemma3.{key}": value for key, value in fields.items()}
        return config_from_gguf(metadata, "gemma3", 262144, ())

    assert config(62).score_scale == 168**-0.5
    assert config(34).score_scale is None
    assert [window for window in config(62).windows[:7]] == [1024] * 5 + [None, 1024]


def test_a_gguf_of_a_mixture_normalizes_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert gguf_config("Qwen3-MoE", tmp_path, expert_weights_norm=None).config.experts.is_normalized
    assert not gguf_config("Qwen3-MoE: shares as they are", tmp_path).config.experts.is_normalized


def test_yarn_of_a_gguf_may_leave_all_but_the_factor_unsaid(tmp_path: Path) -> None:
    names = ("yarn_beta_fast", "yarn_beta_slow", "attn_factor", "original_context_length")
    config = gguf_config("Llama: yarn scaling", tmp_path, **{f"rope__scaling__{name}": None for name in names}).config
    assert config.rope_scaling == RopeScaling(
        "yarn", 4.0, original_max_position=4096, attention_factor=yarn_attention_factor(4.0)
    )


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("Gemma 3", {"attention__sliding_window_pattern": [1, 0]}, r"pattern is \(1, 0\); it must have 3 entries"),
        ("Gemma 3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30"),
        ("Gemma 3", {"rope__scaling__type": "longrope"}, "'longrope'; known are none, linear, yarn"),
        ("Llama: yarn scaling", {"rope__scaling__yarn_ext_factor": 0.5}, r"yarn_ext_factor is 0\.5; only 1 is known"),
        ("Llama: yarn scaling", {"rope__scaling__yarn_log_multiplier": 0.1}, "yarn_log_multiplier is 0.1"),
        ("Qwen2", {"block_count": 4}, r"no tensor 'blk\.3\.attn_norm\.weight'"),
        ("Qwen3-MoE", {"expert_count": 9}, r"'blk\.0\.ffn_gate_inp\.weight' has shape \[8, 64\]; .* wants \[9, 64\]"),
        ("Qwen3-MoE", {"expert_feed_forward_length": 16}, r"'blk\.0\.ffn_gate_exps\.weight' has shape \[8, 32, 64\]"),
        ("Qwen3-MoE", {"expert_used_count": None}, "expert_used_count is None"),
        ("Qwen3-MoE", {"expert_shared_count": 1}, "expert_shared_count is 1"),
    ],
)
def test_what_a_gguf_asks_beyond_that_is_named(tmp_path: Path, name: str, changes: dict, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        gguf_config(name, tmp_path, **changes)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "missing"),
    [("Qwen2", "attn_k.bias"), ("Qwen3", "attn_q_norm.weight"), ("Gemma 3", "post_ffw_norm.weight"),
     ("Qwen3-MoE", "ffn_down_exps.weight")],
)  # fmt: skip
def test_a_tensor_that_only_this_architecture_has_is_missed(tmp_path: Path, name: str, missing: str) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(model_of(name), path)
    stored = f"blk.1.{missing}".encode()
    assert path.read_bytes().count(stored) == 1
    path.write_bytes(path.read_bytes().replace(stored, stored.replace(b"blk", b"xlk")))
    with pytest.raises(BadRequest, match=rf"has no tensor 'blk\.1\.{missing}'"):
        load_model(path)


def test_biases_of_a_gguf_show_by_their_tensors(tmp_path: Path) -> None:
    config = gguf_config("Llama: biases", tmp_path).config
    assert (config.has_qkv_bias, config.has_output_bias) == (True, True)
    assert not gguf_config("Llama 2", tmp_path).config.has_qkv_bias


def test_a_step_reads_the_chosen_experts_and_not_the_others() -> None:
    model = model_of("Qwen3-MoE")  # 3 of 8
    experts = sum(one.nbytes for name, one in model.weights.items() if ".experts." in name)
    others = sum(one.nbytes for name, one in model.weights.items() if ".experts." not in name)
    assert model.step_weight_bytes == others - model.weights["embedding"].nbytes + experts * 3 // 8


def test_absent_head_sizes_are_those_of_the_architecture() -> None:
    sizes = {"vocab_size": 9, "hidden_size": 64, "intermediate_size": 9, "num_hidden_layers": 1, "rms_norm_eps": 1e-6,
             "num_attention_heads": 4, "max_position_embeddings": 9}  # fmt: skip
    found = {name: config_from_hf(sizes, name).head_dim for name in ("llama", "mistral", "qwen2", "qwen3", "gemma3")}
    assert found == {"llama": 16, "mistral": 16, "qwen2": 16, "qwen3": 128, "gemma3": 256}
