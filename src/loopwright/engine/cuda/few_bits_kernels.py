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

_LEVELS: tl.constexpr = tl.constexpr("""{
.reg .b32 part;
lop3.b32 $0, $4, 0x000F000F, 0x43004300, 0xEA;
shr.u32 part, $4, 4;
lop3.b32 $1, part, 0x000F000F, 0x43004300, 0xEA;
shr.u32 part, $4, 8;
lop3.b32 $2, part, 0x000F000F, 0x43004300, 0xEA;
shr.u32 part, $4, 12;
lop3.b32 $3, part, 0x000F000F, 0x43004300, 0xEA;
}""")
"""Two words to 128 more than the four numbers of each, which a bfloat16 holds as they are."""

LIFT: tl.constexpr = tl.constexpr(128.0)
"""By how much `levels_of_4` are more than they stand for."""


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
def read_weights(weight, output, is_output, column, width, IS_WHOLE: tl.constexpr):
    """[OUTPUTS, columns] of a matrix; with IS_WHOLE no column is beyond its width."""
    at = weight + output.to(tl.int64)[:, None] * width + column[None, :]
    mask = is_output[:, None]
    if not IS_WHOLE:
        mask = mask & (column < width)[None, :]
    return tl.load(at, mask=mask, other=0.0 if weight.dtype.element_ty.is_floating() else 0)


@triton.jit
def _words(weight, output, is_output, group, size, WORDS: tl.constexpr, IS_WHOLE: tl.constexpr):
    """What 128 inputs of the outputs are kept in: [OUTPUTS, WORDS]."""
    width = tl.cdiv(size, GROUP) * WORDS
    return read_weights(weight, output, is_output, group * WORDS + tl.arange(0, WORDS), width, IS_WHOLE)


@triton.jit
def factors_of(scales, output, is_output, group, size, BITS: tl.constexpr):
    """What 128 inputs have beside their words: the scale, or of 4 bits the scale and the zero, a word each of four
    groups; [OUTPUTS, 1]. Nothing behind the last group."""
    groups = tl.cdiv(size, GROUP)
    is_here = is_output & (group < groups)
    at = scales + output.to(tl.int64) * groups + group
    if BITS == 8:
        return (tl.load(at, mask=is_here, other=0.0)[:, None],)
    else:  # noqa: RET505 (what is not taken is not compiled)
        pairs = scales.to(tl.pointer_type(tl.int32)) + (output.to(tl.int64) * groups + group) * 4
        return (
            tl.load(pairs, mask=is_here, other=0)[:, None], tl.load(pairs + 1, mask=is_here, other=0)[:, None],
            tl.load(pairs + 2, mask=is_here, other=0)[:, None], tl.load(pairs + 3, mask=is_here, other=0)[:, None],
        )  # fmt: skip


@triton.jit
def scale_of(pair):
    """Float32, of a scale and a zero in one word."""
    return (pair << 16).to(tl.float32, bitcast=True)


@triton.jit
def zero_of(pair):
    """Bfloat16, likewise."""
    return (pair >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def numbers_of_4(
    weight, factors, output, is_output, group, size, IS_WHOLE: tl.constexpr, PTX: tl.constexpr
):  # fmt: skip
    """Of 128 inputs: numbers of each of four groups, less their zeros."""
    words = _words(weight, output, is_output, group, size, GROUP // 4, IS_WHOLE)
    return _nibbles(
        words, zero_of(factors[0]), zero_of(factors[1]), zero_of(factors[2]), zero_of(factors[3]), PTX
    )  # fmt: skip


@triton.jit
def levels_of_4(weight, output, is_output, group, size, IS_WHOLE: tl.constexpr, PTX: tl.constexpr):
    """Of 128 inputs: what is kept of each of four groups, and 128 more."""
    words = _words(weight, output, is_output, group, size, GROUP // 4, IS_WHOLE)
    if PTX:
        return tl.inline_asm_elementwise(
            _LEVELS,
            "=r,=r,=r,=r,r",
            [words],
            (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:  # noqa: RET505 (what is not taken is not compiled)
        return _lifted(words), _lifted(words >> 4), _lifted(words >> 8), _lifted(words >> 12)


@triton.jit
def _lifted(words):
    return ((words & 15).to(tl.float32) + LIFT).to(tl.bfloat16)


@triton.jit
def numbers_of_8(
    weight, output, is_output, group, size, IS_FP8: tl.constexpr, IS_WHOLE: tl.constexpr, PTX: tl.constexpr
):  # fmt: skip
    """Of 128 inputs: the first 64 numbers and the others."""
    return _bytes(_words(weight, output, is_output, group, size, GROUP // 2, IS_WHOLE), IS_FP8, PTX)


@triton.jit
def scaled(numbers, scale, PTX: tl.constexpr):
    """In bfloat16, rounded once; the interpreter has no such product."""
    return numbers * scale.to(tl.bfloat16) if PTX else (numbers.to(tl.float32) * scale.to(tl.float32)).to(tl.bfloat16)
