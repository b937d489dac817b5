"""W4A4 on a GPU: the tensor cores' own NVFP4 product on Blackwell, an exact simulation before it.

The simulation unpacks both operands to bfloat16, in which code x block scale is exact, and sums
in float32: the same product, without the speed. `tl.dot_scaled` must never be reached before
Blackwell, where the compiler aborts on it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels import target
from kernels.activations import Nvfp4Activation
from kernels.scaled_matmul_triton import _tile_origin, scaled_matmul
from kernels.scaled_output import check_inner
from kernels.unpack_triton import unpack_values_triton, unpack_weight_triton
from kernels.weights import PackedWeight
from kernels.workspace import Workspace

# Activations are simulated this many bytes of bfloat16 at a time, so that they add little to the peak.
_CHUNK_BYTES = 256 << 20


@triton.jit
def _native_kernel(
    a, a_scale, b, b_scale, c, token_scale, tensor_scale, bias, predicate, M, N, K, wanted,
    HAS_BIAS: tl.constexpr, HAS_PREDICATE: tl.constexpr, EVEN_K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):
    if HAS_PREDICATE:
        if tl.load(predicate) != wanted:
            return
    m, n = _tile_origin(tl.program_id(0), M, N, BM, BN, GROUP)
    rows = m + tl.arange(0, BM)
    columns = n + tl.arange(0, BN)
    safe_rows = tl.minimum(rows, M - 1).to(tl.int64)
    safe_columns = tl.minimum(columns, N - 1).to(tl.int64)
    pair = tl.arange(0, BK // 2)
    block = tl.arange(0, BK // 16)
    a_tile = a + safe_rows[:, None] * (K // 2) + pair[None, :]
    b_tile = b + safe_columns[None, :] * (K // 2) + pair[:, None]
    a_blocks = a_scale + safe_rows[:, None] * (K // 16) + block[None, :]
    b_blocks = b_scale + safe_columns[:, None] * (K // 16) + block[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        pairs, blocks = k * (BK // 2), k * (BK // 16)
        if EVEN_K:
            left, right = tl.load(a_tile + pairs), tl.load(b_tile + pairs)
            left_scale, right_scale = tl.load(a_blocks + blocks), tl.load(b_blocks + blocks)
        else:
            left = tl.load(a_tile + pairs, mask=(pairs + pair < K // 2)[None, :], other=0)
            right = tl.load(b_tile + pairs, mask=(pairs + pair < K // 2)[:, None], other=0)
            left_scale = tl.load(a_blocks + blocks, mask=(blocks + block < K // 16)[None, :], other=0.0)
            right_scale = tl.load(b_blocks + blocks, mask=(blocks + block < K // 16)[None, :], other=0.0)
        acc = tl.dot_scaled(left, left_scale, "e2m1", right, right_scale, "e2m1", acc)
    y = acc * tl.load(token_scale + rows, mask=rows < M, other=0.0)[:, None]
    y = y * tl.load(tensor_scale + columns, mask=columns < N, other=0).to(tl.float32, bitcast=True)[None, :]
    if HAS_BIAS:
        y = y + tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    place = c + rows.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(place, y.to(c.dtype.element_ty), mask=(rows < M)[:, None] & (columns < N)[None, :])


def linear_w4a4_triton(
    act: Nvfp4Activation,
    packed: PackedWeight,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
    workspace: Workspace | None = None,
    when: tuple[torch.Tensor, int] | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`linear_w4a4` of a quantized activation; `when` and `out` as in `scaled_matmul`."""
    check_inner(act.shape, packed)
    rows, columns = act.codes.shape[0], packed.shape[0]
    if out is None:
        out = torch.empty((rows, columns), dtype=out_dtype, device=act.codes.device)
    if target.probe(act.codes.device).native_fp4:
        _native(act, packed, bias, out, when)
    else:
        _simulated(act, packed, bias, out, workspace, when)
    return out.view(*act.shape[:-1], columns)


def _native(
    act: Nvfp4Activation,
    packed: PackedWeight,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    when: tuple[torch.Tensor, int] | None,
) -> None:
    rows, columns = out.shape
    inner = act.codes.shape[1] * 2
    tile_m, tile_n, tile_k = 128, 128, 256
    with torch.cuda.device_of(out):
        _native_kernel[(triton.cdiv(rows, tile_m) * triton.cdiv(columns, tile_n),)](
            act.codes, act.scales.view(torch.float8_e4m3fn), packed.codes, packed.scales.view(torch.float8_e4m3fn),
            out, act.token_scale, packed.tensor_scale, out if bias is None else bias, out if when is None else when[0],
            rows, columns, inner, 0 if when is None else when[1],
            HAS_BIAS=bias is not None, HAS_PREDICATE=when is not None, EVEN_K=inner % tile_k == 0,
            BM=tile_m, BN=tile_n, BK=tile_k, GROUP=8, num_warps=8, num_stages=3,
        )


def _simulated(
    act: Nvfp4Activation,
    packed: PackedWeight,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    workspace: Workspace | None,
    when: tuple[torch.Tensor, int] | None,
) -> None:
    inner = packed.shape[1]
    weight = unpack_weight_triton(packed, torch.bfloat16, workspace)
    # Whole sixteens, so that every slice begins at aligned addresses: one kernel for all of them.
    step = max(16, _CHUNK_BYTES // (2 * inner) // 16 * 16)
    values = torch.empty((min(step, len(out)), inner), dtype=torch.bfloat16, device=out.device)
    for start in range(0, len(out), step):
        part = slice(start, min(start + step, len(out)))
        chunk = values[: part.stop - part.start]
        unpack_values_triton(act.codes[part], act.scales[part], chunk)
        scaled_matmul(chunk, weight, act.token_scale[part], packed.tensor_scale, bias, out[part], when)


_TYPES = {
    "a": "*u8", "a_scale": "*fp8e4nv", "b": "*u8", "b_scale": "*fp8e4nv", "c": "*bf16", "token_scale": "*fp32",
    "tensor_scale": "*i32", "bias": "*bf16", "predicate": "*i32", "M": "i32", "N": "i32",
    "K": "i32", "wanted": "i32",
}
_FLAGS = {"HAS_BIAS": True, "HAS_PREDICATE": True, "EVEN_K": True, "BM": 128, "BN": 128, "BK": 256, "GROUP": 8}
# Native NVFP4: Blackwell only, compute capability 10.0 and newer.
COMPILE_CASES_BLACKWELL = [(_native_kernel, _TYPES, _FLAGS, {"num_warps": 8, "num_stages": 3})]
