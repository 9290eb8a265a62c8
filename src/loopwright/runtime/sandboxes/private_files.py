"""A folder for the files of one run: measured while it runs, deleted with it. Never shows its own place.

The program sees it as its whole file system, through WASI, which follows no link or `..` out of it. Used by both Wasm
sandboxes for programs that ask for files; docs/adr/0018-private-files.md.
"""

import fcntl
import logging
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from loopwright.core.errors import LimitExceeded, Unavailable
from loopwright.core.raise_hint import raise_hint

MAX_ENTRIES = 1024  # files and folders, so that measuring them stays short
MAX_DEPTH = 64  # of folders, each of which is held open while what is below it is measured
ENTRY_BYTES = 4096  # what each counts for at the least
CHECK_S = 0.010  # how long a program may write before it is measured
CHECK_SHARE = 20  # measuring takes at most one part in this many of the time

PREFIX = "loopwright-files-"
_LOCK = "lock"

log = logging.getLogger(__name__)


class FileFolders:
    """The folders of the runs of one sandbox, below one that is locked for as long as the process lives: what a killed
    process left is known by its lock, which is open, and deleted by the next that has use for files."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._lock: int | None = None

    def new(self, max_bytes: int) -> "PrivateFiles":
        """Those of a run. Raises Unavailable."""
        try:
            if self._root is None:
                _sweep(Path(tempfile.gettempdir()))
                self._root, self._lock = _new_root()
            return PrivateFiles(Path(tempfile.mkdtemp(dir=self._root)), max_bytes)
        except OSError as error:
            raise Unavailable(f"cannot make a folder for the run's files: {error.strerror or error}") from None

    def close(self) -> None:
        """Deletes what is there. No run may have files any more."""
        if self._root is not None and self._lock is not None:
            _remove_tree(self._root)
            os.close(self._lock)
        self._root = self._lock = None


class PrivateFiles:
    """Made before the run's instance, and removed after it."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._next_check_s = 0.0

    def check_when_due(self) -> None:
        """Raises LimitExceeded when there is more than may be."""
        started_s = time.monotonic()
        if started_s >= self._next_check_s:
            self.check()
            ended_s = time.monotonic()
            self._next_check_s = ended_s + max(CHECK_S, CHECK_SHARE * (ended_s - started_s))

    def due_in_s(self) -> float:
        """How long until it is measured again."""
        return max(self._next_check_s - time.monotonic(), 0.0)

    def check(self) -> None:
        """As `check_when_due`, now. Raises Unavailable when it cannot be measured."""
        num_entries = num_bytes = 0
        try:
            for size in _sizes(self.folder):
                num_entries += 1
                num_bytes += max(size, ENTRY_BYTES)
                if num_entries > MAX_ENTRIES:
                    raise LimitExceeded(
                        f"the run has more than {MAX_ENTRIES} files and folders, which is the limit",
                        hint="keep fewer files, or delete them when they are done with",
                    )
        except OSError as error:  # what is not seen is not nothing
            raise Unavailable(f"the run's files cannot be measured: {error.strerror or error}") from None
        if num_bytes > self._max_bytes:
            raise LimitExceeded(
                f"the run's files have {num_bytes} bytes; its limit is {self._max_bytes}",
                hint=raise_hint("max_file_bytes", self._max_bytes, "write less"),
                field="max_file_bytes",
            )

    def remove(self) -> None:
        """Deletes everything."""
        _remove_tree(self.folder)


def _sizes(folder: Path) -> Iterator[int]:
    """Bytes on disk of every entry, links not followed. Raises OSError, LimitExceeded for folders that lie too deep.

    By descriptors, and never by path: what a program has moved below its longest path has none that can be opened."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield from _sizes_below(descriptor, 1)
    finally:
        os.close(descriptor)


def _sizes_below(descriptor: int, depth: int) -> Iterator[int]:
    if depth > MAX_DEPTH:
        raise LimitExceeded(f"the run's folders lie deeper than {MAX_DEPTH}, which is the limit", hint="nest them less")
    with os.scandir(descriptor) as entries:
        for entry in entries:
            try:
                yield entry.stat(follow_symlinks=False).st_blocks * 512
                if not entry.is_dir(follow_symlinks=False):
                    continue
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                below = os.open(entry.name, flags, dir_fd=descriptor)
            except (FileNotFoundError, NotADirectoryError):
                continue  # it went away meanwhile: the guest may be writing
            try:
                yield from _sizes_below(below, depth + 1)
            finally:
                os.close(below)


def _remove_tree(folder: Path) -> None:
    """Deletes everything, however deep it lies. Again where a write that was under way has put something back."""
    for _ in range(10):
        try:
            _empty(folder)
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            problem = error
            continue
        return
    log.warning("cannot delete %s: %s", folder, problem)


def _empty(folder: Path) -> None:
    """Folders in folders are moved up and emptied there: no recursion, and no path that is too long."""
    token, number = secrets.token_hex(8), count()
    while entries := list(os.scandir(folder)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            for below in list(os.scandir(entry.path)):
                if below.is_dir(follow_symlinks=False):
                    os.rename(below.path, folder / f"{token}-{next(number)}")
                else:
                    os.unlink(below.path)
            os.rmdir(entry.path)


def _new_root() -> tuple[Path, int]:
    """A folder of this process and its lock. It gets its name when it is locked: no other process takes it for left."""
    made = Path(tempfile.mkdtemp(prefix="loopwright-new-"))
    lock = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return made.rename(made.with_name(PREFIX + secrets.token_hex(8))), lock


def _sweep(parent: Path) -> None:
    """Deletes what processes of this user left that are no more: their locks are open."""
    for root in parent.glob(f"{PREFIX}*"):
        try:
            found = root.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            lock = os.open(root / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # gone meanwhile, or none of ours
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            log.info("deleting the files of runs whose server was killed: %s", root)
            _remove_tree(root)
        except OSError:
            continue  # its process lives
        finally:
            os.close(lock)
