"""Loads a model from a GGUF file or a Hugging Face folder into float32. Never runs it. Called by the executor."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from loopwright.core.errors import BadRequest, Unavailable
from loopwright.engine.decoded_ahead import DecodedAhead
from loopwright.engine.dequantize import Bytes, Floats, dequantize
from loopwright.engine.gguf_config import config_from_gguf
from loopwright.engine.hf_config import config_from_hf
from loopwright.engine.layer_choice import named_by_place, with_layers
from loopwright.engine.layers import make_ropes
from loopwright.engine.loaded_model import LoadedModel, ModelConfig, Rope
from loopwright.engine.models import find_architecture
from loopwright.engine.models.weight_spec import StoredPart, WeightSpec
from loopwright.weights.gguf import GgufFile, TensorInfo, read_gguf
from loopwright.weights.hf_folder import HfFolder, read_hf_folder


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor of a file: its shape, how it is stored, how to get its bytes, and its values if they are here."""

    shape: tuple[int, ...]
    kind: str
    read: Callable[[], Bytes]
    decoded: Floats | None = None

    def write(self, name: str, expert: tuple[int, int] | None, out: Floats) -> None:
        """Its values, or those of one of its equal slices, (number, count), to `out`."""
        number, count = expert or (0, 1)
        if self.decoded is not None:
            out.reshape(-1)[:] = self.decoded.reshape(count, -1)[number]
        else:
            dequantize(name, self.kind, self.read().reshape(count, -1)[number], out)


def load_model(path: Path, ahead: DecodedAhead | None = None, layers: Sequence[int] = ()) -> LoadedModel:
    """The model at `path`, with its weights in float32, of which some may be decoded already; with `layers`, of those
    alone.

    Raises BadRequest for a model that this engine cannot run and Unavailable for files that are damaged or cannot be
    read; the message names the file, key or tensor."""
    if path.is_dir():
        return _load_hf_folder(read_hf_folder(path), layers)
    return _load_gguf(ahead.file, ahead.arrays(), layers) if ahead else _load_gguf(read_gguf(path), {}, layers)


def _load_gguf(file: GgufFile, decoded: Mapping[str, Floats], layers: Sequence[int]) -> LoadedModel:
    architecture = find_architecture(str(file.metadata.get("general.architecture")))
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise BadRequest(f"{file.path} has no matrix 'token_embd.weight'")
    config = with_layers(config_from_gguf(file.metadata, architecture.name, embedding.shape[0], file.tensors), layers)
    data: Bytes = np.memmap(file.path, np.uint8, mode="r")
    stored = {
        name: _Stored(info.shape, info.kind, partial(_slice, data, info), decoded.get(name))
        for name, info in file.tensors.items()
    }
    ropes = make_ropes(config)
    if factors := stored.get("rope_freqs.weight"):
        ropes = _divided(ropes, _divisors(str(file.path), config, factors))
    return _assemble(str(file.path), config, named_by_place(stored, layers, "blk."), ropes, is_hf=False)


def _divisors(origin: str, config: ModelConfig, factors: _Stored) -> Tensor:
    """How GGUF files carry Llama 3 scaling: what each frequency is divided by, [head_dim / 2]."""
    divisors = np.empty(config.head_dim // 2, np.float32)
    _check_shape(origin, "rope_freqs.weight", factors, divisors.shape)
    factors.write("rope_freqs.weight", None, divisors)
    return torch.from_numpy(divisors)


def _divided(ropes: tuple[Rope, ...], divisors: Tensor) -> tuple[Rope, ...]:
    """Layers that shared a rope still do."""
    divided = {rope: Rope(rope.frequencies / divisors, rope.magnitude) for rope in dict.fromkeys(ropes)}
    return tuple(divided[rope] for rope in ropes)


def _load_hf_folder(folder: HfFolder, layers: Sequence[int]) -> LoadedModel:
    names = folder.config.get("architectures")
    architecture = find_architecture(str(names[0]) if isinstance(names, list) and names else str(names))
    config = with_layers(config_from_hf(folder.config, architecture.name), layers)
    try:
        files = {path: safe_open(path, framework="pt") for path in set(folder.tensor_files.values())}
        stored = {name: _hf_tensor(files[path], name) for name, path in folder.tensor_files.items()}
    except (SafetensorError, OSError) as error:
        raise Unavailable(f"{folder.path} is damaged: {error}", hint="download it again") from error
    kept = named_by_place(stored, layers, "model.layers.")
    return _assemble(str(folder.path), config, kept, make_ropes(config), is_hf=True)


def _slice(data: Bytes, info: TensorInfo) -> Bytes:
    return data[info.offset : info.offset + info.nbytes]


def _hf_tensor(file: Any, name: str) -> _Stored:  # noqa: ANN401 — safetensors ships no types
    def read() -> Bytes:
        tensor: Tensor = file.get_tensor(name)  # reads in place where the platform can
        return tensor.flatten().view(torch.uint8).numpy()

    view = file.get_slice(name)
    return _Stored(tuple(view.get_shape()), str(view.get_dtype()), read)


def _assemble(
    origin: str, config: ModelConfig, stored: Mapping[str, _Stored], ropes: tuple[Rope, ...], *, is_hf: bool
) -> LoadedModel:
    """Checks every shape before the first byte is allocated, then decodes on as many threads as there are cores."""
    specs = find_architecture(config.architecture).weights(config)
    for spec in specs:
        for part in spec.parts:
            _check_part(origin, part.hf if is_hf else part.gguf, (part.num_rows, *spec.shape[1:]), stored)
    weights = {spec.name: _weight(spec, stored, is_hf=is_hf) for spec in specs}
    fills = [fill for spec in specs for fill in _fills(spec, weights[spec.name], stored, is_hf=is_hf)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        largest_first = sorted(fills, key=lambda fill: -fill.out.size)
        list(pool.map(_Fill.run, largest_first))
    num_elements = Counter[str]()
    for fill in fills:
        num_elements[fill.source.kind] += fill.out.size
    kinds = {spec.name: {stored[(part.hf if is_hf else part.gguf).name].kind for part in spec.parts} for spec in specs}
    return LoadedModel(
        config,
        weights,
        ropes,
        quantization=num_elements.most_common(1)[0][0],
        stored_as={name: kind for name, (kind, *others) in kinds.items() if not others},
    )


def _check_part(origin: str, part: StoredPart, shape: tuple[int, ...], stored: Mapping[str, _Stored]) -> None:
    source = stored.get(part.name)
    if source is None:
        raise BadRequest(
            f"{origin} has no tensor {part.name!r}", hint="the file is incomplete, or of another architecture"
        )
    _check_shape(origin, part.name, source, shape if part.expert is None else (part.expert[1], *shape))


def _check_shape(origin: str, name: str, source: _Stored, shape: tuple[int, ...]) -> None:
    if source.shape != shape:
        raise BadRequest(f"{origin}: tensor {name!r} has shape {list(source.shape)}; the config wants {list(shape)}")


def _weight(spec: WeightSpec, stored: Mapping[str, _Stored], *, is_hf: bool) -> Tensor:
    """Memory for a weight: that of its decoded tensor, if that is the whole of it as it is."""
    part = spec.parts[0].hf if is_hf else spec.parts[0].gguf
    decoded = stored[part.name].decoded
    if decoded is None or len(spec.parts) > 1 or part != StoredPart(part.name):
        return torch.empty(spec.shape)
    return torch.from_numpy(decoded).view(spec.shape)


def _fills(spec: WeightSpec, weight: Tensor, stored: Mapping[str, _Stored], *, is_hf: bool) -> Iterator["_Fill"]:
    rows: Floats = weight.numpy()
    start = 0
    for part in spec.parts:
        stored_part = part.hf if is_hf else part.gguf
        yield _Fill(stored_part, stored[stored_part.name], rows[start : start + part.num_rows])
        start += part.num_rows


@dataclass(frozen=True, slots=True)
class _Fill:
    """Writes one part of a weight into its rows."""

    part: StoredPart
    source: _Stored
    out: Floats

    def run(self) -> None:
        part = self.part
        if part.num_halved_heads:
            halves = np.empty_like(self.out)
            self.source.write(part.name, part.expert, halves)
            # [num_heads, head_dim / 2, 2, inputs]; a vector has one input
            pairs = halves.reshape(part.num_halved_heads, 2, -1, prod(self.out.shape[1:])).swapaxes(1, 2)
            self.out.reshape(pairs.shape)[:] = pairs
        elif self.source.decoded is None or not np.may_share_memory(self.source.decoded, self.out):
            self.source.write(part.name, part.expert, self.out)
        if part.offset:
            np.add(self.out, part.offset, out=self.out)
