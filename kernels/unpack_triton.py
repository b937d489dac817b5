"""NVFP4 → what a matrix product reads, as one Triton kernel: a weight once per call, or activations.

Three outputs: the bare code x block scale (exact in bfloat16), INT8 codes for the INT8 route, or
the weight itself, scaled and rotated back to its own axes, for the 16-bit route.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton_hadamard import hadamard_groups, hadamard_norm
from kernels.triton_nvfp4 import decode_e2m1, decode_e4m3
from kernels.triton_rows import round_to_int8
from kernels.weights import PackedWeight
from kernels.workspace import Workspace

VALUES, INT8, WEIGHT = 0, 1, 2
_WIDTH = 1024


@triton.jit
def _unpack_kernel(
    codes, scales, tensor_scale, int8_scale, out, columns, padded,
    KIND: tl.constexpr, HADAMARD: tl.constexpr, WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * WIDTH
    pair = first // 2 + tl.arange(0, WIDTH // 2)
    byte = tl.load(codes + row * (padded // 2) + pair, mask=pair < padded // 2, other=0)
    block = first // 16 + tl.arange(0, WIDTH // 16)
    bits = tl.load(scales + row * (padded // 16) + block, mask=block < padded // 16, other=0)
    code = tl.join(byte & 15, byte >> 4)
    value = decode_e2m1(tl.reshape(code, (WIDTH // 16, 16))) * decode_e4m3(bits)[:, None]
    value = tl.reshape(value, (WIDTH,))
    if KIND == 1:
        outer = tl.load(tensor_scale + row).to(tl.float32, bitcast=True)
        step = tl.load(int8_scale + row).to(tl.float32, bitcast=True)
        value = tl.minimum(tl.maximum(value * tl.div_rn(outer, step), -127.0), 127.0)
        result = round_to_int8(value)
    elif KIND == 2:
        outer = tl.load(tensor_scale + row).to(tl.float32, bitcast=True)
        if HADAMARD > 1:
            value = tl.reshape(hadamard_groups(value, WIDTH // HADAMARD, HADAMARD, True), (WIDTH,))
        result = value * (outer * hadamard_norm(HADAMARD))
    else:
        result = value
    column = first + tl.arange(0, WIDTH)
    tl.store(out + row * columns + column, result.to(out.dtype.element_ty), mask=column < columns)


def unpack_values_triton(codes: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """code x block scale of uint8 codes (R, Kp/2) and scales (R, Kp/16) into out (R, K)."""
    return _launch(codes, scales, scales, scales, out, VALUES, 1)


def int8_weight_triton(packed: PackedWeight, workspace: Workspace | None = None) -> torch.Tensor:
    """`int8_weight` on a GPU, in the workspace's buffer if there is one."""
    out = _memory(packed, torch.int8, workspace)
    return _launch(packed.codes, packed.scales, packed.tensor_scale, packed.int8_scale, out, INT8, 1)


def unpack_weight_triton(packed: PackedWeight, dtype: torch.dtype, workspace: Workspace | None = None) -> torch.Tensor:
    """`unpack_weight` on a GPU, in the workspace's buffer if there is one."""
    return unpack_values_triton(packed.codes, packed.scales, _memory(packed, dtype, workspace))


def dequantize_weight_triton(
    packed: PackedWeight, dtype: torch.dtype, workspace: Workspace | None = None
) -> torch.Tensor:
    """`dequantize_weight` on a GPU, in the workspace's buffer if there is one."""
    out = _memory(packed, dtype, workspace)
    return _launch(packed.codes, packed.scales, packed.tensor_scale, packed.int8_scale, out, WEIGHT, packed.hadamard)


def _memory(packed: PackedWeight, dtype: torch.dtype, workspace: Workspace | None) -> torch.Tensor:
    if workspace is None:
        return torch.empty(packed.shape, dtype=dtype, device=packed.codes.device)
    return workspace.buffer(packed.shape, dtype, packed.codes.device)


def _launch(codes, scales, tensor_scale, int8_scale, out, kind, hadamard):
    rows, columns = out.shape
    grid = (rows, triton.cdiv(columns, _WIDTH))
    with torch.cuda.device_of(codes):
        _unpack_kernel[grid](
            codes, scales, tensor_scale, int8_scale, out, columns, codes.shape[1] * 2,
            KIND=kind, HADAMARD=hadamard, WIDTH=_WIDTH, num_warps=4,
        )
    return out


_TYPES = {
    "codes": "*u8", "scales": "*u8", "tensor_scale": "*i32", "int8_scale": "*i32", "out": "*bf16",
    "columns": "i32", "padded": "i32",
}
COMPILE_CASES = [
    (_unpack_kernel, _TYPES, {"KIND": VALUES, "HADAMARD": 1, "WIDTH": _WIDTH}, {"num_warps": 4}),
    (_unpack_kernel, {**_TYPES, "out": "*i8"}, {"KIND": INT8, "HADAMARD": 1, "WIDTH": _WIDTH}, {"num_warps": 4}),
    (_unpack_kernel, _TYPES, {"KIND": WEIGHT, "HADAMARD": 128, "WIDTH": _WIDTH}, {"num_warps": 4}),
]
