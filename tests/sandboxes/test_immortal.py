"""What every instance shares has counts that nobody writes to; what a program makes is counted as ever."""

import struct

import pytest

from loopwright.core.errors import LimitExceeded
from loopwright.runtime.limits import Limits
from loopwright.runtime.sandboxes.immortal import IMMORTAL, MAGIC, make_immortal

from .conftest import Bench

COUNTS = """
import asyncio, json, sys
def count(one): return sys.getrefcount(one) - 1
async def main():
    own = [object()]
    before = count(own[0])
    own.append(own[0])
    shared = [json.dumps, json.dumps.__code__, asyncio.Task, asyncio.sleep, json.__dict__, json.decoder.WHITESPACE]
    return [[count(one) > 1 << 30 for one in shared], count(own[0]) - before, count(main) < 100]
"""


def test_shared_objects_are_immortal_and_own_ones_are_not(wasm: Bench) -> None:
    assert wasm.run(COUNTS) == "[[true,true,true,true,true,true],1,true]"


def test_what_a_program_drops_is_freed(wasm: Bench) -> None:
    source = "async def main():\n    for n in range(64):\n        kept = bytearray(1 << 22)\n    return len(kept)\n"
    assert wasm.run(source, limits=Limits(memory_mb=16)) == str(1 << 22)
    with pytest.raises(LimitExceeded):
        wasm.run(source.replace("kept = ", "globals()[n] = "), limits=Limits(memory_mb=16))


MEMORY_AT, TYPE = 1000, 640


def image(objects: dict[int, int], listed: list[int], owner: int = 160, owner_type: int = TYPE) -> bytearray:
    """A compiled runner whose memory has these counts at these addresses, and the list at 320."""
    memory = bytearray(2048)
    for address, count in {owner: 1, **objects}.items():
        struct.pack_into("<II", memory, address, count, owner_type if address == owner else 7)
    words = (*MAGIC, 320, owner, TYPE, 7 + len(listed), *listed)
    struct.pack_into(f"<{len(words)}I", memory, 320, *words)
    return bytearray(MEMORY_AT) + memory + bytearray(50)


def counts(compiled: bytearray, *addresses: int) -> list[int]:
    return [struct.unpack_from("<I", compiled, MEMORY_AT + address)[0] for address in addresses]


def test_what_is_listed_is_changed_and_nothing_else() -> None:
    compiled = image({800: 3, 816: 1, 832: 9, 848: IMMORTAL, 864: 0}, [800, 832, 848, 864])
    untouched = bytes(compiled)
    assert make_immortal(compiled) == 2
    assert counts(compiled, 800, 816, 832, 848, 864) == [IMMORTAL, 1, IMMORTAL, IMMORTAL, 0]
    changed = [at for at, (old, new) in enumerate(zip(untouched, compiled, strict=True)) if old != new]
    assert {(at - MEMORY_AT) // 4 * 4 for at in changed} == {800, 832}


def test_a_decoy_before_the_list_is_passed_over() -> None:
    compiled = image({800: 3}, [800])
    struct.pack_into("<7I", compiled, 100, *MAGIC, 5, 1 << 31, TYPE, 8)
    assert make_immortal(compiled) == 1


@pytest.mark.parametrize("compiled", [bytearray(3000), image({800: 3}, [800], owner_type=641)])
def test_memory_of_another_layout_is_left_as_it_is(compiled: bytearray) -> None:
    before = bytes(compiled)
    assert make_immortal(compiled) == 0
    assert compiled == before
