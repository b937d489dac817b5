"""The single entry the engine uses: one packed weight, three precisions of the activations."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels import cpu_fused, target
from kernels.activations import as_tokens
from kernels.fake_quantize import fake_quantize_int8, fake_quantize_nvfp4
from kernels.formats import bits_float
from kernels.linear_w4a4 import linear_w4a4
from kernels.linear_w4a8 import linear_w4a8
from kernels.linear_w4a16 import linear_w4a16
from kernels.quantize_int8 import quantize_int8
from kernels.quantize_nvfp4 import quantize_nvfp4
from kernels.scaled_output import check_inner
from kernels.weights import PackedWeight, dequantize_weight, int8_weight, unpack_weight
from kernels.workspace import Workspace

# Tokens of this many values are quantized at a time, where the quantizers are PyTorch's and need several times as much.
_STRIP = 1 << 20

PRECISIONS = ("nvfp4", "int8", "w4a16")


def quantized_linear(
    x: torch.Tensor,
    packed: PackedWeight,
    bias: torch.Tensor | None,
    precision: str,
    *,
    four_over_six: bool = False,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """y = x W^T + bias with the activations in `precision`: "nvfp4", "int8" or "w4a16".

    x: (..., K) float, any strides; bias (N,) or None. four_over_six applies to "nvfp4".
    workspace: keeps unpacked weights (CPU) or the conversion buffer (GPU) between calls.
    Returns (..., N) in x's dtype. NaN or Inf in a token give NaN in that token's output.
    Raises ValueError for an unknown precision, a wrong K or an integer input.
    """
    if precision not in PRECISIONS:
        raise ValueError(f'Unknown precision "{precision}": expected one of {", ".join(PRECISIONS)}.')
    if not x.is_floating_point():
        raise ValueError(f"A quantized linear layer needs a float input, got {x.dtype}.")
    check_inner(x.shape, packed)
    if x.device.type == "cpu" and not target.probe(x.device).triton:
        return _on_cpu(x, packed, bias, precision, four_over_six, workspace)
    if precision == "w4a16":
        return linear_w4a16(x, packed, bias, workspace)
    if precision == "int8":
        return linear_w4a8(quantize_int8(x, packed.hadamard), packed, bias, x.dtype, workspace)
    return linear_w4a4(quantize_nvfp4(x, packed.hadamard, four_over_six), packed, bias, x.dtype, workspace)


def _on_cpu(
    x: torch.Tensor,
    packed: PackedWeight,
    bias: torch.Tensor | None,
    precision: str,
    four_over_six: bool,
    workspace: Workspace | None,
) -> torch.Tensor:
    """The definitions through compiled passes; without them, fake quantization and one stock product.

    That product, and NVFP4's, run in float32, or in bfloat16 for a bfloat16 input on a CPU that has it.
    """
    tokens = as_tokens(x).detach()
    if precision != "w4a16" and not (four_over_six and precision == "nvfp4"):
        given = tokens.float() if x.dtype == torch.float16 else tokens
        if cpu_fused.quantizes(given, packed.hadamard, precision):
            y = cpu_fused.linear(given, packed, bias, precision, workspace)
            return y.to(x.dtype).view(*x.shape[:-1], packed.shape[0])
    dtype = cpu_fused.operand(x.dtype)
    weight = _float_weight(packed, precision, dtype, workspace)
    bias = None if bias is None else bias.detach().to(dtype)
    if precision == "w4a16":
        y = F.linear(tokens.to(dtype), weight, bias)
    else:
        step = max(1, _STRIP // max(1, packed.shape[1]))
        parts = (_fake_quantized(part, packed.hadamard, precision, four_over_six) for part in tokens.split(step))
        y = torch.cat([F.linear(part.to(dtype), weight, bias) for part in parts])
    return y.to(x.dtype).view(*x.shape[:-1], packed.shape[0])


def _fake_quantized(tokens: torch.Tensor, block: int, precision: str, four_over_six: bool) -> torch.Tensor:
    if precision == "int8":
        return fake_quantize_int8(tokens, block)
    return fake_quantize_nvfp4(tokens, block, four_over_six)


def _float_weight(
    packed: PackedWeight, precision: str, dtype: torch.dtype, workspace: Workspace | None
) -> torch.Tensor:
    makers = {
        "nvfp4": lambda: unpack_weight(packed).mul_(bits_float(packed.tensor_scale)[:, None]),
        "int8": lambda: int8_weight(packed).to(torch.float32).mul_(bits_float(packed.int8_scale)[:, None]),
        "w4a16": lambda: dequantize_weight(packed),
    }
    if workspace is None:
        return makers[precision]().to(dtype)
    return workspace.unpacked(f"{precision} {dtype}", packed.codes, lambda: makers[precision]().to(dtype))
