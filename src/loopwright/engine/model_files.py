"""Writes a loaded model as a Hugging Face folder or a GGUF file, for tests. Never used to serve.

A file written and loaded again has the same weights, so that tests can damage files one field at a time.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from loopwright.engine.config_fields import yarn_attention_factor
from loopwright.engine.layers import make_ropes
from loopwright.engine.loaded_model import LoadedModel, ModelConfig, RopeScaling
from loopwright.engine.models import find_architecture
from loopwright.engine.models.weight_spec import StoredPart, WeightPart

_ALIGNMENT = 32
_GGUF_KINDS: Mapping[str, tuple[int, type]] = {"F32": (0, np.float32), "F16": (1, np.float16)}


def write_hf_folder(model: LoadedModel, path: Path, num_files: int = 1) -> None:
    """config.json and safetensors in float32, with an index when there are several files."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(_hf_config(model.config), indent=2))
    tensors = {part.hf.name: _as_stored(rows, part.hf) for part, rows in _parts(model)}
    if num_files == 1:
        save_file(tensors, path / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for number in range(num_files):
        name = f"model-{number + 1:05}-of-{num_files:05}.safetensors"
        shard = {key: tensors[key] for key in sorted(tensors)[number::num_files]}
        save_file(shard, path / name)
        weight_map |= dict.fromkeys(shard, name)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write_gguf(model: LoadedModel, path: Path, kind: str = "F32", metadata: Mapping[str, Any] | None = None) -> None:
    """A GGUF file, version 3, with matrices of `kind` (F32 or F16). `metadata` adds to or replaces the model's own;
    a value of None drops the key."""
    tensors = _gguf_tensors(model)
    values = {key: one for key, one in (_gguf_metadata(model.config) | dict(metadata or {})).items() if one is not None}
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    header += b"".join(_string(key) + _value(value) for key, value in values.items())
    data = b""
    for name, rows in tensors.items():
        number, dtype = _GGUF_KINDS[kind if rows.ndim > 1 else "F32"]
        header += _string(name) + struct.pack(f"<I{rows.ndim}QIQ", rows.ndim, *rows.shape[::-1], number, len(data))
        data += _padded(rows.astype(dtype).tobytes())
    path.write_bytes(_padded(header) + data)


def _parts(model: LoadedModel) -> Iterator[tuple[WeightPart, NDArray[np.float32]]]:
    """Our weights cut into the tensors of a file, in our order of rows."""
    for spec in find_architecture(model.config.architecture).weights(model.config):
        start = 0
        for part in spec.parts:
            yield part, model.weights[spec.name].numpy()[start : start + part.num_rows]
            start += part.num_rows


def _as_stored(rows: NDArray[np.float32], part: StoredPart) -> NDArray[np.float32]:
    """Undoes what the loader does: halves of rotary pairs apart again, the offset taken off."""
    if num_heads := part.num_halved_heads:
        pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
        rows = pairs.swapaxes(1, 2).reshape(rows.shape)
    return np.ascontiguousarray(rows - np.float32(part.offset))


def _gguf_tensors(model: LoadedModel) -> dict[str, NDArray[np.float32]]:
    tensors: dict[str, NDArray[np.float32]] = {}
    experts: dict[str, list[NDArray[np.float32]]] = {}
    for part, rows in _parts(model):
        stored = _as_stored(rows, part.gguf)
        if part.gguf.expert is None:
            tensors[part.gguf.name] = stored
        else:
            experts.setdefault(part.gguf.name, []).append(stored)
    tensors |= {name: np.stack(slices) for name, slices in experts.items()}
    if model.config.rope_scaling is not None and model.config.rope_scaling.kind == "llama3":
        base = make_ropes(replace(model.config, rope_scaling=None))[0]
        tensors["rope_freqs.weight"] = (base.frequencies / model.ropes[0].frequencies).numpy()
    return tensors


def _hf_config(config: ModelConfig) -> dict[str, Any]:
    values: dict[str, Any] = {
        "architectures": [find_architecture(config.architecture).hf_name],
        "model_type": _HF_MODEL_TYPES.get(config.architecture, config.architecture),
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_context,
        "rms_norm_eps": config.norm_epsilon,
        "rope_parameters": {"rope_theta": config.rope_theta, **_hf_rope_scaling(config.rope_scaling)},
        "tie_word_embeddings": config.is_head_tied,
        "attention_bias": config.has_output_bias,
        "sliding_window": next((window for window in config.windows if window is not None), None),
        "use_sliding_window": bool(config.windows),
        "layer_types": [_LAYER_TYPES[config.window(index) is None] for index in range(config.num_layers)],
        "pad_token_id": None,
    }
    if config.architecture == "gemma3":
        local = {"rope_theta": config.local_rope_theta, "rope_type": "default"}
        values["rope_parameters"] = {"full_attention": values["rope_parameters"], "sliding_attention": local}
        values["hidden_activation"] = "gelu_pytorch_tanh"
        values["query_pre_attn_scalar"] = round((config.score_scale or config.head_dim**-0.5) ** -2)
    if config.architecture in ("mistral", "qwen3moe"):  # their window, if any, is every layer's
        del values["layer_types"]
    if experts := config.experts:
        values["num_experts"] = experts.num_experts
        values["num_experts_per_tok"] = experts.num_chosen
        values["moe_intermediate_size"] = experts.intermediate_size
        values["norm_topk_prob"] = experts.is_normalized
    return values


_HF_MODEL_TYPES = {"gemma3": "gemma3_text", "qwen3moe": "qwen3_moe"}
_LAYER_TYPES = {True: "full_attention", False: "sliding_attention"}


def _hf_rope_scaling(scaling: RopeScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {"rope_type": "default"}
    values: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "linear":
        return values
    values["original_max_position_embeddings"] = scaling.original_max_position
    names = {
        "llama3": ("low_freq_factor", "high_freq_factor"),
        "yarn": ("beta_fast", "beta_slow", "attention_factor"),
    }
    return values | {name: getattr(scaling, name) for name in names[scaling.kind]}


def _gguf_metadata(config: ModelConfig) -> dict[str, Any]:
    prefix = find_architecture(config.architecture).gguf_name
    values: dict[str, Any] = {
        "block_count": config.num_layers,
        "context_length": config.max_context,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_epsilon,
        "rope.freq_base": config.rope_theta,
    }
    if windows := [window for window in config.windows if window is not None]:
        values["attention.sliding_window"] = windows[0]
        values["attention.sliding_window_pattern"] = [int(window is not None) for window in config.windows]
    if config.local_rope_theta is not None:
        values["rope.freq_base_swa"] = config.local_rope_theta
    if config.score_scale is not None:
        values["attention.scale"] = config.score_scale
    if experts := config.experts:
        values["expert_count"] = experts.num_experts
        values["expert_used_count"] = experts.num_chosen
        values["expert_feed_forward_length"] = experts.intermediate_size
        values["expert_weights_norm"] = experts.is_normalized
    values |= _gguf_rope_scaling(config.rope_scaling)
    return {"general.architecture": prefix, **{f"{prefix}.{key}": value for key, value in values.items()}}


def _gguf_rope_scaling(scaling: RopeScaling | None) -> dict[str, Any]:
    """Llama 3's is a tensor, not metadata."""
    if scaling is None or scaling.kind == "llama3":
        return {}
    values: dict[str, Any] = {"rope.scaling.type": scaling.kind, "rope.scaling.factor": scaling.factor}
    if scaling.kind == "yarn":
        values["rope.scaling.original_context_length"] = scaling.original_max_position
        values["rope.scaling.yarn_beta_fast"] = scaling.beta_fast
        values["rope.scaling.yarn_beta_slow"] = scaling.beta_slow
        values["rope.scaling.attn_factor"] = scaling.attention_factor / yarn_attention_factor(scaling.factor)
    return values


def _value(value: Any) -> bytes:  # noqa: ANN401 — any metadata value
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _string(value)
        case [*items] if all(isinstance(item, str) for item in items):
            return struct.pack("<IIQ", 9, 8, len(items)) + b"".join(_string(item) for item in items)
        case [*items]:
            return struct.pack(f"<IIQ{len(items)}i", 9, 5, len(items), *items)
    raise TypeError(f"{value!r} is no metadata value")


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)
