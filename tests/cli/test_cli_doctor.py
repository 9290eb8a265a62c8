"""What `loopwright doctor` says of the machine."""

import json
from pathlib import Path

import pytest

from loopwright.cli import main
from loopwright.compose.config import num_cores
from loopwright.engine.native.build import find_compiler, processor_sets


def findings(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, dict[str, str]]:
    assert main(["doctor", "--json", *flags]) == 0
    return {one["what"]: one for one in json.loads(capsys.readouterr().out)}


@pytest.mark.skipif(not (processor_sets() and find_compiler()), reason="the kernels cannot be had here")
def test_the_best_instruction_set_computes(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys)
    assert found["cores"]["found"].startswith(f"{num_cores()} ")
    assert found["engine"]["found"].startswith(f"native kernels for {processor_sets()[0]}, compiled by ")
    assert found["sandbox"]["found"] == "fibers"


def test_torch_computes_where_there_is_no_compiler_and_the_reason_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path))
    found = findings(capsys)
    assert found["compiler"]["found"] == "none"
    assert "no C++ compiler" in found["engine"]["found"]
    assert "install g++" in found["engine"]["advice"]


def test_a_setting_that_asks_for_the_reference_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "engine.dtype says so" in findings(capsys, "--dtype", "float32")["engine"]["found"]


def test_a_table_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert "instruction sets" in capsys.readouterr().out
