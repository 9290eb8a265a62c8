"""What computes where: the native kernels, shipped or compiled, and else torch, with the reason."""

import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels_here import needs_kernels
from loopwright.core.errors import BadRequest, Unavailable
from loopwright.engine.byte_model import BYTE_CONFIG, byte_model
from loopwright.engine.executor import TorchExecutor
from loopwright.engine.native import build
from loopwright.engine.native.choice import choose
from loopwright.engine.native.compiler import (
    INSTRUCTION_SETS,
    InstructionSet,
    compile_kernels,
    find_compiler,
    shipped_name,
)

needs_sets = pytest.mark.skipif(not build.processor_sets(), reason="the processor has no set that the kernels know")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder, and in place of the package's sources a copy of them that may hold compiled kernels."""
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    yield tmp_path
    build._load.cache_clear()


def without_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)


@needs_sets
def test_without_a_compiler_torch_computes_and_says_why(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    without_compiler(monkeypatch, folder)
    choice = choose("auto", BYTE_CONFIG)
    assert (choice.kernels, choice.dtype, choice.exactness) == (None, "float32", "reference")
    assert "no C++ compiler" in choice.reason
    with pytest.raises(
        Unavailable, match=r"engine\.dtype: 'int8' needs the native kernels, and there is no C\+\+ compiler"
    ):
        choose("int8", BYTE_CONFIG)
    executor = TorchExecutor(byte_model(), num_blocks=4, num_slots=0, dtype="auto")
    executor.close()
    assert executor.exactness == "reference"


@needs_sets
def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    broken = folder / "g++"
    broken.write_text("#!/bin/sh\necho 'decoder.cpp:1: error: out of luck' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert "out of luck" in choose("auto", BYTE_CONFIG).reason
    assert not list((folder / "kernels").iterdir())


@needs_kernels
def test_kernels_of_a_wheel_are_taken_without_a_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (best, *_) = build.processor_sets()
    compile_kernels(str(find_compiler()), best, folder / shipped_name(best))
    without_compiler(monkeypatch, folder)
    choice = choose("auto", BYTE_CONFIG)
    assert choice.dtype == "bfloat16"
    assert choice.reason == f"native kernels for {best}, from the wheel; weights in bfloat16"
    assert not (folder / "kernels").exists()


@needs_sets
def test_kernels_of_a_wheel_that_cannot_be_loaded_are_compiled_or_the_reason_told(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    (best, *_) = build.processor_sets()
    (folder / shipped_name(best)).write_bytes(b"of another system")
    without_compiler(monkeypatch, folder)
    reason = choose("auto", BYTE_CONFIG).reason
    assert "no C++ compiler" in reason
    assert "the kernels cannot be loaded" in reason


@needs_sets
def test_instructions_that_the_processor_lacks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "processor_sets", lambda: ("avx2",))
    with pytest.raises(BadRequest, match="'avx512' is not among them"):
        choose("auto", BYTE_CONFIG, "avx512")


@pytest.mark.parametrize("best", INSTRUCTION_SETS)
def test_a_lesser_processor_has_no_better_set(monkeypatch: pytest.MonkeyPatch, best: InstructionSet) -> None:
    monkeypatch.delenv(build.PROCESSOR, raising=False)
    all_sets = build.processor_sets()
    monkeypatch.setenv(build.PROCESSOR, best)
    assert build.processor_sets() == tuple(
        one for one in all_sets if one in INSTRUCTION_SETS[INSTRUCTION_SETS.index(best) :]
    )


def test_a_processor_without_any_set_has_torch_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.PROCESSOR, "none")
    choice = choose("auto", BYTE_CONFIG)
    assert choice.kernels is None
    assert (
        "LOOPWRIGHT_PROCESSOR says is none" in choice.reason
        or sys.platform != "linux"
        or os.uname().machine != "x86_64"
    )


@needs_sets
def test_a_model_that_does_not_fit_runs_on_torch() -> None:
    config = dataclasses.replace(BYTE_CONFIG, head_dim=8)
    assert "head_dim 8 is not a multiple of 16" in choose("auto", config).reason
    with pytest.raises(Unavailable, match="head_dim 8"):
        choose("bfloat16", config)
