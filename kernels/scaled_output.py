"""What the two quantized products share after the sum: scales, bias, shape."""

from __future__ import annotations

import torch

from kernels.activations import Int8Activation, Nvfp4Activation
from kernels.weights import PackedWeight


def check_inner(shape: tuple[int, ...], packed: PackedWeight) -> None:
    """Raise ValueError unless an input of this shape fits the weight."""
    if shape[-1] != packed.shape[1]:
        raise ValueError(
            f"The input's last dimension is {shape[-1]} but the packed weight {packed.shape} expects {packed.shape[1]}."
        )


def scaled_output(
    total: torch.Tensor,
    act: Nvfp4Activation | Int8Activation,
    row_scale: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """(total x token scale x row scale + bias) as (..., N) in out_dtype; total float32 (M, N)."""
    result = total * act.token_scale[:, None] * row_scale[None, :]
    if bias is not None:
        result = result + bias.to(torch.float32)
    return result.to(out_dtype).reshape(*act.shape[:-1], row_scale.numel())
