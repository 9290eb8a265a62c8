"""A few instructions of PTX in numpy, for arrays of 32-bit registers: enough for those that are written by hand."""

import re

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]


def run(text: str, inputs: list[Words], num_outputs: int) -> list[Words]:
    """The outputs $0 and on, of the inputs that come after them."""
    registers: dict[str, Words] = {f"${num_outputs + place}": one for place, one in enumerate(inputs)}
    for line in text.strip("{}\n").split(";"):
        name, _, rest = line.strip().partition(" ")
        if not name or name == ".reg":
            continue
        target, *sources = re.split(r",\s*", rest)
        values = [registers[one] if one in registers else np.uint32(int(one, 0)) for one in sources]
        registers[target] = _INSTRUCTIONS[name](*values)
    return [registers[f"${place}"] for place in range(num_outputs)]


def _lop3(first: Words, second: Words, third: Words, table: Words) -> Words:
    assert table == 0xEA
    return first & second | third


def _fma(first: Words, second: Words, third: Words) -> Words:
    halves = []
    for shift in (0, 16):
        one, other, added = (_float(value >> np.uint32(shift) & np.uint32(0xFFFF)) for value in (first, second, third))
        halves.append(_bits(one * other + added))  # exact in float64 for these
    return halves[0] | halves[1] << np.uint32(16)


def _float(bits: Words) -> NDArray[np.float64]:
    return np.atleast_1d(bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def _bits(values: NDArray[np.float64]) -> Words:
    """Of bfloat16, the nearest, of two the even one."""
    bits = values.astype(np.float32).view(np.uint32)
    return (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)


_INSTRUCTIONS = {
    "mov.b32": lambda value: value,
    "and.b32": lambda first, second: first & second,
    "shl.b32": lambda value, shift: value << shift,
    "shr.u32": lambda value, shift: value >> shift,
    "lop3.b32": _lop3,
    "fma.rn.bf16x2": _fma,
}
