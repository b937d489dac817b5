"""The FFN's GELU fused with the quantization of its output, the input of the down projection.

Stock code writes the activated tensor (four times the model's width) and reads it again; here it
goes from the up projection's output to rotated codes in one read.
"""

from __future__ import annotations

import torch

from kernels import target
from kernels.activations import Int8Activation, Nvfp4Activation
from kernels.hadamard import check_block
from kernels.norm_modulate import QUANTIZED, finish


def gelu_quantize(
    x: torch.Tensor,
    *,
    quantize: str | None = "int8",
    hadamard: int = 1,
    four_over_six: bool = False,
) -> torch.Tensor | Int8Activation | Nvfp4Activation:
    """GELU in its tanh form, then quantization after a block Hadamard rotation.

    x: (..., C) float, the up projection's output with its bias; quantize: None | "int8" | "nvfp4".
    Returns the activated tensor in x's dtype, or an activation of shape x.shape with each token's
    absmax and abssum before the rotation (the outlier ratio that PDR judges "down" by).
    """
    if quantize not in QUANTIZED:
        raise ValueError(f'quantize must be None, "int8" or "nvfp4", but it is {quantize!r}.')
    if quantize is not None:
        check_block(x.shape[-1], hadamard)
    if target.probe(x.device).triton:
        from kernels.gelu_quantize_triton import gelu_quantize_triton as twin
    else:
        twin = gelu_quantize_torch
    return twin(x, quantize, hadamard, four_over_six)


def gelu_quantize_torch(x, quantize="int8", hadamard=1, four_over_six=False):
    """`gelu_quantize` in plain PyTorch: the definition, and the path without Triton."""
    y = torch.nn.functional.gelu(x.float(), approximate="tanh")
    return finish(y, x.dtype, quantize, hadamard, four_over_six)
