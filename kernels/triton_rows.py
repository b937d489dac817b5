"""How the row-wise Triton kernels walk a tensor: one program a token, all its channels at once.

A token of up to 16,384 channels fits in the registers of one program (32 values a thread), so
statistics, rotation and rounding need a single read. Many small programs, not few large ones,
keep enough reads in flight to fill an H200's memory bus.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels import formats
from kernels.target import interpreting

_MAX_CHANNELS = 16384
_VALUES_PER_WARP = 1024

# One reduction of a pair is one trip through shared memory, but the interpreter walks it value by
# value; there, two plain reductions stand in.
INTERPRETED = tl.constexpr(interpreting())

# Adding 1.5·2^23 leaves round-half-even(x) in the low bits of a float32, for |x| < 2^22. The
# hardware's own float to integer conversion runs at an eighth of the speed of an addition.
INTEGER_MAGIC = tl.constexpr(12582912.0)
SMALLEST_AMAX = tl.constexpr(formats.SMALLEST_AMAX)


def as_samples(x: torch.Tensor) -> torch.Tensor:
    """(batch, tokens, C) view of (batch, ..., C) with contiguous channels; copies only if it must."""
    samples = x.unsqueeze(1) if x.dim() == 2 else x.flatten(1, -2)
    return samples if samples.stride(-1) == 1 else samples.contiguous()


def row_shape(channels: int) -> dict[str, int]:
    """Launch constants of a row kernel: CHANNELS, its power-of-two WIDTH, and num_warps.

    Raises ValueError for a row that does not fit in one program.
    """
    if channels > _MAX_CHANNELS:
        raise ValueError(
            f"A Triton row kernel takes at most {_MAX_CHANNELS} channels, but the tensor has "
            f"{channels}; call the PyTorch twin for it."
        )
    width = max(128, triton.next_power_of_2(channels))
    warps = min(16, max(1, width // _VALUES_PER_WARP))
    return {"CHANNELS": channels, "WIDTH": width, "num_warps": warps}


@triton.jit
def row_start(row, tokens, batch_stride, token_stride):
    """Offset of a row of a (batch, tokens, C) tensor; 64-bit, as large videos need it."""
    sample = (row // tokens).to(tl.int64)
    return sample * batch_stride + (row - sample * tokens) * token_stride


@triton.jit
def is_finite(x):
    """Elementwise; a sum of magnitudes is finite only if every term is."""
    return x - x == 0.0


@triton.jit
def token_step(absmax, abssum, TOP: tl.constexpr):
    """A token's step and its reciprocal for codes up to TOP; NaN and Inf give a NaN step."""
    inverse = tl.div_rn(1.0, tl.maximum(absmax, SMALLEST_AMAX)) * TOP
    return tl.where(is_finite(abssum), absmax * (1.0 / TOP), float("nan")), inverse


@triton.jit
def round_to_int8(x):
    """Round half to even and truncate to int8; |x| must be at most 127."""
    return (x + INTEGER_MAGIC).to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit
def max_and_sum(magnitude):
    """Largest value and sum over the last axis of (WIDTH,) or (n, WIDTH)."""
    axis: tl.constexpr = len(magnitude.shape) - 1
    if INTERPRETED:
        largest = tl.max(magnitude, axis)
        total = tl.sum(magnitude, axis)
    else:
        largest, total = tl.reduce((magnitude, magnitude), axis, _combine_max_sum)
    return largest, total


@triton.jit
def _combine_max_sum(max_a, sum_a, max_b, sum_b):
    return tl.maximum(max_a, max_b), sum_a + sum_b
