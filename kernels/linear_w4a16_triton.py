"""W4A16 on a GPU: the weight returns to its own axes in 16 bits, then an ordinary product.

Ordinarily cuBLAS does that product. A purified layer whose verdict is still on the device needs
one that can decline to run, and takes the Triton product instead.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.activations import as_tokens
from kernels.scaled_matmul_triton import scaled_matmul
from kernels.scaled_output import check_inner
from kernels.unpack_triton import dequantize_weight_triton
from kernels.weights import PackedWeight
from kernels.workspace import Workspace


def linear_w4a16_triton(
    x: torch.Tensor,
    packed: PackedWeight,
    bias: torch.Tensor | None,
    workspace: Workspace | None = None,
    when: tuple[torch.Tensor, int] | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`linear_w4a16` on a GPU; `when` and `out` as in `scaled_matmul`, which take x as bfloat16."""
    check_inner(x.shape, packed)
    if when is None and out is None:
        weight = dequantize_weight_triton(packed, x.dtype, workspace)
        return F.linear(x, weight, None if bias is None else bias.to(x.dtype))
    tokens = as_tokens(x).to(torch.bfloat16).contiguous()
    if out is None:
        out = torch.empty((tokens.shape[0], packed.shape[0]), dtype=x.dtype, device=x.device)
    weight = dequantize_weight_triton(packed, torch.bfloat16, workspace)
    scaled_matmul(tokens, weight, None, None, bias, out, when)
    return out.view(*x.shape[:-1], packed.shape[0])
