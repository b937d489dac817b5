"""Activations -> INT8: rotate, one float32 scale per token, symmetric codes in [-127, 127]."""

from __future__ import annotations

import torch

from kernels import cpu_fused, target
from kernels.activations import LARGEST_ROW, Int8Activation, as_tokens, token_stats
from kernels.formats import INT8_MAX, SMALLEST_AMAX
from kernels.hadamard import check_block
from kernels.hadamard import hadamard as rotate


def quantize_int8(x: torch.Tensor, hadamard: int = 1) -> Int8Activation:
    """Quantize x (..., K), float16, bfloat16 or float32, after a Hadamard rotation of block `hadamard`.

    A token that holds NaN or Inf dequantizes to NaN; an all-zero token to zeros. Raises ValueError
    for integer inputs and for a block that does not divide K.
    """
    check_block(x.shape[-1], hadamard)
    if x.numel() and x.shape[-1] <= LARGEST_ROW and target.probe(x.device).triton:
        from kernels.quantize_triton import quantize_int8_triton

        return quantize_int8_triton(x, hadamard)
    if cpu_fused.fits(x, block=hadamard):
        return cpu_fused.quantize_int8_compiled(x, hadamard)
    return quantize_int8_torch(x, hadamard)


def quantize_int8_torch(x: torch.Tensor, hadamard: int = 1) -> Int8Activation:
    """The definition in plain PyTorch; arguments and errors as `quantize_int8`."""
    tokens = as_tokens(x)
    absmax, abssum = token_stats(tokens)
    values, token_scale = round_int8(rotate(tokens, hadamard))
    # The code of NaN does not matter, its token scale is NaN too; but the cast must be defined.
    codes = torch.nan_to_num(values, nan=0.0).to(torch.int8)
    return Int8Activation(codes, token_scale, absmax, abssum, tuple(x.shape))


def round_int8(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated float32 tokens (M, K) -> whole numbers in [-127, 127] as float32, token scale (M,)."""
    largest = values.abs().amax(-1)
    finite = torch.where(torch.isfinite(largest), largest, torch.full_like(largest, float("nan")))
    inverse = finite.clamp_min(SMALLEST_AMAX).reciprocal() * INT8_MAX
    return (values * inverse[:, None]).round_(), finite * (1.0 / INT8_MAX)
