"""Makes the objects of the compiled runner's snapshot immortal, so that no program writes to their reference counts.

Called by `runner_build`. All instances share the snapshot's pages until they write to one; without this, a program that
does nothing copies 2.7 MB, most of it for counts that go up and down again. docs/adr/0009-immortal-snapshot.md.
"""

import struct

MAGIC = (0x4C6F6F70, 0x77726967, 0x68743A29)
"""Begins the guest's list of objects, an array of 32-bit words: MAGIC, the address of the list's words, that of its
object, that of its type, the number of words, then the address of each object."""

IMMORTAL = 5 << 28  # _Py_IMMORTAL_INITIAL_REFCNT of 32-bit builds (CPython 3.14, Include/refcount.h)
MAX_COUNT = 1 << 20  # what is more is not a count, or is immortal already
_HEADER = struct.Struct("<7I")
_OBJECT = struct.Struct("<II")  # reference count, type


def make_immortal(compiled: bytearray) -> int:
    """Writes to the compiled runner, which holds the guest's memory as it is; returns how many objects it changed. None
    when the memory is not laid out as expected: then launches are slower, and nothing else."""
    magic = struct.pack("<3I", *MAGIC)
    at = compiled.find(magic)
    while at >= 0:
        *_, words, owner, kind, count = _HEADER.unpack_from(compiled, at)
        memory = at - words  # where the guest's address 0 lies in the file
        if _is_object(compiled, memory + owner, kind):
            addresses = struct.unpack_from(f"<{count - 7}I", compiled, at + _HEADER.size)
            return sum(_write(compiled, memory + address) for address in addresses)
        at = compiled.find(magic, at + 1)
    return 0


def _is_object(compiled: bytearray, at: int, kind: int) -> bool:
    if not 0 <= at <= len(compiled) - _OBJECT.size:
        return False
    count, its_kind = _OBJECT.unpack_from(compiled, at)
    return bool(0 < count < MAX_COUNT and its_kind == kind)


def _write(compiled: bytearray, at: int) -> bool:
    (count,) = struct.unpack_from("<I", compiled, at)
    if not 0 < count < MAX_COUNT:
        return False
    struct.pack_into("<I", compiled, at, IMMORTAL)
    return True
