"""How weights of fewer bits become bfloat16 in a kernel: two at a time, by instructions of our own.

Parts of the product kernels, which call them. Bits are put where a bfloat16 has its mantissa, and what is too much is
taken away; the interpreter, which has no such instructions, converts.
"""

import triton
import triton.language as tl

from loopwright.engine.cuda import matrices

GROUP: tl.constexpr = tl.constexpr(matrices.GROUP)

_INT8: tl.constexpr = tl.constexpr("""{
.reg .b32 level, sign, high, one;
mov.b32 one, 0x3F803F80;
lop3.b32 sign, $2, 0x00800080, 0xC300C300, 0xEA;
lop3.b32 level, $2, 0x007F007F, 0x43004300, 0xEA;
fma.rn.bf16x2 $0, level, one, sign;
shr.u32 high, $2, 8;
lop3.b32 sign, high, 0x00800080, 0xC300C300, 0xEA;
lop3.b32 level, high, 0x007F007F, 0x43004300, 0xEA;
fma.rn.bf16x2 $1, level, one, sign;
}""")
"""Two words to their low and high numbers: 128 and seven bits are a bfloat16, from which 128 or 256 go, by the sign."""

_FP8: tl.constexpr = tl.constexpr("""{
.reg .b32 level, sign, factor, none;
mov.b32 factor, 0x7B807B80;
mov.b32 none, 0x80008000;
shl.b32 level, $2, 4;
shl.b32 sign, $2, 8;
and.b32 sign, sign, 0x80008000;
lop3.b32 level, level, 0x07F007F0, sign, 0xEA;
fma.rn.bf16x2 $0, level, factor, none;
shr.u32 level, $2, 4;
and.b32 sign, $2, 0x80008000;
lop3.b32 level, level, 0x07F007F0, sign, 0xEA;
fma.rn.bf16x2 $1, level, factor, none;
}""")
"""The same for e4m3: its bits, as exponent and mantissa of a bfloat16, are 2 ** 120 times too small."""

_INT4: tl.constexpr = tl.constexpr("""{
.reg .b32 level, part, one, minus, base;
mov.b32 one, 0x3F803F80;
mov.b32 minus, 0xBF80BF80;
mov.b32 base, 0xC300C300;
lop3.b32 level, $4, 0x000F000F, 0x43004300, 0xEA;
fma.rn.bf16x2 level, level, one, base;
fma.rn.bf16x2 $0, $5, minus, level;
shr.u32 part, $4, 4;
lop3.b32 level, part, 0x000F000F, 0x43004300, 0xEA;
fma.rn.bf16x2 level, level, one, base;
fma.rn.bf16x2 $1, $6, minus, level;
shr.u32 part, $4, 8;
lop3.b32 level, part, 0x000F000F, 0x43004300, 0xEA;
fma.rn.bf16x2 level, level, one, base;
fma.rn.bf16x2 $2, $7, minus, level;
shr.u32 part, $4, 12;
lop3.b32 level, part, 0x000F000F, 0x43004300, 0xEA;
fma.rn.bf16x2 level, level, one, base;
fma.rn.bf16x2 $3, $8, minus, level;
}""")
"""Two words to the four numbers of each, less the zeros of their groups, rounded once."""


@triton.jit
def _bytes(words, IS_FP8: tl.constexpr, PTX: tl.constexpr):
    """Low and high numbers of words, in bfloat16, which is exact."""
    if PTX:
        return tl.inline_asm_elementwise(
            _FP8 if IS_FP8 else _INT8, "=r,=r,r", [words], (tl.bfloat16, tl.bfloat16), is_pure=True, pack=2
        )
    else:  # noqa: RET505 (what is not taken is not compiled)
        low, high = (words & 255).to(tl.uint8), ((words >> 8) & 255).to(tl.uint8)
        if IS_FP8:
            return _exact(low.to(tl.float8e4nv, bitcast=True)), _exact(high.to(tl.float8e4nv, bitcast=True))
        else:  # noqa: RET505
            return _exact(low.to(tl.int8, bitcast=True)), _exact(high.to(tl.int8, bitcast=True))


@triton.jit
def _exact(levels):
    return levels.to(tl.float32).to(tl.bfloat16)


@triton.jit
def _nibbles(words, first, second, third, fourth, PTX: tl.constexpr):
    """The four numbers of words, less the zeros of their groups [OUTPUTS, 1], in bfloat16, rounded once."""
    if PTX:
        return tl.inline_asm_elementwise(
            _INT4, "=r,=r,=r,=r,r,r,r,r,r",
            [words, tl.broadcast_to(first, words.shape), tl.broadcast_to(second, words.shape),
             tl.broadcast_to(third, words.shape), tl.broadcast_to(fourth, words.shape)],
            (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2,
        )  # fmt: skip
    else:  # noqa: RET505 (what is not taken is not compiled)
        return _less(words, first), _less(words >> 4, second), _less(words >> 8, third), _less(words >> 12, fourth)


@triton.jit
def _less(words, zero):
    return ((words & 15).to(tl.float32) - zero.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def read_weights(weight, output, is_output, column, width):
    at = weight + output.to(tl.int64)[:, None] * width + column[None, :]
    return tl.load(at, mask=is_output[:, None] & (column < width)[None, :], other=0.0)


@triton.jit
def _words(weight, output, is_output, group, size, WORDS: tl.constexpr):
    """What 128 inputs of the outputs are kept in: [OUTPUTS, WORDS]."""
    width = tl.cdiv(size, GROUP) * WORDS
    return read_weights(weight, output, is_output, group * WORDS + tl.arange(0, WORDS), width)


@triton.jit
def _scales_of(scales, output, is_output, group, size, number, NUMBERS: tl.constexpr):
    """One of the numbers that a group of 128 inputs has beside its words: [OUTPUTS, 1]."""
    groups = tl.cdiv(size, GROUP)
    at = scales + (output.to(tl.int64) * groups + group) * NUMBERS + number
    return tl.load(at, mask=is_output & (group < groups), other=0.0)[:, None]


@triton.jit
def _pair_of(scales, output, is_output, group, size, number):
    """The scale and the zero of a small group."""
    scale = _scales_of(scales, output, is_output, group, size, number, 8)
    return scale, _scales_of(scales, output, is_output, group, size, number + 1, 8)


@triton.jit
def numbers_of_4(weight, scales, output, is_output, group, size, PTX: tl.constexpr):
    """Of 128 inputs: numbers of each of four groups, less their zeros, and the groups' scales."""
    words = _words(weight, output, is_output, group, size, GROUP // 4)
    first, zero = _pair_of(scales, output, is_output, group, size, 0)
    second, second_zero = _pair_of(scales, output, is_output, group, size, 2)
    third, third_zero = _pair_of(scales, output, is_output, group, size, 4)
    fourth, fourth_zero = _pair_of(scales, output, is_output, group, size, 6)
    return _nibbles(words, zero, second_zero, third_zero, fourth_zero, PTX), (first, second, third, fourth)


@triton.jit
def numbers_of_8(weight, scales, output, is_output, group, size, IS_FP8: tl.constexpr, PTX: tl.constexpr):
    """Of 128 inputs: the first 64 numbers and the others, and their scale."""
    words = _words(weight, output, is_output, group, size, GROUP // 2)
    return _bytes(words, IS_FP8, PTX), _scales_of(scales, output, is_output, group, size, 0, 1)


@triton.jit
def scaled(numbers, scale, PTX: tl.constexpr):
    """In bfloat16, rounded once; the interpreter has no such product."""
    return numbers * scale if PTX else (numbers.to(tl.float32) * scale.to(tl.float32)).to(tl.bfloat16)
