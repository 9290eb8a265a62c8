"""Builds the runner, the one component that holds every program, compiles it for this machine, and keeps both on disk.

Never runs it. Called once at start-up, by the composition root; a machine pays for it once for each version.
"""

import fcntl
import hashlib
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

from wasmtime.component import Component

import loopwright.sdk
from loopwright.core.child_process import output_of
from loopwright.core.errors import Unavailable
from loopwright.runtime.sandboxes import immortal
from loopwright.runtime.sandboxes.wasm_engine import CONFIG, new_engine

Progress: TypeAlias = Callable[[str, float | None], None]
"""Takes what is being done, and how far it is: from 0 to 1, or None when nobody knows."""

MAX_KEPT_VERSIONS = 4

_GUEST = Path(__file__).parent / "guest"
_SDK = Path(loopwright.sdk.__file__).parent
_SCRATCH = ".building-"
_BUILD = "from componentize_py import script; script()"
_COMPILE = f"import sys; from {__name__} import compile_component; compile_component(*sys.argv[1:])"


@dataclass(frozen=True, slots=True)
class RunnerFiles:
    """The runner as a component, and as machine code for this machine and this wasmtime."""

    component: Path
    compiled: Path


def prepare_runner(cache_dir: Path, progress: Progress) -> RunnerFiles:
    """The runner's files, built if the cache does not have them. Takes half a minute once, milliseconds afterwards.

    Safe when several processes do it at once. Raises Unavailable when the cache cannot be written."""
    files = runner_files(cache_dir / "runner")
    if is_intact(files.compiled):
        return files
    try:
        with _locked(files.compiled.parent, progress):
            if not is_intact(files.compiled):
                _build_and_compile(files, progress)
    except OSError as error:
        raise Unavailable(
            f"cannot prepare the Python runner in {files.compiled.parent}: {error.strerror or error}",
            hint="free some space there, or set LOOPWRIGHT_CACHE_DIR to a folder that can be written",
        ) from error
    return files


def compile_component(component: str, output: str) -> None:
    """Writes a component as machine code for this machine; the body of the process that `prepare_runner` starts."""
    compiled = Component.from_file(new_engine(), component).serialize()
    immortal.make_immortal(compiled)
    Path(output).write_bytes(compiled)


def runner_files(folder: Path) -> RunnerFiles:
    """Where the runner of these sources, this wasmtime and this machine lies."""
    source_key = _digest(
        *(part for path in _sources() for part in (path.name.encode(), path.read_bytes())),
        version("componentize-py").encode(),
    )
    engine_key = (version("wasmtime"), repr(sorted(CONFIG.items())), Path(immortal.__file__).read_bytes())
    machine_key = _digest(source_key, *engine_key, _cpu_features())
    return RunnerFiles(folder / f"runner-{source_key}.wasm", folder / f"runner-{machine_key}.cwasm")


def is_intact(path: Path) -> bool:
    """Whether the file is there as it was written: what is loaded as machine code is not checked by anyone else."""
    try:
        return _checksum_file(path).read_text() == _file_digest(path)
    except OSError:
        return False


def _build_and_compile(files: RunnerFiles, progress: Progress) -> None:
    folder = files.compiled.parent
    # What cannot be removed, the next build removes; it must not stand in the place of what ended this one.
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=folder, ignore_cleanup_errors=True) as scratch_name:
        scratch = Path(scratch_name)
        if not is_intact(files.component):
            progress("building the Python runner", None)
            _build(scratch, scratch / "runner.wasm")
            _keep(scratch / "runner.wasm", files.component)
        progress("compiling the Python runner for this machine", None)
        _compile(files.component, scratch / "runner.cwasm")
        _keep(scratch / "runner.cwasm", files.compiled)
    progress("the Python runner is ready", 1.0)
    _forget_old_versions(folder)


def _build(scratch: Path, output: Path) -> None:
    """Runs componentize-py on the guest's sources and the sdk, and on nothing else of this machine."""
    app = scratch / "app"
    shutil.copytree(_SDK, app / "loopwright" / "sdk", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(_SDK.parent / "__init__.py", app / "loopwright")
    for source in _GUEST.glob("*.py"):
        shutil.copy(source, app)
    empty = scratch / "empty"
    empty.mkdir()
    done = output_of(
        [
            *(sys.executable, "-c", _BUILD),
            *("--wit-path", str(_GUEST), "--world", "runner"),
            *("componentize", "runner", "--python-path", str(app), "--output", str(output)),
        ],
        env={"VIRTUAL_ENV": str(empty), "PATH": "", "TMPDIR": str(scratch)},  # so that it finds no packages of ours
    )
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise Unavailable(
            f"componentize-py ended with exit code {done.returncode} and said: {said}",
            hint="see that the disk has 200 MB free, or set LOOPWRIGHT_CACHE_DIR",
        )


def _compile(component: Path, output: Path) -> None:
    """In a process of its own, which an interrupt ends: while wasmtime compiles, Python hears of none."""
    done = output_of([sys.executable, "-c", _COMPILE, str(component), str(output)])
    if done.returncode != 0:
        said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise Unavailable(
            f"cannot compile {component}: {said}", hint="see that the disk has 200 MB free, or delete that file"
        )


def _keep(path: Path, target: Path) -> None:
    """Moves a finished file to its place, the checksum last: without it the file does not count."""
    checksum = path.with_name("checksum")
    checksum.write_text(_file_digest(path))
    _checksum_file(target).unlink(missing_ok=True)
    path.rename(target)
    checksum.rename(_checksum_file(target))


def _forget_old_versions(folder: Path) -> None:
    for pattern in ("runner-*.wasm", "runner-*.cwasm", "runner-*.modules.json"):
        by_age = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in by_age[MAX_KEPT_VERSIONS:]:
            _checksum_file(path).unlink(missing_ok=True)
            path.unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    """Holds the folder's lock, which ends with the process that holds it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that prepares the Python runner", None)
            fcntl.flock(lock, fcntl.LOCK_EX)
        for stale in folder.glob(f"{_SCRATCH}*"):  # of a process that was killed: nobody else works here
            shutil.rmtree(stale, ignore_errors=True)
        yield


def _sources() -> list[Path]:
    return [*sorted(_GUEST.glob("*.*")), _SDK.parent / "__init__.py", *sorted(_SDK.rglob("*.py"))]


def _cpu_features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.system()} {platform.machine()} {features}"


def _checksum_file(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(*parts: str | bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        encoded = part.encode() if isinstance(part, str) else part
        total.update(len(encoded).to_bytes(8, "little") + encoded)
    return total.hexdigest()[:20]
