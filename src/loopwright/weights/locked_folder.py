"""Gives one process at a time a workspace inside a folder of kept files. Never decides what is written there.

Called by the model store. Whatever happens, the workspace is gone afterwards; what a killed process left behind is
removed by the next one, which holds the lock and so knows that nobody works there.
"""

import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = ".work-"


@contextmanager
def locked_workspace(folder: Path, on_wait: Callable[[], None]) -> Iterator[Path]:
    """A fresh folder inside `folder`, on the same file system, so that what was made can be renamed into place.

    Blocks while another process has it; `on_wait` is called before. Raises OSError when `folder` cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        for stale in folder.glob(f"{_PREFIX}*"):
            shutil.rmtree(stale, ignore_errors=True)
        workspace = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
        try:
            yield workspace
        finally:
            shutil.rmtree(workspace, ignore_errors=True)
