"""Where the project's files are: those that git tracks or would track, read once. For the tests of this folder."""

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def project_files() -> tuple[Path, ...]:
    """Every file of the project, relative to its root. Deleted ones are left out."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return tuple(Path(name) for name in sorted(names) if (ROOT / name).is_file())


def files(suffix: str, under: str = "") -> list[Path]:
    return [path for path in project_files() if path.suffix == suffix and path.is_relative_to(under)]


def read(path: Path | str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")
