"""W4A8 on a GPU: the weight becomes INT8 once per call, then INT8 tensor cores do the product.

The conversion takes a few per cent of the product's time at video sizes, so the packed form is
the only one that stays in memory.
"""

from __future__ import annotations

import torch

from kernels.activations import Int8Activation
from kernels.scaled_matmul_triton import scaled_matmul
from kernels.scaled_output import check_inner
from kernels.unpack_triton import int8_weight_triton
from kernels.weights import PackedWeight
from kernels.workspace import Workspace


def linear_w4a8_triton(
    act: Int8Activation,
    packed: PackedWeight,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
    workspace: Workspace | None = None,
    when: tuple[torch.Tensor, int] | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`linear_w4a8` of a quantized activation; `when` and `out` as in `scaled_matmul`."""
    check_inner(act.shape, packed)
    if out is None:
        out = torch.empty((act.codes.shape[0], packed.shape[0]), dtype=out_dtype, device=act.codes.device)
    weight = int8_weight_triton(packed, workspace)
    scaled_matmul(act.codes, weight, act.token_scale, packed.int8_scale, bias, out, when)
    return out.view(*act.shape[:-1], packed.shape[0])
