"""Says what a report was made on: devices, driver, versions, and the commit. Never measures."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from loopwright.bench.machine import this_machine

PACKAGES = ("torch", "triton", "flashinfer-python", "numpy", "wasmtime")


def hardware(device: str, commit: str = "") -> dict[str, str]:
    """By what it is. `commit` is for a tree without git."""
    names = [torch.cuda.get_device_name(one) for one in range(torch.cuda.device_count())] if device == "cuda" else []
    return {
        "device": ", ".join(f"{names.count(one)} × {one}" for one in dict.fromkeys(names)) or "CPU",
        "host": str(this_machine()),
        "driver": _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or "none",
        "versions": ", ".join(f"{one} {_version(one)}" for one in PACKAGES) + f", CUDA {torch.version.cuda}",
        "system": platform.platform(),
        "commit": commit or _said("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty") or "?",
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _said(*words: str) -> str:
    """The first line that a command says; nothing, if it fails or is not there."""
    try:
        told = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.partition("\n")[0]
