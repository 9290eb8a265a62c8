"""How a Wasm back-end is chosen, and the self-test that keeps fibers off a wasmtime they do not know."""

import pytest

from loopwright.core.errors import Unavailable
from loopwright.runtime.sandboxes import fibers
from loopwright.runtime.sandboxes.runner_build import RunnerFiles
from loopwright.runtime.sandboxes.wasm import open_wasm_sandbox
from loopwright.runtime.sandboxes.wasm_engine import new_engine


def test_fibers_pass_their_self_test_here() -> None:
    assert fibers.why_not(new_engine()) is None


def test_another_wasmtime_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, runner_files: RunnerFiles) -> None:
    monkeypatch.setattr(fibers, "KNOWN_VERSION", "49.0.0")
    with pytest.raises(Unavailable, match=r"fibers are known to work with wasmtime 49.0.0, and 50.0.1 is installed"):
        open_wasm_sandbox(runner_files, "fiber")


def test_another_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fibers.ctypes, "sizeof", lambda _type: 40)
    assert "another layout" in str(fibers.why_not(new_engine()))


@pytest.mark.wasm
def test_auto_falls_back_where_fibers_cannot_run(monkeypatch: pytest.MonkeyPatch, runner_files: RunnerFiles) -> None:
    monkeypatch.setattr(fibers, "KNOWN_VERSION", "49.0.0")
    assert open_wasm_sandbox(runner_files).backend == "reentrant"
