"""The W4A4 product: NVFP4 activations times the packed NVFP4 weight.

Both operands are code x block scale, at most six significant bits each, so their bfloat16 product
summed in float32 is the exact product of the codes up to the order of the sum; the token scale and
the tensor scale come after it. Blackwell multiplies the codes directly.
"""

from __future__ import annotations

import torch

from kernels import target
from kernels.activations import Nvfp4Activation, block_values
from kernels.formats import bits_float
from kernels.quantize_nvfp4 import quantize_nvfp4
from kernels.scaled_output import check_inner, scaled_output
from kernels.weights import PackedWeight, unpack_weight
from kernels.workspace import Workspace


def linear_w4a4(
    x: torch.Tensor | Nvfp4Activation,
    packed: PackedWeight,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """y = x W^T + bias with both in NVFP4.

    x: (..., K) float, quantized here, or an activation already quantized with the weight's own
    rotation. bias: (N,) or None. Returns (..., N) in out_dtype (default: x's, or float32).
    Raises ValueError when K differs.
    """
    if isinstance(x, torch.Tensor):
        check_inner(x.shape, packed)
        out_dtype, x = out_dtype or x.dtype, quantize_nvfp4(x, packed.hadamard)
    if x.codes.numel() and target.probe(x.codes.device).triton:
        from kernels.linear_w4a4_triton import linear_w4a4_triton

        return linear_w4a4_triton(x, packed, bias, out_dtype or torch.float32, workspace)
    return linear_w4a4_torch(x, packed, bias, out_dtype or torch.float32)


def linear_w4a4_torch(
    act: Nvfp4Activation, packed: PackedWeight, bias: torch.Tensor | None, out_dtype: torch.dtype
) -> torch.Tensor:
    """The definition in plain PyTorch, in float32."""
    check_inner(act.shape, packed)
    total = block_values(act) @ unpack_weight(packed).T
    return scaled_output(total, act, bits_float(packed.tensor_scale), bias, out_dtype)
