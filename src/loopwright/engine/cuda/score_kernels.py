"""Scores as integers in the same order, and as weights: what all kernels that compare or weigh them share.

Compiled into the kernels of draws, of filters and of the likeliest tokens. Holds no launch.
"""

import triton
import triton.language as tl

LOWEST = tl.constexpr(-2147483648)
LARGEST = tl.constexpr(2147483647)
_ROUNDING = tl.constexpr(6755399441055744.0)  # 1.5 · 2^52: what is added to it loses its fraction


@triton.jit
def keys_of(values):
    """Integers in the order of float32 values; 0 and -0 are one."""
    return turned(tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True))


@triton.jit
def turned(bits):
    """Keys of bits, and bits of keys."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def weights_of(values, top, temperature):
    """exp((values - top) / temperature) in float64, within 3e-14: 1 for the highest score, 0 below 2^-1000.

    A division for a whole program, and half the instructions of the library's exponential: 2^(whole + rest), the rest
    by the polynomial that fits best from -1/2 to 1/2."""
    power = (values.to(tl.float64) - top) * tl.minimum(1.4426950408889634 / temperature, 1e300)
    shifted = power + _ROUNDING
    rest = power - (shifted - _ROUNDING)
    factor = 1.0203121063391729e-07 * rest + 1.3255224878668817e-06
    factor = factor * rest + 1.525268684626772e-05
    factor = factor * rest + 0.00015403455852453838
    factor = factor * rest + 0.0013333558179043112
    factor = factor * rest + 0.009618129159402558
    factor = factor * rest + 0.055504108664760424
    factor = factor * rest + 0.2402265069581299
    factor = factor * rest + 0.6931471805599453
    factor = factor * rest + 1.0
    bits = factor.to(tl.int64, bitcast=True) + (shifted.to(tl.int64, bitcast=True) << 52)
    return tl.where(power > -1000.0, bits.to(tl.float64, bitcast=True), 0.0)


@triton.jit
def powers_of(values, top, temperature):
    """The logarithms of weights, in float64."""
    return (values.to(tl.float64) - top) * tl.minimum(1.0 / temperature, 1e300)


@triton.jit
def highest(found, row, parts, PARTS: tl.constexpr):
    """Of the highest scores of a row's parts."""
    part = tl.arange(0, PARTS)
    tops = tl.load(found + row * parts + part, mask=part < parts, other=-float("inf"))
    return tl.max(tops, axis=0).to(tl.float64)


@triton.jit
def columns_of(part, CHUNK: tl.constexpr, GROUP: tl.constexpr):
    """The columns of one part of a row as [GROUP, CHUNK / GROUP]: a thread has whole groups, and little to tell."""
    inner: tl.constexpr = CHUNK // GROUP
    return part * CHUNK + tl.arange(0, GROUP)[:, None] * inner + tl.arange(0, inner)[None, :]
