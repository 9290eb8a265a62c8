"""Reads what a Hugging Face model folder holds: config.json and which safetensors file has which tensor.

Never reads tensor data. Called by the engine's loader and the model store.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from loopwright.core.errors import BadRequest, Unavailable

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class HfFolder:
    """A model folder. `config` is config.json as it stands; `tensor_files` says where each tensor is."""

    path: Path
    config: Mapping[str, Any]
    tensor_files: Mapping[str, Path]


def read_hf_folder(path: Path) -> HfFolder:
    """Raises BadRequest when files are missing or are not what they should be, Unavailable when they are damaged."""
    if not path.is_dir():
        raise BadRequest(f"{path} is not a folder")
    config = _read_json(path / "config.json")
    if (path / _INDEX).exists():
        places = _read_json(path / _INDEX).get("weight_map")
        if not isinstance(places, dict):
            raise BadRequest(f"{path / _INDEX} has no object 'weight_map'")
        names = sorted({str(name) for name in places.values()})
    else:
        names = [_SINGLE]
    tensor_files: dict[str, Path] = {}
    for name in names:
        if Path(name).name != name:
            raise BadRequest(f"{path / _INDEX} names the file {name!r}, which is outside its folder")
        tensor_files.update(dict.fromkeys(_tensor_names(path / name), path / name))
    return HfFolder(path, config, tensor_files)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise BadRequest(f"{path.parent} has no {path.name}", hint="a model folder has config.json, "
                         "tokenizer.json and model.safetensors") from error  # fmt: skip
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadRequest(f"{path} holds no JSON object")
    return content


def _tensor_names(path: Path) -> list[str]:
    if not os.path.isfile(path):  # Path.is_file raises for a name that no file can have
        raise BadRequest(f"{path.parent} has no {path.name}", hint="only safetensors weights can be read")
    try:
        with safe_open(path, framework="np") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise Unavailable(f"{path} is damaged: {error}", hint="download the file again") from error
