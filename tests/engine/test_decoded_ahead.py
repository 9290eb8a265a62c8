"""A model whose tensors another process decodes is the model that the loader decodes, or the loader decodes it."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from parity import ARCHITECTURES

from loopwright.compose.model_parts import decode_ahead
from loopwright.core.errors import Unavailable
from loopwright.engine.byte_model import byte_model
from loopwright.engine.decoded_ahead import DecodedAhead, can_decode_ahead
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.loader import load_model
from loopwright.engine.model_files import write_gguf
from loopwright.weights.gguf import read_gguf


def ahead_of(path: Path) -> DecodedAhead:
    return DecodedAhead(read_gguf(path), min_elements=1)


def assert_same(actual: LoadedModel, expected: LoadedModel) -> None:
    assert actual.quantization == expected.quantization
    assert list(actual.weights) == list(expected.weights)
    for name, weight in expected.weights.items():
        assert torch.equal(actual.weights[name], weight), name
    for rope, other in zip(actual.ropes, expected.ropes, strict=True):
        assert torch.equal(rope.frequencies, other.frequencies)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_is_the_same_decoded_ahead(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(byte_model(seed=2, num_layers=3, **ARCHITECTURES[name]), path, kind="F16")
    assert_same(load_model(path, ahead_of(path)), load_model(path))


def test_small_tensors_are_left_to_the_loader(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(byte_model(seed=2), path)
    ahead = DecodedAhead(read_gguf(path), min_elements=64 * 64 + 1)
    assert 0 < len(arrays := ahead.arrays()) < len(ahead.file.tensors)
    assert not ahead._arrays  # handed over: whoever keeps `ahead` keeps nothing large
    assert all(array.size > 64 * 64 for array in arrays.values())


def test_what_cannot_be_decoded_is_said_by_the_loader(tmp_path: Path) -> None:
    model, path = byte_model(seed=3), tmp_path / "model.gguf"
    weights = dict(model.weights) | {"layers.1.down": model.weights["layers.1.down"] * torch.nan}
    write_gguf(replace(model, weights=weights), path)
    with pytest.raises(Unavailable, match=r"tensor 'blk\.1\.ffn_down\.weight' holds values that are not finite"):
        load_model(path, ahead_of(path))


def test_the_loader_goes_on_when_the_other_process_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(byte_model(seed=3), path)
    monkeypatch.setattr(DecodedAhead, "_decode_and_exit", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    ahead = ahead_of(path)
    assert ahead.arrays() == {}


def test_the_loader_goes_on_when_nobody_keeps_how_the_other_process_ended(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(byte_model(seed=3), path)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert_same(load_model(path, ahead_of(path)), load_model(path))
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_nothing_is_begun_for_folders_damaged_files_or_a_single_core(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(7))
    assert decode_ahead(tmp_path) is None
    assert decode_ahead(tmp_path / "model.gguf") is None
    assert decode_ahead(tmp_path / "absent.gguf") is None
    write_gguf(byte_model(seed=3), tmp_path / "model.gguf")
    assert not can_decode_ahead(read_gguf(tmp_path / "model.gguf"), num_cores=1)
