"""Numbers of sampling: the order of floats, weights as integers, the logarithm of their sum, Philox.

A token's weight is exp((logit - largest) / temperature) in units of 2^-40, rounded down to an integer. Sums
of integers are the same in every order, so neither the shape of a program nor the way a row is divided can
be seen in a result.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl

INFINITY = tl.constexpr(float("inf"))
LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)
UNIT_BITS = tl.constexpr(40)
_UNIT = tl.constexpr(2.0**40)
LEAST_WEIGHT = tl.constexpr(2.0**-40)
LOWEST_KEY = tl.constexpr(-(2**31))
"""That of NaN."""


@triton.jit
def key_of(x):
    """Floats as int32 in the same order; -0 and +0 are one, NaN is below all."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(x == x, tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF), LOWEST_KEY)


@triton.jit
def value_of(key):
    return tl.where(key >= 0, key, key ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def weight_of(x, largest, scale):
    """2^((x - largest) scale), in 0 .. 1; 0 where x is NaN or -inf, or `largest` is infinite."""
    exponent = (x - largest) * scale
    return tl.where(exponent <= 0, tl.exp2(exponent), 0.0)


@triton.jit
def units_of(weight):
    """int64, in units of 2^-40."""
    return (weight * _UNIT).to(tl.int64)


@triton.jit
def log_of(units):
    """Natural logarithm, float64, of a sum of weights (at least 1) within 2e-7: the exponent is split off,
    so that the float32 logarithm is only of the mantissa."""
    bits = units.to(tl.float64).to(tl.int64, bitcast=True)
    exponent = (bits >> 52) - 1023 - 40
    mantissa = ((bits & 0xFFFFFFFFFFFFF) | (1023 << 52)).to(tl.float64, bitcast=True)
    log2 = exponent.to(tl.float64) + tl.log2(mantissa.to(tl.float32)).to(tl.float64)
    return tl.maximum(log2, 0.0) * _LN_2


@triton.jit
def uniform_at(seed_low, seed_high, position):
    """The 24 bits that draw the token of `position`, int32. Philox4x32-10: Salmon, Moraes, Dror and Shaw,
    "Parallel random numbers: as easy as 1, 2, 3", 2011."""
    key0, key1 = seed_low.to(tl.uint32, bitcast=True), seed_high.to(tl.uint32, bitcast=True)
    c0 = position.to(tl.uint32, bitcast=True)
    c1, c2, c3 = c0 * 0, c0 * 0, c0 * 0
    for _ in range(10):
        a = c0.to(tl.uint64) * 0xD2511F53
        b = c2.to(tl.uint64) * 0xCD9E8D57
        c0, c1 = (b >> 32).to(tl.uint32) ^ c1 ^ key0, b.to(tl.uint32)
        c2, c3 = (a >> 32).to(tl.uint32) ^ c3 ^ key1, a.to(tl.uint32)
        key0, key1 = key0 + 0x9E3779B9, key1 + 0xBB67AE85
    return (c0 >> 8).to(tl.int32)
