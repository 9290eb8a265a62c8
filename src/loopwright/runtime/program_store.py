"""Keeps deployed programs, by name, as files of a directory. Never runs one. Owned by the launcher.

A server that starts again finds what was deployed before. A program is its tenant's, if the server tells tenants apart:
no other can replace or remove it, and all can run it.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from loopwright.core.errors import BadRequest, PermissionDenied, ProgramRejected, Unavailable
from loopwright.core.ids import ONE_TENANT, TenantId
from loopwright.core.runs import ProgramInfo, no_program
from loopwright.runtime.permissions import PROGRAM_NAME
from loopwright.runtime.program import Program, read_program

OWNER = ".owner"


class ProgramStore:
    """Programs of one server. Without a directory they live as long as the process. One that was put while the server
    told nobody apart is nobody's: whoever replaces it first has it."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._programs: dict[str, Program] = {}
        self._owners: dict[str, TenantId] = {}
        for path in sorted(directory.glob("*.py")) if directory is not None and directory.is_dir() else ():
            with contextlib.suppress(ProgramRejected, OSError, UnicodeDecodeError):  # a file that somebody else spoilt
                self._programs[path.stem] = read_program(path.read_text(encoding="utf-8"), path.name)
                if (owner := _owner_of(path)) != ONE_TENANT:
                    self._owners[path.stem] = owner

    def check_owner(self, name: str, tenant: TenantId) -> None:
        """Raises PermissionDenied when a program of that name is another tenant's."""
        owner = self._owners.get(name)
        if owner is not None and tenant not in (owner, ONE_TENANT):
            raise PermissionDenied(
                f"name: the program {name!r} is another tenant's; only its own can replace or remove it",
                hint="a program of your own has another name",
                field="name",
            )

    def put(self, name: str, program: Program, tenant: TenantId = ONE_TENANT) -> None:
        """Keeps a program; replaces one of that name. Raises BadRequest for what cannot be a name, and as
        `check_owner`."""
        if not PROGRAM_NAME.fullmatch(name):
            raise BadRequest(
                f"{name!r} cannot name a program", field="name", hint="use a-z, 0-9, - and _, at most 64 of them"
            )
        self.check_owner(name, tenant)
        if self._directory is not None:
            _write_whole(self._directory, f"{name}{OWNER}", tenant)  # first: no program is there without its owner
            _write_whole(self._directory, f"{name}.py", program.source)
        self._programs[name] = program
        self._owners.pop(name, None)
        if tenant != ONE_TENANT:
            self._owners[name] = tenant

    def remove(self, name: str, tenant: TenantId = ONE_TENANT) -> None:
        """Keeps it no longer; runs of it go on. Raises NotFound, and as `check_owner`."""
        self.get(name)
        self.check_owner(name, tenant)
        if self._directory is not None:
            _unlink(self._directory / f"{name}.py")  # first: no program is there without its owner
            _unlink(self._directory / f"{name}{OWNER}")
        del self._programs[name]
        self._owners.pop(name, None)

    def get(self, name: str) -> Program:
        program = self._programs.get(name)
        if program is None:
            raise no_program(name, self._programs)
        return program

    def infos(self) -> tuple[ProgramInfo, ...]:
        return tuple(program_info(name, program) for name, program in sorted(self._programs.items()))


def program_info(name: str, program: Program) -> ProgramInfo:
    return ProgramInfo(name, program.description, program.parameters, program.source_sha256)


def _unlink(path: Path) -> None:
    """Another process of the same server may have done it before."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(f"cannot remove {path}: {error.strerror or error}") from None


def _owner_of(path: Path) -> TenantId:
    """Whose the program of that file is. What was deployed by an older version, or by hand, is nobody's."""
    try:
        return TenantId(path.with_suffix(OWNER).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ONE_TENANT


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
