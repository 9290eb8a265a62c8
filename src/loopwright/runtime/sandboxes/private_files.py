"""A folder for the files of one run: measured while it runs, deleted with it. Never shows its own place.

The program sees it as its whole file system, through WASI, which follows no link or `..` out of it. Used by both Wasm
sandboxes for programs that ask for files; docs/adr/0018-private-files.md.
"""

import os
import shutil
import tempfile
import time
from pathlib import Path

from loopwright.core.errors import LimitExceeded, Unavailable
from loopwright.core.raise_hint import raise_hint

MAX_ENTRIES = 1024  # files and folders, so that measuring them stays short
ENTRY_BYTES = 4096  # what each counts for at the least
CHECK_S = 0.010  # how long a program may write before it is measured
CHECK_SHARE = 20  # measuring takes at most one part in this many of the time


class PrivateFiles:
    """Made before the run's instance, and removed after it."""

    def __init__(self, max_bytes: int) -> None:
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="loopwright-files-"))
        except OSError as error:
            raise Unavailable(f"cannot make a folder for the run's files: {error.strerror or error}") from None
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
        """As `check_when_due`, now."""
        sizes = _sizes(self.folder)
        if len(sizes) > MAX_ENTRIES:
            raise LimitExceeded(
                f"the run has more than {MAX_ENTRIES} files and folders, which is the limit",
                hint="keep fewer files, or delete them when they are done with",
            )
        num_bytes = sum(max(size, ENTRY_BYTES) for size in sizes)
        if num_bytes > self._max_bytes:
            raise LimitExceeded(
                f"the run's files have {num_bytes} bytes; its limit is {self._max_bytes}",
                hint=raise_hint("max_file_bytes", self._max_bytes, "write less"),
                field="max_file_bytes",
            )

    def remove(self) -> None:
        """Deletes everything. Again where a write that was under way has put something back."""
        for _ in range(10):
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                return


def _sizes(folder: Path) -> list[int]:
    """Bytes on disk of every entry, links not followed; at most one more than may be."""
    sizes: list[int] = []
    waiting = [str(folder)]
    while waiting and len(sizes) <= MAX_ENTRIES:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    sizes.append(entry.stat(follow_symlinks=False).st_blocks * 512)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    if len(sizes) > MAX_ENTRIES:
                        break
        except OSError:
            continue  # it went away meanwhile: the guest may be writing
    return sizes
