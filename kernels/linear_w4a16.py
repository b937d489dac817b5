"""The W4A16 product: 16-bit activations times the unpacked weight.

The rotation folded into the weight is undone on the weight, not repeated on the activations: the
weight is the smaller of the two, and on a CPU its unpacked form is kept.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels import target
from kernels.scaled_output import check_inner
from kernels.weights import PackedWeight, dequantize_weight
from kernels.workspace import Workspace


def linear_w4a16(
    x: torch.Tensor, packed: PackedWeight, bias: torch.Tensor | None = None, workspace: Workspace | None = None
) -> torch.Tensor:
    """y = x W^T + bias in x's dtype, W being the packed weight on its original axes.

    x: (..., K) float. bias: (N,) or None. Returns (..., N). Raises ValueError when K differs.
    """
    check_inner(x.shape, packed)
    if x.numel() and target.probe(x.device).triton:
        from kernels.linear_w4a16_triton import linear_w4a16_triton

        return linear_w4a16_triton(x, packed, bias, workspace)
    return linear_w4a16_torch(x, packed, bias)


def linear_w4a16_torch(x: torch.Tensor, packed: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """The definition in plain PyTorch: the product runs in x's dtype."""
    check_inner(x.shape, packed)
    return F.linear(x, dequantize_weight(packed, x.dtype), None if bias is None else bias.to(x.dtype))
