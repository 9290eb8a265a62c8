"""Gives memory back to the system that only loading needed. Never frees what anybody holds. Called by `model_parts`.

Two things stay otherwise: what was freed, which glibc keeps, and the code that ran once, when libraries were imported
and operators registered: 75 MB of torch's alone. Elsewhere than on Linux nothing is done.
"""

import ctypes
import re
from contextlib import suppress
from pathlib import Path

_DONTNEED = 4  # MADV_DONTNEED of Linux
_CODE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-xp \S+ \S+ \d+ +/")


def give_back_memory() -> None:
    """Takes milliseconds, now and when code that was given back runs again: it lies in the system's cache of files."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.malloc_trim(0)
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for start, end in code_of_files(Path("/proc/self/maps").read_text()):
            libc.madvise(start, end - start, _DONTNEED)


def code_of_files(maps: str) -> list[tuple[int, int]]:
    """Where code is mapped from files, which nobody may write to: dropped pages come back as they were."""
    found = (_CODE.match(line) for line in maps.splitlines())
    return [(int(one[1], 16), int(one[2], 16)) for one in found if one]
