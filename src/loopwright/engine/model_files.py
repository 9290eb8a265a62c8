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

from loopwright.engine.layers import rope_frequencies
from loopwright.engine.loaded_model import LoadedModel, ModelConfig
from loopwright.engine.models import find_architecture
from loopwright.engine.models.weight_spec import WeightPart

_ALIGNMENT = 32
_GGUF_KINDS: Mapping[str, tuple[int, type]] = {"F32": (0, np.float32), "F16": (1, np.float16)}


def write_hf_folder(model: LoadedModel, path: Path, num_files: int = 1) -> None:
    """config.json and safetensors in float32, with an index when there are several files."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(_hf_config(model.config), indent=2))
    tensors = {part.hf_name: _halves(rows, part) for part, rows in _parts(model)}
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
    tensors = {part.gguf_name: rows for part, rows in _parts(model)}
    base = rope_frequencies(_unscaled(model.config))
    if model.config.rope_scaling is not None and model.config.rope_scaling.kind == "llama3":
        tensors["rope_freqs.weight"] = (base / model.rope_frequencies).numpy()
    values = {key: one for key, one in (_gguf_metadata(model.config) | dict(metadata or {})).items() if one is not None}
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    header += b"".join(_string(key) + _value(value) for key, value in values.items())
    data = b""
    for name, rows in tensors.items():
        number, dtype = _GGUF_KINDS[kind if rows.ndim == 2 else "F32"]
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


def _halves(rows: NDArray[np.float32], part: WeightPart) -> NDArray[np.float32]:
    """Hugging Face's order of the rows of a query or key: first halves of the pairs, then second halves."""
    if not part.num_rotary_heads:
        return np.ascontiguousarray(rows)
    pairs = rows.reshape(part.num_rotary_heads, -1, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _hf_config(config: ModelConfig) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default"}
    if scaling := config.rope_scaling:
        rope = {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            rope["low_freq_factor"] = scaling.low_freq_factor
            rope["high_freq_factor"] = scaling.high_freq_factor
            rope["original_max_position_embeddings"] = scaling.original_max_position
    return {
        "architectures": [find_architecture(config.architecture).hf_name],
        "model_type": config.architecture,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_context,
        "rms_norm_eps": config.norm_epsilon,
        "rope_parameters": {"rope_theta": config.rope_theta, **rope},
        "tie_word_embeddings": config.is_head_tied,
        "hidden_act": "silu",
    }


def _gguf_metadata(config: ModelConfig) -> dict[str, Any]:
    prefix = config.architecture
    values: dict[str, Any] = {
        "general.architecture": prefix,
        f"{prefix}.block_count": config.num_layers,
        f"{prefix}.context_length": config.max_context,
        f"{prefix}.embedding_length": config.hidden_size,
        f"{prefix}.feed_forward_length": config.intermediate_size,
        f"{prefix}.attention.head_count": config.num_heads,
        f"{prefix}.attention.head_count_kv": config.num_kv_heads,
        f"{prefix}.attention.key_length": config.head_dim,
        f"{prefix}.attention.layer_norm_rms_epsilon": config.norm_epsilon,
        f"{prefix}.rope.freq_base": config.rope_theta,
    }
    if config.rope_scaling is not None and config.rope_scaling.kind == "linear":
        values[f"{prefix}.rope.scaling.type"] = "linear"
        values[f"{prefix}.rope.scaling.factor"] = config.rope_scaling.factor
    return values


def _unscaled(config: ModelConfig) -> ModelConfig:
    return replace(config, rope_scaling=None)


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
