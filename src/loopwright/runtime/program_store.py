"""Keeps deployed programs, by name, as files of a directory. Never runs one. Owned by the launcher.

A server that starts again finds what was deployed before. A program is its tenant's, if the server tells tenants apart:
no other can replace or remove it, and all can run it.
"""

import logging
import os
import tempfile
from pathlib import Path

import msgspec

from loopwright.core.errors import BadRequest, LoopwrightError, PermissionDenied, Unavailable
from loopwright.core.ids import ONE_TENANT, TenantId
from loopwright.core.runs import ProgramInfo, Version, no_program
from loopwright.runtime.permissions import PROGRAM_NAME
from loopwright.runtime.program import Program, read_program

log = logging.getLogger(__name__)

OWNER = ".owner"
FILENAME = ".filename"  # of the file that it was deployed from


class ProgramStore:
    """Programs of one server. Without a directory they live as long as the process. One that was put while the server
    told nobody apart is nobody's: whoever replaces it first has it."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._programs: dict[str, Program] = {}
        self._owners: dict[str, TenantId] = {}
        self._replaced: dict[str, Version] = {}
        for path in sorted(directory.glob("*.py")) if directory is not None and directory.is_dir() else ():
            try:
                self._find(path)
            except (LoopwrightError, OSError, UnicodeDecodeError) as error:  # a file that somebody else put or spoilt
                log.warning(
                    "a file is no program and is left out", extra={"told": {"file": str(path), "why": str(error)}}
                )

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
        _check_name(name)
        self.check_owner(name, tenant)
        if self._directory is not None:
            _write_whole(self._directory, f"{name}{OWNER}", tenant)  # first: no program is there without its owner
            _write_whole(self._directory, f"{name}{FILENAME}", program.filename)
            _write_whole(self._directory, f"{name}.py", program.source)
        if (before := self._programs.get(name)) is not None:
            self._replaced[name] = Version(before.source_sha256, before.filename)
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
            _unlink(self._directory / f"{name}{FILENAME}")
            _unlink(self._directory / f"{name}{OWNER}")
        del self._programs[name]
        self._owners.pop(name, None)
        self._replaced.pop(name, None)

    def get(self, name: str) -> Program:
        program = self._programs.get(name)
        if program is None:
            raise no_program(name, self._programs)
        return program

    def infos(self) -> tuple[ProgramInfo, ...]:
        return tuple(self.info(name) for name in sorted(self._programs))

    def info(self, name: str) -> ProgramInfo:
        program = self._programs[name]
        listed = {one: names for one, names in msgspec.structs.asdict(program.metadata.permissions).items() if names}
        return ProgramInfo(
            name,
            program.description,
            program.parameters,
            program.source_sha256,
            filename=program.filename,
            permissions=listed,
            replaced=self._replaced.get(name),
            tenant=self._owners.get(name, ONE_TENANT),
        )

    def _find(self, path: Path) -> None:
        """Takes in a file of the directory, under its own name."""
        _check_name(path.stem)
        filename = _beside(path, FILENAME) or path.name
        self._programs[path.stem] = read_program(path.read_text(encoding="utf-8"), filename)
        if owner := _beside(path, OWNER):
            self._owners[path.stem] = TenantId(owner)


def _check_name(name: str) -> None:
    if not PROGRAM_NAME.fullmatch(name):
        raise BadRequest(
            f"{name!r} cannot name a program", field="name", hint="use a-z, 0-9, - and _, at most 64 of them"
        )


def _unlink(path: Path) -> None:
    """Another process of the same server may have done it before."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(f"cannot remove {path}: {error.strerror or error}") from None


def _beside(path: Path, suffix: str) -> str:
    """What was kept beside a program's file; "" of one that an older version kept, or somebody put there by hand."""
    try:
        return path.with_suffix(suffix).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


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
