"""What the snapshot of the runner needs so that instances write to few of its pages. Never runs in an instance.

Called once by `runner`, at the end of its build. docs/adr/0009-immortal-snapshot.md.
"""

import array
import gc
import sys
import types
from collections.abc import Callable

LARGEST_HOLE = 4 << 20  # bytes; memory that is asked for here is the programs', above their limit
LARGEST_FILLED = 1 << 20  # a snapshot that is half empty would be copied to each instance instead of mapped
SMALLEST_HOLE = 16


def executed_by(act: Callable[[], None]) -> list[types.FunctionType]:
    """The functions whose code the interpreter executes meanwhile: it counts in it."""
    functions = [one for one in everything() if isinstance(one, types.FunctionType)]
    before = [adaptive(one.__code__) for one in functions]
    act()
    return [one for one, code in zip(functions, before, strict=True) if adaptive(one.__code__) != code]


def adaptive(code: types.CodeType) -> bytes:
    """Its bytes as they are specialised and counted in, and those of the functions that are written in it."""
    inner = (adaptive(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return b"".join((code._co_code_adaptive, *inner))


def gather(functions: list[types.FunctionType]) -> list[types.CodeType]:
    """Has the functions use copies of their code, which lie one behind the other, and returns what they used before.
    The interpreter counts in what it executes, so every page with code that runs is copied by each run."""
    used = [one.__code__ for one in functions]
    for one in functions:
        one.__code__ = copied(one.__code__)
    return used


def copied(code: types.CodeType) -> types.CodeType:
    consts = tuple(copied(one) if isinstance(one, types.CodeType) else one for one in code.co_consts)
    return code.replace(co_consts=consts)


def addresses_of(objects: list[object]) -> array.array[int]:
    """Where each object lies that a program will find, as `immortal` on the host's side expects it.

    The objects must live as long as the snapshot: what lay where one was freed would be written over."""
    addresses = array.array("I", [0x4C6F6F70, 0x77726967, 0x68743A29, 0, 0, id(array.array), 0])
    addresses.extend(id(one) for one in objects if sys.getrefcount(one) < 1 << 20)
    addresses[3], addresses[6] = addresses.buffer_info()
    addresses[4] = id(addresses)
    return addresses


def everything() -> list[object]:
    """What the collector knows, what those objects refer to, and what code objects hold."""
    every: list[object] = []
    seen = bytearray(1 << 21)  # a bit for every 8 bytes of 128 MiB: a set would leave the snapshot 10 MB larger
    found: list[object] = [*gc.get_objects(), sys.modules]
    while found:
        new = [one for one in found if is_new(id(one) >> 3, seen)]
        every += new
        found = gc.get_referents(*new)
        for code in [one for one in new if isinstance(one, types.CodeType)]:
            found += (code.co_consts, code.co_names, code.co_code, code.co_linetable, code.co_exceptiontable)
            found += (code.co_filename, code.co_name, code.co_qualname)
    return every


def is_new(number: int, seen: bytearray) -> bool:
    """Whether the bit of this number was clear; it is set now."""
    place, bit = number >> 3, 1 << (number & 7)
    if seen[place] & bit:
        return False
    seen[place] |= bit
    return True


def fill_holes() -> list[bytes]:
    """Takes the free blocks that are left between what is kept. A program then allocates from a few whole pages of its
    own, and not from holes all over the heap, each in a page that it would have to copy first."""
    gc.collect()  # empties the interpreter's lists of blocks that it keeps for the next object of a kind
    end = id(bytes(LARGEST_HOLE))  # behind all that is there
    filling: list[bytes] = [b""] * 500_000  # one that grew would leave holes, as would a list of the sizes
    num_filled = 0
    chunk_overhead = sys.getsizeof(b"") + 4
    size = LARGEST_FILLED
    while size > SMALLEST_HOLE:
        block = bytes(size - chunk_overhead)
        filling[num_filled] = block
        num_filled += 1
        if id(block) >= end:
            size = size >> 1 if size > 4096 else size - 16
    del filling[num_filled:]
    return filling
