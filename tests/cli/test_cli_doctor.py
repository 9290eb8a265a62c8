"""What `loopwright doctor` says of the machine."""

import json
from pathlib import Path

import pytest
import torch

from kernels_here import needs_kernels
from loopwright.cli import main
from loopwright.compose.config import num_cores
from loopwright.engine.native.build import processor_sets


def findings(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, dict[str, str]]:
    assert main(["doctor", "--json", *flags]) == 0
    return {one["what"]: one for one in json.loads(capsys.readouterr().out)}


@needs_kernels
def test_the_best_instruction_set_computes(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys)
    assert found["cores"]["found"].startswith(f"{num_cores()} ")
    best = f"native kernels for {processor_sets()[0]}, the best that the processor has, "
    assert found["engine"]["found"].startswith((f"{best}compiled by ", f"{best}from the wheel"))
    assert found["sandbox"]["found"] == "fibers"


def test_a_lesser_processor_is_emulated_and_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOPWRIGHT_PROCESSOR", "none")
    found = findings(capsys)
    assert found["instruction sets"]["found"] == "none that the kernels know; LOOPWRIGHT_PROCESSOR is none"
    assert found["engine"]["found"].startswith(
        "torch, float32: the processor, which LOOPWRIGHT_PROCESSOR says is none,"
    )


def test_where_ranks_would_be_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "tensor parallel" not in findings(capsys)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = findings(capsys, "--set", "engine.tensor_parallel=3")["tensor parallel"]["found"]
    assert found == "3 processes on the CPU, in float32, through gloo; the models that can be split so"
    for name, value in {"is_available": True, "device_count": 2, "get_device_name": "a GPU"}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    found = findings(capsys, "--set", "engine.tensor_parallel=3")["tensor parallel"]
    assert found["found"] == "engine.tensor_parallel: 3 ranks need as many GPUs, and torch sees 2"
    assert found["advice"] == "engine.device = 'cpu' needs none"


def test_a_processor_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOOPWRIGHT_PROCESSOR", "avx1")
    assert main(["doctor"]) == 1
    assert "LOOPWRIGHT_PROCESSOR is 'avx1'; it may be avx512_bf16, avx512, avx2 or none" in capsys.readouterr().err


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


def test_a_gpu_is_named_with_what_attends_and_why_it_would_not_be_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert findings(capsys)["GPU"]["found"].startswith("none that torch ")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a card")
    monkeypatch.setattr("loopwright.engine.cuda.choice.importlib.util.find_spec", lambda name: None)
    assert findings(capsys, "--set", "engine.attention=sdpa")["GPU"]["found"] == (
        "a card, bfloat16, attention by sdpa, as asked for; no Triton here, so small operations are torch's; computes "
        "the models that it can run, and the engine of the next line the others"
    )
    assert findings(capsys, "--device", "cpu")["GPU"]["found"] == "not used: engine.device says so"
    deterministic = findings(capsys, "--set", "engine.deterministic=true")
    assert deterministic["GPU"]["found"] == ("engine.deterministic: on a GPU it needs Triton, which is not installed")
    missing = findings(capsys, "--set", "engine.attention=flashinfer")["GPU"]["found"]
    assert "FlashInfer is not installed: pip install" in missing
    monkeypatch.setattr("loopwright.engine.cuda.choice.importlib.util.find_spec", lambda name: name)
    found = findings(capsys, "--set", "engine.deterministic=true", "--dtype", "int8")["GPU"]["found"]
    assert found.startswith("a card, bfloat16, weights in int8, attention by Triton; deterministic;")


def test_a_table_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert "instruction sets" in capsys.readouterr().out
