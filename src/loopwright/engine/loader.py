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
from loopwright.engine.dequantize import Bytes, Floats, dequantize, dequantize_columns
from loopwright.engine.gguf_config import config_from_gguf
from loopwright.engine.hf_config import config_from_hf
from loopwright.engine.layer_choice import named_by_place, with_layers
from loopwright.engine.layers import make_ropes
from loopwright.engine.loaded_model import LoadedModel, ModelConfig, Rope
from loopwright.engine.models import find_architecture
from loopwright.engine.models.weight_spec import StoredPart
from loopwright.engine.shards import WHOLE, Cut, Shard, ShardedSpec, local_config, sharded_specs
from loopwright.weights.gguf import GgufFile, TensorInfo, read_gguf
from loopwright.weights.hf_folder import HfFolder, read_hf_folder


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor of a file: its shape, how it is stored, how to get its bytes, and its values if they are here."""

    shape: tuple[int, ...]
    kind: str
    read: Callable[[], Bytes]
    decoded: Floats | None = None

    def write(self, name: str, expert: tuple[int, int] | None, out: Floats, cut: Cut) -> None:
        """Its values, or those of one of its equal slices, (number, count), to `out`; of these, the cut."""
        number, count = expert or (0, 1)
        if self.decoded is not None:
            whole = self.decoded.reshape(count, cut.num_rows, -1)[number]
            out.reshape(len(out), -1)[:] = whole[cut.rows, cut.columns]
            return
        rows = self.read().reshape(count, cut.num_rows, -1)[number][cut.rows]
        if cut.is_whole_rows:
            dequantize(name, self.kind, rows.reshape(-1), out)
        else:
            dequantize_columns(name, self.kind, rows, cut.columns, cut.num_columns, out)


@dataclass(frozen=True, slots=True)
class _Found:
    """A model's files, opened: what is needed to load its weights. `config` is the whole model's."""

    origin: str
    config: ModelConfig
    stored: Mapping[str, _Stored]
    ropes: tuple[Rope, ...]
    is_hf: bool


def load_model(
    path: Path, ahead: DecodedAhead | None = None, layers: Sequence[int] = (), shard: Shard = WHOLE
) -> LoadedModel:
    """The model at `path`, with its weights in float32, of which some may be decoded already; with `layers`, of those
    alone; with `shard`, only that part of each, and no more is read.

    Raises BadRequest for a model that this engine cannot run or split so, and Unavailable for files that are damaged or
    cannot be read; the message names the file, key or tensor."""
    return _assemble(_find(path, ahead, layers), shard)


def read_config(path: Path, layers: Sequence[int] = ()) -> ModelConfig:
    """The sizes of the model at `path`. Raises as `load_model` does, and reads no weight."""
    return _find(path, None, layers).config


def _find(path: Path, ahead: DecodedAhead | None, layers: Sequence[int]) -> _Found:
    if path.is_dir():
        return _find_hf_folder(read_hf_folder(path), layers)
    return _find_gguf(ahead.file, ahead.arrays(), layers) if ahead else _find_gguf(read_gguf(path), {}, layers)


def _find_gguf(file: GgufFile, decoded: Mapping[str, Floats], layers: Sequence[int]) -> _Found:
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
    return _Found(str(file.path), config, named_by_place(stored, layers, "blk."), ropes, is_hf=False)


def _divisors(origin: str, config: ModelConfig, factors: _Stored) -> Tensor:
    """How GGUF files carry Llama 3 scaling: what each frequency is divided by, [head_dim / 2]."""
    divisors = np.empty(config.head_dim // 2, np.float32)
    _check_shape(origin, "rope_freqs.weight", factors, divisors.shape)
    factors.write("rope_freqs.weight", None, divisors, Cut(len(divisors), 1, slice(0, len(divisors)), slice(0, 1)))
    return torch.from_numpy(divisors)


def _divided(ropes: tuple[Rope, ...], divisors: Tensor) -> tuple[Rope, ...]:
    """Layers that shared a rope still do."""
    divided = {rope: Rope(rope.frequencies / divisors, rope.magnitude) for rope in dict.fromkeys(ropes)}
    return tuple(divided[rope] for rope in ropes)


def _find_hf_folder(folder: HfFolder, layers: Sequence[int]) -> _Found:
    names = folder.config.get("architectures")
    architecture = find_architecture(str(names[0]) if isinstance(names, list) and names else str(names))
    config = with_layers(config_from_hf(folder.config, architecture.name), layers)
    try:
        files = {path: safe_open(path, framework="pt") for path in set(folder.tensor_files.values())}
        stored = {name: _hf_tensor(files[path], name) for name, path in folder.tensor_files.items()}
    except (SafetensorError, OSError) as error:
        raise Unavailable(f"{folder.path} is damaged: {error}", hint="download it again") from error
    kept = named_by_place(stored, layers, "model.layers.")
    return _Found(str(folder.path), config, kept, make_ropes(config), is_hf=True)


def _slice(data: Bytes, info: TensorInfo) -> Bytes:
    return data[info.offset : info.offset + info.nbytes]


def _hf_tensor(file: Any, name: str) -> _Stored:  # noqa: ANN401 — safetensors ships no types
    def read() -> Bytes:
        tensor: Tensor = file.get_tensor(name)  # reads in place where the platform can
        return tensor.flatten().view(torch.uint8).numpy()

    view = file.get_slice(name)
    return _Stored(tuple(view.get_shape()), str(view.get_dtype()), read)


def _assemble(found: _Found, shard: Shard) -> LoadedModel:
    """Checks every shape before the first byte is allocated, then decodes on as many threads as there are cores."""
    stored, is_hf = found.stored, found.is_hf
    sharded = list(sharded_specs(found.config, shard))
    for one in sharded:
        for part, cut in zip(one.spec.parts, one.cuts, strict=True):
            shape = (cut.num_rows, cut.num_columns)[: len(one.spec.shape)]
            _check_part(found.origin, part.hf if is_hf else part.gguf, shape, stored)
    weights = {one.spec.name: _weight(one, stored, is_hf=is_hf) for one in sharded}
    fills = [fill for one in sharded for fill in _fills(one, weights[one.spec.name], stored, is_hf=is_hf)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        largest_first = sorted(fills, key=lambda fill: -fill.out.size)
        list(pool.map(_Fill.run, largest_first))
    num_elements = Counter[str]()
    for fill in fills:
        num_elements[fill.source.kind] += fill.out.size
    kinds = {
        one.spec.name: {stored[(part.hf if is_hf else part.gguf).name].kind for part in one.spec.parts}
        for one in sharded
    }
    return LoadedModel(
        local_config(found.config, shard.num_ranks),
        weights,
        found.ropes,
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


def _weight(sharded: ShardedSpec, stored: Mapping[str, _Stored], *, is_hf: bool) -> Tensor:
    """Memory for a weight: that of its decoded tensor, if that is the whole of it as it is."""
    spec, (cut, *_) = sharded.spec, sharded.cuts
    if sharded.is_elsewhere:
        return torch.zeros(spec.shape)
    part = spec.parts[0].hf if is_hf else spec.parts[0].gguf
    decoded = stored[part.name].decoded
    is_all = len(spec.parts) == 1 and part == StoredPart(part.name) and cut.is_whole_rows
    if decoded is None or not is_all or cut.rows != slice(0, cut.num_rows):
        return torch.empty(spec.shape)
    return torch.from_numpy(decoded).view(spec.shape)


def _fills(sharded: ShardedSpec, weight: Tensor, stored: Mapping[str, _Stored], *, is_hf: bool) -> Iterator["_Fill"]:
    if sharded.is_elsewhere:
        return
    rows: Floats = weight.numpy()
    start = 0
    for part, cut in zip(sharded.spec.parts, sharded.cuts, strict=True):
        stored_part = part.hf if is_hf else part.gguf
        yield _Fill(stored_part, stored[stored_part.name], rows[start : start + part.num_rows], cut)
        start += part.num_rows


@dataclass(frozen=True, slots=True)
class _Fill:
    """Writes one part of a weight, or the cut of it, into its rows."""

    part: StoredPart
    source: _Stored
    out: Floats
    cut: Cut

    def run(self) -> None:
        part = self.part
        if part.num_halved_heads:
            halves = np.empty_like(self.out)
            self.source.write(part.name, part.expert, halves, self.cut)
            # [num_heads, head_dim / 2, 2, inputs]; a vector has one input
            pairs = halves.reshape(part.num_halved_heads, 2, -1, prod(self.out.shape[1:])).swapaxes(1, 2)
            self.out.reshape(pairs.shape)[:] = pairs
        elif self.source.decoded is None or not np.may_share_memory(self.source.decoded, self.out):
            self.source.write(part.name, part.expert, self.out, self.cut)
        if part.offset:
            np.add(self.out, part.offset, out=self.out)
