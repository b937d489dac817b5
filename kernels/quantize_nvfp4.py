"""Activations -> NVFP4: rotate, one float32 scale per token, one E4M3 scale per 16 values.

The outer scale is per token and not per tensor, so that samples of a batch never couple and one
pass suffices. A block normally maps its maximum to 6; "four over six" (`four_over_six=True`) also
tries 4, whose neighbours are finer, and keeps the better one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels import target
from kernels.activations import LARGEST_ROW, Nvfp4Activation, as_tokens, token_stats
from kernels.formats import (
    BLOCK,
    E2M1_MAX,
    E4M3_MAX,
    FOUR_OVER_SIX_TOP,
    SMALLEST_AMAX,
    decode_e4m3,
    encode_e2m1,
    encode_e4m3,
    pack_nibbles,
    round_e2m1,
)
from kernels.hadamard import check_block
from kernels.hadamard import hadamard as rotate


def quantize_nvfp4(x: torch.Tensor, hadamard: int = 1, four_over_six: bool = False) -> Nvfp4Activation:
    """Quantize x (..., K), float16, bfloat16 or float32, after a Hadamard rotation of block `hadamard`.

    A token that holds NaN or Inf dequantizes to NaN; an all-zero token to zeros. Raises ValueError
    for integer inputs and for a block that does not divide K.
    """
    check_block(x.shape[-1], hadamard)
    if x.numel() and x.shape[-1] <= LARGEST_ROW and target.probe(x.device).triton:
        from kernels.quantize_triton import quantize_nvfp4_triton

        return quantize_nvfp4_triton(x, hadamard, four_over_six)
    return quantize_nvfp4_torch(x, hadamard, four_over_six)


def quantize_nvfp4_torch(x: torch.Tensor, hadamard: int = 1, four_over_six: bool = False) -> Nvfp4Activation:
    """The definition in plain PyTorch; arguments and errors as `quantize_nvfp4`."""
    tokens = as_tokens(x)
    absmax, abssum = token_stats(tokens)
    rounded, scales, token_scale = round_nvfp4(rotate(tokens, hadamard), four_over_six)
    return Nvfp4Activation(pack_nibbles(encode_e2m1(rounded)), scales, token_scale, absmax, abssum, tuple(x.shape))


def round_nvfp4(values: torch.Tensor, four_over_six: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rotated float32 tokens (M, K) -> E2M1 values (M, Kp), E4M3 bits (M, Kp/16), token scale (M,)."""
    rows, size = values.shape
    count = -(-size // BLOCK)
    blocks = F.pad(values, (0, count * BLOCK - size)).view(rows, count, BLOCK)
    block_max = blocks.abs().amax(-1)
    largest = block_max.amax(-1, keepdim=True)
    top = FOUR_OVER_SIX_TOP if four_over_six else E4M3_MAX
    to_scale = largest.clamp_min(SMALLEST_AMAX).reciprocal() * top
    scales = encode_e4m3(block_max * to_scale)
    rounded = _round_blocks(blocks, scales, to_scale)
    if four_over_six:
        wide = encode_e4m3(block_max * (to_scale * (E2M1_MAX / 4.0)))
        other = _round_blocks(blocks, wide, to_scale)
        target_values = blocks * (to_scale * E2M1_MAX)[:, :, None]
        better = _loss(other, wide, target_values) < _loss(rounded, scales, target_values)
        scales = torch.where(better, wide, scales)
        rounded = torch.where(better[:, :, None], other, rounded)
    # Inf: 0 x Inf in the dequantized token is NaN, as for a token that holds NaN.
    token_scale = largest.squeeze(-1) * (1.0 / (E2M1_MAX * top))
    return rounded.flatten(1), scales, token_scale


def _round_blocks(blocks: torch.Tensor, scales: torch.Tensor, to_scale: torch.Tensor) -> torch.Tensor:
    scale = decode_e4m3(scales)
    factor = torch.where(scale == 0, torch.zeros_like(scale), (to_scale * E2M1_MAX) / scale)
    return round_e2m1(blocks * factor[:, :, None])


def _loss(rounded: torch.Tensor, scales: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return (rounded * decode_e4m3(scales)[:, :, None]).sub_(values).square_().sum(-1)
