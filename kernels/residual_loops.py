"""The delta pass on a CPU, compiled by Numba: X and Y are read once, Δ is written once in INT8.

PyTorch needs about fifteen passes over a stream for the same values, which with TDC on would be
most of what measuring costs. Sums may be split over vector lanes (`reassoc`), in an order fixed at
compile time; NaN and Inf keep their meaning.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit

from kernels.formats import INT8_MAX, SMALLEST_AMAX
from kernels.residual import CachedDelta

_F, _I = np.float32, np.int32
_MAGNITUDE = _I(0x7FFFFFFF)
_TOP, _STEP, _TINY = _F(INT8_MAX), _F(1.0 / INT8_MAX), _F(SMALLEST_AMAX)
_INTEGER_MAGIC = _F(1.5 * 2.0**23)


@njit(cache=True, nogil=True, fastmath={"reassoc"}, error_model="numpy")
def delta_rows(x, y, has_old, old_codes, old_scale, codes, scale, sums, delta, bits):
    """Rows of float32 (M, C) x and y -> int8 codes (M, C), scale (M,), sums (4, M).

    old_codes, old_scale: the cached delta, read if has_old. delta: float32 (C + 1,) scratch, bits
    its int32 view: the last place turns the largest magnitude's bits back into a number.
    """
    channels = x.shape[1]
    for row in range(x.shape[0]):
        delta_sum, x_sum = _F(0), _F(0)
        for c in range(channels):
            value = x[row, c]
            difference = y[row, c] - value
            delta[c] = difference
            delta_sum += abs(difference)
            x_sum += abs(value)
        sums[0, row], sums[1, row] = delta_sum, x_sum
        if has_old:
            change_sum, old_sum, step = _F(0), _F(0), old_scale[row]
            for c in range(channels):
                old = _F(old_codes[row, c]) * step
                old_sum += abs(old)
                change_sum += abs(delta[c] - old)
            sums[2, row], sums[3, row] = change_sum, old_sum
        # As integers, magnitudes order like floats and NaN is larger than everything.
        largest = _I(0)
        for c in range(channels):
            largest = max(largest, bits[c] & _MAGNITUDE)
        bits[channels] = largest
        absmax = delta[channels]
        inverse = (_F(1) / max(absmax, _TINY)) * _TOP
        scale[row] = absmax * _STEP if np.isfinite(absmax) else _F(np.nan)
        for c in range(channels):
            delta[c] = delta[c] * inverse + _INTEGER_MAGIC
        for c in range(channels):
            codes[row, c] = np.int8(bits[c])


def residual_delta_compiled(x, y, cached=None):
    """`residual_delta` for the INT8 format and float32 CPU tensors; see there for the meaning."""
    batch, channels = x.shape[0], x.shape[-1]
    rows = x.numel() // channels
    codes = torch.empty((rows, channels), dtype=torch.int8)
    scale, sums = torch.empty(rows), torch.full((4, rows), float("nan"))
    scratch = torch.empty(channels + 1)
    old = cached if cached is not None else CachedDelta(codes, scale, "int8", ())
    delta_rows(
        *(part.detach().reshape(rows, channels).contiguous().numpy() for part in (x, y)),
        cached is not None, old.codes.numpy(), old.scale.numpy(), codes.numpy(), scale.numpy(),
        sums.numpy(), scratch.numpy(), scratch.view(torch.int32).numpy(),
    )
    stats = sums.reshape(4, batch, -1).sum(dim=-1).T.contiguous()
    return CachedDelta(codes, scale, "int8", tuple(x.shape)), stats
