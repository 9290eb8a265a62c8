"""Loads a model from a GGUF file or a Hugging Face folder into float32. Never runs it. Called by the executor."""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from loopwright.core.errors import BadRequest, Unavailable
from loopwright.engine.dequantize import Bytes, Floats, dequantize
from loopwright.engine.layers import rope_frequencies
from loopwright.engine.loaded_model import LoadedModel, ModelConfig
from loopwright.engine.model_config import config_from_gguf, config_from_hf
from loopwright.engine.models import find_architecture
from loopwright.engine.models.weight_spec import WeightPart, WeightSpec
from loopwright.weights.gguf import GgufFile, TensorInfo, read_gguf
from loopwright.weights.hf_folder import HfFolder, read_hf_folder


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor of a file: its shape, how it is stored, and how to get its bytes."""

    shape: tuple[int, ...]
    kind: str
    read: Callable[[], Bytes]


_Fill: TypeAlias = Callable[[], None]


def load_model(path: Path) -> LoadedModel:
    """The model at `path`, with its weights in float32.

    Raises BadRequest for a model that this engine cannot run and Unavailable for files that are damaged or cannot be
    read; the message names the file, key or tensor."""
    return _load_hf_folder(read_hf_folder(path)) if path.is_dir() else _load_gguf(read_gguf(path))


def _load_gguf(file: GgufFile) -> LoadedModel:
    find_architecture(str(file.metadata.get("general.architecture")))
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise BadRequest(f"{file.path} has no matrix 'token_embd.weight'")
    config = config_from_gguf(
        file.metadata,
        vocab_size=embedding.shape[0],
        is_head_tied="output.weight" not in file.tensors,
    )
    data: Bytes = np.memmap(file.path, np.uint8, mode="r")
    stored = {name: _Stored(info.shape, info.kind, partial(_slice, data, info)) for name, info in file.tensors.items()}
    frequencies = rope_frequencies(config)
    if factors := stored.get("rope_freqs.weight"):  # how these files carry Llama 3 scaling
        divisors = np.empty(config.head_dim // 2, np.float32)
        _check_shape(str(file.path), "rope_freqs.weight", factors, divisors.shape)
        dequantize("rope_freqs.weight", factors.kind, factors.read(), divisors)
        frequencies = frequencies / torch.from_numpy(divisors)
    return _assemble(str(file.path), config, stored, frequencies, is_hf=False)


def _load_hf_folder(folder: HfFolder) -> LoadedModel:
    names = folder.config.get("architectures")
    architecture = find_architecture(str(names[0]) if isinstance(names, list) and names else str(names))
    config = config_from_hf(folder.config, architecture.name)
    try:
        files = {path: safe_open(path, framework="pt") for path in set(folder.tensor_files.values())}
        stored = {name: _hf_tensor(files[path], name) for name, path in folder.tensor_files.items()}
    except (SafetensorError, OSError) as error:
        raise Unavailable(f"{folder.path} is damaged: {error}", hint="download it again") from error
    return _assemble(str(folder.path), config, stored, rope_frequencies(config), is_hf=True)


def _slice(data: Bytes, info: TensorInfo) -> Bytes:
    return data[info.offset : info.offset + info.nbytes]


def _hf_tensor(file: Any, name: str) -> _Stored:  # noqa: ANN401 — safetensors ships no types
    def read() -> Bytes:
        tensor: Tensor = file.get_tensor(name)  # reads in place where the platform can
        return tensor.flatten().view(torch.uint8).numpy()

    view = file.get_slice(name)
    return _Stored(tuple(view.get_shape()), str(view.get_dtype()), read)


def _assemble(
    origin: str, config: ModelConfig, stored: Mapping[str, _Stored], frequencies: Tensor, *, is_hf: bool
) -> LoadedModel:
    """Checks every shape before the first byte is allocated, then decodes on as many threads as there are cores."""
    specs = find_architecture(config.architecture).weights(config)
    sources = [
        _check_part(origin, part, spec, stored, is_hf=is_hf) for spec in specs for part in spec.parts
    ]  # fmt: skip
    weights = {spec.name: torch.empty(spec.shape) for spec in specs}
    fills = [(part.num_rows, fill) for spec in specs for part, fill in _fills(spec, weights[spec.name], stored, is_hf)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        largest_first = sorted(fills, key=lambda fill: -fill[0])
        list(pool.map(lambda fill: fill[1](), largest_first))
    elements = Counter[str]()
    for source in sources:
        elements[source.kind] += prod(source.shape)
    return LoadedModel(config, weights, frequencies, quantization=elements.most_common(1)[0][0])


def _check_part(
    origin: str, part: WeightPart, spec: WeightSpec, stored: Mapping[str, _Stored], *, is_hf: bool
) -> _Stored:
    name = part.hf_name if is_hf else part.gguf_name
    source = stored.get(name)
    if source is None:
        raise BadRequest(f"{origin} has no tensor {name!r}", hint="the file is incomplete, or of another architecture")
    _check_shape(origin, name, source, (part.num_rows, *spec.shape[1:]))
    return source


def _check_shape(origin: str, name: str, source: _Stored, shape: tuple[int, ...]) -> None:
    if source.shape != shape:
        raise BadRequest(f"{origin}: tensor {name!r} has shape {list(source.shape)}; the config wants {list(shape)}")


def _fills(
    spec: WeightSpec, weight: Tensor, stored: Mapping[str, _Stored], is_hf: bool
) -> list[tuple[WeightPart, _Fill]]:
    """For each part, what writes its rows."""
    rows: Floats = weight.numpy()
    fills: list[tuple[WeightPart, _Fill]] = []
    start = 0
    for part in spec.parts:
        out = rows[start : start + part.num_rows]
        name = part.hf_name if is_hf else part.gguf_name
        num_heads = part.num_rotary_heads if is_hf else 0
        fills.append((part, partial(_fill, name, stored[name], num_heads, out)))
        start += part.num_rows
    return fills


def _fill(name: str, source: _Stored, num_heads: int, out: Floats) -> None:
    if not num_heads:
        dequantize(name, source.kind, source.read(), out)
        return
    halves = np.empty_like(out)
    dequantize(name, source.kind, source.read(), halves)
    pairs = halves.reshape(num_heads, 2, -1, out.shape[1]).swapaxes(1, 2)  # [heads, head_dim / 2, 2, hidden]
    out.reshape(pairs.shape)[:] = pairs
