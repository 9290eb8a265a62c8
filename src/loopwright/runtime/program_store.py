"""Keeps deployed programs, by name, as files of a directory. Never runs one. Owned by the launcher.

A server that starts again finds what was deployed before.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from loopwright.core.errors import BadRequest, NotFound, ProgramRejected, Unavailable
from loopwright.core.runs import ProgramInfo
from loopwright.runtime.permissions import PROGRAM_NAME
from loopwright.runtime.program import Program, read_program


class ProgramStore:
    """Programs of one server. Without a directory they live as long as the process."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._programs: dict[str, Program] = {}
        for path in sorted(directory.glob("*.py")) if directory is not None and directory.is_dir() else ():
            with contextlib.suppress(ProgramRejected, OSError, UnicodeDecodeError):  # a file that somebody else spoilt
                self._programs[path.stem] = read_program(path.read_text(encoding="utf-8"), path.name)

    def put(self, name: str, program: Program) -> None:
        """Keeps a program; replaces one of that name. Raises BadRequest for what cannot be a name."""
        if not PROGRAM_NAME.fullmatch(name):
            raise BadRequest(
                f"{name!r} cannot name a program", field="name", hint="use a-z, 0-9, - and _, at most 64 of them"
            )
        if self._directory is not None:
            _write_whole(self._directory, f"{name}.py", program.source)
        self._programs[name] = program

    def get(self, name: str) -> Program:
        program = self._programs.get(name)
        if program is None:
            raise NotFound(
                f"no program {name!r} is deployed; there are: {', '.join(sorted(self._programs)) or 'none'}",
                hint="loopwright deploy FILE.py",
                field="program",
            )
        return program

    def infos(self) -> tuple[ProgramInfo, ...]:
        return tuple(program_info(name, program) for name, program in sorted(self._programs.items()))


def program_info(name: str, program: Program) -> ProgramInfo:
    return ProgramInfo(name, program.description, program.parameters, program.source_sha256)


def _write_whole(directory: Path, filename: str, text: str) -> None:
    """Writes the file in one piece or not at all."""
    part: str | None = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=directory, suffix=".part", delete=False) as file:
            part = file.name
            file.write(text)
        os.replace(part, directory / filename)
    except OSError as error:
        if part is not None:
            Path(part).unlink(missing_ok=True)
        raise Unavailable(f"cannot keep the program in {directory}: {error.strerror or error}") from None
