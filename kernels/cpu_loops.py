"""The CPU's compiled loops: rotate, round and scale back in one pass, through Numba.

PyTorch needs a dozen passes over the tensor for this, each as costly as a tenth of the product
that follows; these loops touch the input once. Numba brings its own compiler, so nothing needs to
be installed besides it; without it `fake_quantize` stays in PyTorch. Machine code is cached on
disk after the first use.

Layout: 32 tokens are copied side by side, so that the innermost loop always runs over tokens and
every step (butterflies, maxima, rounding) is plain vector arithmetic with constant strides. Indices
are unsigned and loop counts compile-time constants, because signed ones or views keep LLVM from
vectorizing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from kernels.formats import ROUNDING_MAGIC, SMALLEST_AMAX

LANES = 32
_BLOCK = 16
_TILE = _BLOCK * LANES
_F, _I, _U = np.float32, np.int32, np.uintp

_MAGNITUDE = _I(0x7FFFFFFF)
_EXPONENT = _I(0x7F800000)
# 2^-6, the smallest normal E4M3 number: below it the spacing stays the same.
_SMALLEST_E4M3 = _I(0x3C800000)
_INTEGER_MAGIC = _F(1.5 * 2.0**23)
# Rounds to three mantissa bits when multiplied by the power of two at or below the value.
_E4M3_MAGIC = _F(1.5 * 2.0**20)
_E2M1_MAGIC = _F(ROUNDING_MAGIC)
_TINY = _F(SMALLEST_AMAX)
_NAN = _F(np.nan)


# No fast-math: the sums keep their order and NaN its meaning. No GIL: rows are shared out. Only
# compiled code calls the parts, so they need neither wrappers for Python nor a cache of their own.
_part = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
_entry = njit(nogil=True, cache=True)


def _butterfly4(span: int):
    one, two, three, step = _U(span * LANES), _U(2 * span * LANES), _U(3 * span * LANES), _U(4 * span * LANES)
    count, group = span * LANES, 4 * span * LANES

    def butterfly(z):
        start = _U(0)
        for _ in range(z.size // group):
            for index in range(count):
                j = start + _U(index)
                a, b, c, d = z[j], z[j + one], z[j + two], z[j + three]
                p, q, r, s = a + b, a - b, c + d, c - d
                z[j] = p + r
                z[j + one] = q + s
                z[j + two] = p - r
                z[j + three] = q - s
            start += step

    return _part(butterfly)


def _butterfly2(span: int):
    one, step, count, group = _U(span * LANES), _U(2 * span * LANES), span * LANES, 2 * span * LANES

    def butterfly(z):
        start = _U(0)
        for _ in range(z.size // group):
            for index in range(count):
                j = start + _U(index)
                a, b = z[j], z[j + one]
                z[j] = a + b
                z[j + one] = a - b
            start += step

    return _part(butterfly)


_first, _second, _third = _butterfly4(1), _butterfly4(4), _butterfly4(16)
_last32, _last128 = _butterfly2(16), _butterfly2(64)


@_part
def _load(x, first, z):
    # Four rows at a time: one row alone would touch a cache line per value.
    for lane in range(0, LANES, 4):
        a, b, c, d = x[first + lane], x[first + lane + 1], x[first + lane + 2], x[first + lane + 3]
        j = _U(lane)
        for k in range(x.shape[1]):
            z[j] = a[k]
            z[j + _U(1)] = b[k]
            z[j + _U(2)] = c[k]
            z[j + _U(3)] = d[k]
            j += _U(LANES)


@_part
def _store(z, out, first):
    for lane in range(0, LANES, 4):
        a, b, c, d = out[first + lane], out[first + lane + 1], out[first + lane + 2], out[first + lane + 3]
        j = _U(lane)
        for k in range(out.shape[1]):
            a[k] = z[j]
            b[k] = z[j + _U(1)]
            c[k] = z[j + _U(2)]
            d[k] = z[j + _U(3)]
            j += _U(LANES)


@_part
def _rotate(z, block):
    if block >= 16:
        _first(z)
        _second(z)
    if block == 32:
        _last32(z)
    if block >= 64:
        _third(z)
    if block == 128:
        _last128(z)


@_part
def _block_maxima(bits, maxima):
    # As integers, magnitudes order like floats and NaN is larger than everything.
    tile, j = _U(0), _U(0)
    for _ in range(maxima.size // LANES):
        for lane in range(LANES):
            largest = bits[tile + _U(lane)] & _MAGNITUDE
            for i in range(1, _BLOCK):
                size = bits[tile + _U(lane) + _U(i * LANES)] & _MAGNITUDE
                largest = size if size > largest else largest
            maxima[j + _U(lane)] = largest
        tile += _U(_TILE)
        j += _U(LANES)


@_part
def _token_maxima(maxima, largest):
    for lane in range(LANES):
        largest[lane] = maxima[lane]
    j = _U(LANES)
    for _ in range(maxima.size // LANES - 1):
        for lane in range(LANES):
            size = maxima[j + _U(lane)]
            largest[lane] = size if size > largest[lane] else largest[lane]
        j += _U(LANES)


@_part
def _round_int8(z, inverse, scale):
    tile = _U(0)
    for _ in range(z.size // _TILE):
        for lane in range(LANES):
            factor, back = inverse[lane], scale[lane]
            for i in range(_BLOCK):
                j = tile + _U(lane) + _U(i * LANES)
                z[j] = ((z[j] * factor + _INTEGER_MAGIC) - _INTEGER_MAGIC) * back
        tile += _U(_TILE)


@_part
def _block_scales(maxima, unit, unit_bits, scale, scale_bits, factor, to_scale, largest, norm):
    """Block maxima -> E4M3 scales; `maxima` then holds what a code is worth, `factor` its inverse."""
    j = _U(0)
    for _ in range(maxima.size // LANES):
        for lane in range(LANES):
            value = maxima[j + _U(lane)] * norm * to_scale[lane]
            scale[lane] = value if value < _F(448) else _F(448)
        for lane in range(LANES):
            exponent = scale_bits[lane] & _EXPONENT
            unit_bits[lane] = exponent if exponent > _SMALLEST_E4M3 else _SMALLEST_E4M3
        for lane in range(LANES):
            magic = unit[lane] * _E4M3_MAGIC
            value = (scale[lane] + magic) - magic
            divisor = value if value > _TINY else _F(1e30)
            factor[j + _U(lane)] = to_scale[lane] * _F(6) / divisor * norm
            maxima[j + _U(lane)] = value * (largest[lane] * _F(1.0 / 2688.0))
        j += _U(LANES)


@_part
def _round_e2m1(z, factor, back):
    tile, block = _U(0), _U(0)
    for _ in range(z.size // _TILE):
        for lane in range(LANES):
            multiply, divide = factor[block + _U(lane)], back[block + _U(lane)]
            for i in range(_BLOCK):
                j = tile + _U(lane) + _U(i * LANES)
                value = z[j] * multiply
                size = abs(value)
                magic = _E2M1_MAGIC if size < _F(2) else (_E2M1_MAGIC * _F(2) if size < _F(4) else _E2M1_MAGIC * _F(4))
                value = (value + magic) - magic
                value = value if value < _F(6) else _F(6)
                value = value if value > _F(-6) else _F(-6)
                z[j] = value * divide
        tile += _U(_TILE)
        block += _U(LANES)


class Scratch(NamedTuple):
    """Working memory for tokens of K values, each array beside its view as integers.

    Made outside of the compiled code: allocating and viewing there would be a tenth of what is compiled, and memory
    that is new at each call costs more than the arithmetic.
    """

    z: np.ndarray
    bits: np.ndarray
    maxima: np.ndarray
    maxima_bits: np.ndarray
    factor: np.ndarray
    largest: np.ndarray
    largest_bits: np.ndarray
    inverse: np.ndarray
    scale: np.ndarray
    scale_bits: np.ndarray
    unit: np.ndarray
    unit_bits: np.ndarray


def scratch(size: int) -> Scratch:
    """Memory for `quantize_rows` with K = size; of one thread at a time."""
    blocks = size // _BLOCK
    z, maxima, factor = (np.empty(count * LANES, _F) for count in (size, blocks, blocks))
    largest, inverse, scale, unit = (np.empty(LANES, _F) for _ in range(4))
    viewed = (z, maxima, largest, scale, unit)
    bits, maxima_bits, largest_bits, scale_bits, unit_bits = (part.view(_I) for part in viewed)
    return Scratch(
        z, bits, maxima, maxima_bits, factor, largest, largest_bits, inverse, scale, scale_bits, unit, unit_bits
    )


@_entry
def quantize_rows(x, out, block, four_bits, start, stop, work):
    """Tokens start..stop of x, rotated, rounded and scaled back: to NVFP4, or else to INT8.

    x, out: float32 (M, K), at least 32 tokens from start to stop, K a multiple of 16; `block` 1,
    16, 32, 64 or 128; work: a `Scratch` for K. The last 32 tokens may be computed twice.
    """
    norm = _F(1.0 / math.sqrt(block))
    top = _F(448) if four_bits else _F(127)
    first = start
    while first < stop:
        first = first if first + LANES < stop else stop - LANES
        _load(x, first, work.z)
        _rotate(work.z, block)
        _block_maxima(work.bits, work.maxima_bits)
        _token_maxima(work.maxima_bits, work.largest_bits)
        for lane in range(LANES):
            amax = work.largest[lane] * norm if work.largest_bits[lane] < _EXPONENT else _NAN
            work.inverse[lane] = _F(1) / (amax if amax > _TINY else _TINY) * top
            work.largest[lane] = amax
        if four_bits:
            _block_scales(
                work.maxima, work.unit, work.unit_bits, work.scale, work.scale_bits, work.factor, work.inverse,
                work.largest, norm,
            )  # fmt: skip
            _round_e2m1(work.z, work.factor, work.maxima)
        else:
            for lane in range(LANES):
                work.inverse[lane] *= norm
                work.scale[lane] = work.largest[lane] * _F(1.0 / 127.0)
            _round_int8(work.z, work.inverse, work.scale)
        _store(work.z, out, first)
        first += LANES
