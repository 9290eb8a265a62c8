"""Owns where the sockets between our processes live: one private folder. Never opens a socket. Called by compose."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from loopwright.core.errors import Unavailable

PREFIX = "loopwright-"
LOCK = "lock"  # held by the folder's owner for as long as it lives
MAX_PATH_BYTES = 107  # of a Unix socket on Linux: sockaddr_un.sun_path less its closing NUL


@contextmanager
def socket_folder() -> Iterator[Path]:
    """A folder that only this user may enter (0700), gone with all it holds when the block ends; if its process is
    killed, when the next one makes its own. Raises Unavailable when it cannot be made."""
    try:
        _remove_left_behind(Path(tempfile.gettempdir()))
        folder = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
    except OSError as error:
        raise Unavailable(
            f"cannot make a folder for sockets in {tempfile.gettempdir()}: {error.strerror}",
            hint="set TMPDIR to a folder that can be written",
        ) from error
    with folder as path, _locked(Path(path)):
        yield Path(path)


def socket_address(folder: Path, name: str) -> str:
    """The address of the socket `name`, which is its path. Raises Unavailable when the path is too long."""
    path = folder / name
    num_bytes = len(bytes(path))
    if num_bytes > MAX_PATH_BYTES:
        raise Unavailable(
            f"the socket path {path} has {num_bytes} bytes; at most {MAX_PATH_BYTES} fit",
            hint="set TMPDIR to a folder with a shorter path",
        )
    return str(path)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock, which the kernel opens when this process ends, however it ends."""
    with (folder / "new-lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.rename(file.name, folder / LOCK)  # it appears locked: nobody finds it open while we live
        yield


def _remove_left_behind(parent: Path) -> None:
    """Removes the folders of this user whose owners are gone. What has no lock of ours is left alone."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is owned, or another process was quicker
            _remove_if_left_behind(folder)


def _remove_if_left_behind(folder: Path) -> None:
    if not folder.is_symlink() and folder.stat().st_uid == os.getuid():
        with (folder / LOCK).open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
