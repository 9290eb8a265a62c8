"""Lines of standard input, read when somebody wants one. Never reads ahead of a line's end, and holds no thread.

Used by `run`: until a program asks its client, what is typed belongs to the program's own `input` and its debugger.
"""

import asyncio
import os

CHUNK_BYTES = 1 << 16


class TypedLines:
    """Lines of a file descriptor, without their ends. Used on one event loop."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""
        self._is_over = False

    async def next(self) -> str | None:
        """The next line, or None at the end of the input."""
        while b"\n" not in self._rest and not self._is_over:
            await self._readable()
            chunk = self._read()
            self._rest += chunk
            self._is_over = not chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace").removesuffix("\r") if line or not self._is_over or self._rest else None

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        try:
            loop.add_reader(self._descriptor, readable.set)
        except (PermissionError, OSError):  # a plain file, which never makes wait; or none, which reading tells
            return
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._descriptor)

    def _read(self) -> bytes:
        try:
            return os.read(self._descriptor, CHUNK_BYTES)
        except OSError:  # closed: there is no input
            return b""
