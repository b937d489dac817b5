"""The W4A8 product: INT8 activations times the packed weight, converted to INT8 per output row.

Integer sums are exact, so the result does not depend on the order of the sum: same codes, same
output, on every device up to the last rounding of the scales.
"""

from __future__ import annotations

import torch

from kernels import cpu_fused, target
from kernels.activations import Int8Activation
from kernels.formats import bits_float
from kernels.quantize_int8 import quantize_int8
from kernels.scaled_output import check_inner, scaled_output
from kernels.weights import PackedWeight, int8_weight
from kernels.workspace import Workspace

# 1024 x 127 x 127 < 2^24: a float32 sum of this many products of codes is exact in any order.
_EXACT_INNER = 1024


def linear_w4a8(
    x: torch.Tensor | Int8Activation,
    packed: PackedWeight,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """y = x W^T + bias with INT8 activations.

    x: (..., K) float, quantized here, or an activation already quantized with the weight's own
    rotation. bias: (N,) or None. Returns (..., N) in out_dtype (default: x's, or float32).
    Raises ValueError when K differs.
    """
    if isinstance(x, torch.Tensor):
        check_inner(x.shape, packed)
        out_dtype, x = out_dtype or x.dtype, quantize_int8(x, packed.hadamard)
    if x.codes.numel() and target.probe(x.codes.device).triton:
        from kernels.linear_w4a8_triton import linear_w4a8_triton

        return linear_w4a8_triton(x, packed, bias, out_dtype or torch.float32, workspace)
    if cpu_fused.multiplies(x, out_dtype or torch.float32):
        return cpu_fused.linear_int8(x, packed, bias, out_dtype or torch.float32, workspace)
    return linear_w4a8_torch(x, packed, bias, out_dtype or torch.float32)


def linear_w4a8_torch(
    act: Int8Activation, packed: PackedWeight, bias: torch.Tensor | None, out_dtype: torch.dtype
) -> torch.Tensor:
    """The definition in plain PyTorch: exact integer sums, then the scales in float32."""
    check_inner(act.shape, packed)
    total = integer_product(act.codes, int8_weight(packed))
    return scaled_output(total.to(torch.float32), act, bits_float(packed.int8_scale), bias, out_dtype)


def integer_product(codes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """int8 (M, K) times int8 (N, K) transposed -> exact int32 (M, N), K up to 133,000.

    Float32 products in slices short enough to be exact: few CPUs have fast INT8 instructions that
    PyTorch uses.
    """
    slices = zip(codes.split(_EXACT_INNER, dim=1), weight.split(_EXACT_INNER, dim=1))
    parts = [(left.to(torch.float32) @ right.to(torch.float32).T).to(torch.int32) for left, right in slices]
    return sum(parts[1:], start=parts[0])
