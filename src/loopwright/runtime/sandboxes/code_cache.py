"""Keeps what instances compiled, so that a source is compiled once and not at each launch. Never reads it: what a guest
marshalled is for guests alone.

Filled with what an instance hands over before it runs a program's first line; docs/adr/0021-code-cache.md. Used by both
Wasm sandboxes, on the event loop's thread.
"""

from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256

MAX_BYTES = 64 << 20
MAX_CODE_BYTES = 4 << 20  # what is larger is compiled each time, and pushes nothing else out


class CodeCache:
    """Code by what it was compiled from: form, source and filename, the last used ones. One for each runner."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_code_bytes: int = MAX_CODE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._max_code_bytes = max_code_bytes
        self._codes: OrderedDict[bytes, str] = OrderedDict()  # the last used one comes last
        self._num_bytes = 0

    def find(self, form: str, source: str, filename: str) -> tuple[str, Callable[[str], None]]:
        """The code, or "" for one that is not kept; and what takes it then."""
        key = _key(form, source, filename)
        code = self._codes.get(key, "")
        if code:
            self._codes.move_to_end(key)
        return code, lambda compiled: self._put(key, compiled)

    def __len__(self) -> int:
        return len(self._codes)

    def check_integrity(self) -> None:
        """What is kept is within its bounds, and counted."""
        assert self._num_bytes == sum(map(len, self._codes.values())) <= self._max_bytes
        assert all(0 < len(code) <= self._max_code_bytes for code in self._codes.values())

    def _put(self, key: bytes, code: str) -> None:
        if key in self._codes or not 0 < len(code) <= self._max_code_bytes:
            return  # of two that compiled the same at once, the first counts
        self._codes[key] = code
        self._num_bytes += len(code)
        while self._num_bytes > self._max_bytes:
            _, oldest = self._codes.popitem(last=False)
            self._num_bytes -= len(oldest)


def _key(form: str, source: str, filename: str) -> bytes:
    """Of all that the code depends on, beside the runner: the filename is in each code object, for tracebacks."""
    digest = sha256()
    for part in (form, filename, source):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8))
        digest.update(encoded)
    return digest.digest()
