"""Quantized numerics for video diffusion transformers: NVFP4 and INT8, PyTorch and Triton.

Every operation is a small file with twins: `name` picks the path, `name_torch` is the definition
in plain PyTorch, and `name_triton.py` holds the Triton kernel. `target.py` alone knows hardware.
"""

from kernels.activations import Int8Activation, Nvfp4Activation, dequantize, outlier_ratio, token_stats
from kernels.first_use import warm_up
from kernels.hadamard import hadamard, hadamard_block
from kernels.linear import PRECISIONS, quantized_linear
from kernels.linear_w4a4 import linear_w4a4
from kernels.linear_w4a8 import linear_w4a8
from kernels.linear_w4a16 import linear_w4a16
from kernels.quantize_int8 import quantize_int8
from kernels.quantize_nvfp4 import quantize_nvfp4
from kernels.weights import (
    PackedWeight,
    concat_packed,
    dequantize_weight,
    int8_weight,
    pack_weight,
    packed_nbytes,
    unpack_weight,
)
from kernels.workspace import Workspace

__all__ = [
    "PRECISIONS",
    "Int8Activation",
    "Nvfp4Activation",
    "PackedWeight",
    "Workspace",
    "concat_packed",
    "dequantize",
    "dequantize_weight",
    "hadamard",
    "hadamard_block",
    "int8_weight",
    "linear_w4a16",
    "linear_w4a4",
    "linear_w4a8",
    "outlier_ratio",
    "pack_weight",
    "packed_nbytes",
    "quantize_int8",
    "quantize_nvfp4",
    "quantized_linear",
    "token_stats",
    "unpack_weight",
    "warm_up",
]
