"""Triton's kernels by its interpreter, in numpy: `make kernels`. Where there is no Triton, nothing here runs."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

HAS_TRITON = importlib.util.find_spec("triton") is not None
collect_ignore_glob = [] if HAS_TRITON else ["test_*.py"]

if HAS_TRITON:
    os.environ["TRITON_INTERPRET"] = "1"  # read where a kernel is defined
    from triton_on_cpu import repair

    repair()


@pytest.fixture(autouse=True)
def inference_mode():
    import torch  # noqa: PLC0415 (after the environment is set)

    with torch.inference_mode():
        yield


@pytest.fixture(autouse=True)
def small_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which ways give equal bits is tried at every start, with sizes that would take the interpreter minutes."""
    from loopwright.engine.cuda import product_kernels  # noqa: PLC0415 (after the environment is set)

    monkeypatch.setattr(product_kernels, "TRIED_SIZES", (48,))
    monkeypatch.setattr(product_kernels, "TRIED_OUTPUTS", 12)
