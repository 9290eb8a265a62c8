"""How a Wasm back-end is chosen, and the self-test that keeps fibers off a wasmtime they do not know."""

import ctypes
from typing import ClassVar

import pytest

from loopwright.core.errors import Unavailable
from loopwright.runtime.sandboxes import fiber_check, fibers
from loopwright.runtime.sandboxes.runner_build import RunnerFiles
from loopwright.runtime.sandboxes.wasm import open_wasm_sandbox
from loopwright.runtime.sandboxes.wasm_engine import new_engine


def test_fibers_pass_their_self_test_here() -> None:
    assert fiber_check.why_not(new_engine()) is None


def test_another_wasmtime_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, runner_files: RunnerFiles) -> None:
    monkeypatch.setattr(fiber_check, "KNOWN_VERSION", "49.0.0")
    with pytest.raises(Unavailable, match=r"fibers are known to work with wasmtime 49.0.0, and 50.0.1 is installed"):
        open_wasm_sandbox(runner_files, "fiber")


def test_another_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Continuation(ctypes.Structure):
        _fields_: ClassVar = [("env", ctypes.c_void_p), ("callback", ctypes.c_void_p)]

    monkeypatch.setattr(fibers.bindings, "wasmtime_async_continuation_t", Continuation)
    monkeypatch.setattr(fibers, "_U32", 7)
    reason = str(fiber_check.why_not(new_engine()))
    assert "another layout than expected: tags of string, u32, s32, result (12, 7, 5, 19) instead of (12, 6" in reason
    assert "continuation (16, 0, 8) instead of (24, 0, 8, 16)" in reason


def test_a_round_trip_that_comes_back_changed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fibers, "_text", lambda value: "something else")
    assert "a round trip through wasmtime's fibers gave" in str(fiber_check.why_not(new_engine()))


@pytest.mark.parametrize("name", list(fiber_check.LAYOUT))
def test_every_line_of_the_layout_is_compared(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(fiber_check.LAYOUT, name, (0, 0))
    assert f"another layout than expected: {name} " in str(fiber_check.why_not(new_engine()))


@pytest.mark.wasm
def test_auto_falls_back_where_fibers_cannot_run(monkeypatch: pytest.MonkeyPatch, runner_files: RunnerFiles) -> None:
    monkeypatch.setattr(fiber_check, "KNOWN_VERSION", "49.0.0")
    assert open_wasm_sandbox(runner_files).backend == "reentrant"
