"""Owns where the sockets between our processes live: one private folder. Never opens a socket. Called by compose."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loopwright.core.errors import Unavailable

MAX_PATH_BYTES = 107  # of a Unix socket on Linux: sockaddr_un.sun_path less its closing NUL


@contextmanager
def socket_folder() -> Iterator[Path]:
    """A folder that only this user may enter (0700), gone with all it holds when the block ends.

    Raises Unavailable when it cannot be made."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="loopwright-", ignore_cleanup_errors=True)
    except OSError as error:
        raise Unavailable(
            f"cannot make a folder for sockets in {tempfile.gettempdir()}: {error.strerror}",
            hint="set TMPDIR to a folder that can be written",
        ) from error
    with folder as path:
        yield Path(path)


def socket_address(folder: Path, name: str) -> str:
    """The address of the socket `name`, for `bind` and `connect`. Raises Unavailable when the path is too long."""
    path = folder / name
    num_bytes = len(bytes(path))
    if num_bytes > MAX_PATH_BYTES:
        raise Unavailable(
            f"the socket path {path} has {num_bytes} bytes; at most {MAX_PATH_BYTES} fit",
            hint="set TMPDIR to a folder with a shorter path",
        )
    return f"ipc://{path}"
