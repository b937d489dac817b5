"""Quantize and dequantize in float32 without packing codes: what a CPU does without its compiled passes.

The values are those of `dequantize(quantize_...(x))`, so a float32 product with the dequantized weight equals the
definition up to the rounding of the sum.
"""

from __future__ import annotations

import torch

from kernels.formats import BLOCK, E2M1_MAX, E4M3_MAX, ROUNDING_MAGIC, SMALLEST_AMAX, decode_e4m3
from kernels.hadamard import hadamard
from kernels.quantize_int8 import round_int8
from kernels.quantize_nvfp4 import round_nvfp4

_EXPONENT_MASK = 0x7F800000


def fake_quantize_int8(tokens: torch.Tensor, block: int) -> torch.Tensor:
    """Float tokens (M, K) -> rotated by `block`, rounded to INT8 codes and scaled back, float32 (M, K)."""
    values, token_scale = round_int8(hadamard(tokens, block))
    return values.mul_(token_scale[:, None])


def fake_quantize_nvfp4(tokens: torch.Tensor, block: int, four_over_six: bool = False) -> torch.Tensor:
    """Float tokens (M, K) -> rotated by `block`, rounded to NVFP4 and scaled back, float32 (M, K)."""
    values = hadamard(tokens, block)
    if four_over_six or values.shape[1] % BLOCK:
        rounded, scales, token_scale = round_nvfp4(values, four_over_six)
        worth = decode_e4m3(scales) * token_scale[:, None]
        return (rounded.view(*worth.shape, BLOCK) * worth[:, :, None]).flatten(1)[:, : values.shape[1]]
    blocks = values.view(len(values), values.shape[1] // BLOCK, BLOCK)
    block_max = blocks.abs().amax(-1)
    largest = block_max.amax(-1, keepdim=True)
    to_scale = largest.clamp_min(SMALLEST_AMAX).reciprocal() * E4M3_MAX
    scale = (block_max * to_scale).clamp_(max=E4M3_MAX).to(torch.float8_e4m3fn).to(torch.float32)
    factor = torch.where(scale == 0, torch.zeros_like(scale), (to_scale * E2M1_MAX) / scale)
    # `round_e2m1` in place: the temporaries cost as much as the arithmetic.
    blocks.mul_(factor[:, :, None])
    unit = (blocks.view(torch.int32) & _EXPONENT_MASK).view(torch.float32).clamp_(1.0, 4.0)
    blocks.add_(unit, alpha=ROUNDING_MAGIC).sub_(unit, alpha=ROUNDING_MAGIC).clamp_(-E2M1_MAX, E2M1_MAX)
    scale.mul_(largest * (1.0 / (E2M1_MAX * E4M3_MAX)))
    return blocks.mul_(scale[:, :, None]).flatten(1)
