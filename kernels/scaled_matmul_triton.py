"""The matrix product behind the quantized layers, as one Triton kernel: A Bᵀ, scaled and biased.

A (M, K) and B (N, K) are both INT8, summed in int32, or both bfloat16, summed in float32; the
scale of each token and of each output row and the bias are applied to the sum in registers, so
nothing but the result is written. From compute capability 9.0 on the operands come through the
tensor memory accelerator, and the grid is persistent: a program loads its next tile while it
stores the last one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels import target
from kernels.target import interpreting

# The interpreter multiplies bfloat16 operands as the integers that hold their bits.
_WIDEN = tl.constexpr(interpreting())


class Tiles(NamedTuple):
    """Launch configuration: tile sizes, warps, pipeline stages, operands by TMA, persistent grid."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    tma: bool
    persistent: bool


@triton.jit
def _tile_origin(tile, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    # Neighbouring programs share a band of GROUP row tiles, so that both operands stay in L2.
    columns = tl.cdiv(N, BN)
    band = tile // (GROUP * columns)
    height = tl.minimum(tl.cdiv(M, BM) - band * GROUP, GROUP)
    inside = tile % (GROUP * columns)
    return (band * GROUP + inside % height) * BM, (inside // height) * BN


# Which verdict is wanted changes one comparison: no other kernel for each.
@triton.jit(do_not_specialize=["wanted"])
def _scaled_matmul_kernel(
    a, b, c, token_scale, row_scale, bias, predicate, M, N, K, wanted,
    SCALED: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_PREDICATE: tl.constexpr, INT8: tl.constexpr,
    TMA: tl.constexpr, PERSISTENT: tl.constexpr, EVEN_K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):
    if HAS_PREDICATE:
        if tl.load(predicate) != wanted:
            return
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=PERSISTENT):
        m, n = _tile_origin(tile, M, N, BM, BN, GROUP)
        acc = tl.zeros((BM, BN), tl.int32 if INT8 else tl.float32)
        if not TMA:
            rows = tl.minimum(m + tl.arange(0, BM), M - 1).to(tl.int64)
            columns = tl.minimum(n + tl.arange(0, BN), N - 1).to(tl.int64)
            inner = tl.arange(0, BK)
            a_tile = a + rows[:, None] * K + inner[None, :]
            b_tile = b + columns[:, None] * K + inner[None, :]
        for k in range(0, tl.cdiv(K, BK)):
            if TMA:
                left = a.load([m, k * BK])
                right = b.load([n, k * BK])
            else:
                if EVEN_K:
                    left = tl.load(a_tile + k * BK)
                    right = tl.load(b_tile + k * BK)
                else:
                    inside = (k * BK + inner < K)[None, :]
                    left = tl.load(a_tile + k * BK, mask=inside, other=0)
                    right = tl.load(b_tile + k * BK, mask=inside, other=0)
            if INT8:
                acc = tl.dot(left, tl.trans(right), acc, out_dtype=tl.int32)
            elif _WIDEN:
                acc = tl.dot(left.to(tl.float32), tl.trans(right).to(tl.float32), acc)
            else:
                acc = tl.dot(left, tl.trans(right), acc)
        out_rows = m + tl.arange(0, BM)
        out_columns = n + tl.arange(0, BN)
        y = acc.to(tl.float32)
        if SCALED:
            y = y * tl.load(token_scale + out_rows, mask=out_rows < M, other=0.0)[:, None]
            bits = tl.load(row_scale + out_columns, mask=out_columns < N, other=0)
            y = y * bits.to(tl.float32, bitcast=True)[None, :]
        if HAS_BIAS:
            y = y + tl.load(bias + out_columns, mask=out_columns < N, other=0.0).to(tl.float32)[None, :]
        place = c + out_rows.to(tl.int64)[:, None] * N + out_columns[None, :]
        tl.store(place, y.to(c.dtype.element_ty), mask=(out_rows < M)[:, None] & (out_columns < N)[None, :])


def tiles_for(
    capability: tuple[int, int] | None, rows: int, columns: int, int8: bool, aligned: bool, out_bytes: int = 2
) -> Tiles:
    """The launch configuration for a card and a product; chosen by rule, so that no run tunes first.

    aligned: both operands meet the tensor memory accelerator's 16-byte rule. out_bytes: of a result:
    the widest tile's float32 results would not fit in shared memory beside the operands in flight.
    """
    if rows <= 32:
        return Tiles(16, 64, 128 if int8 else 64, 4, 3, False, False)
    hopper = capability is not None and capability >= (9, 0)
    if rows * columns < 512 * 1024:
        return Tiles(64, 64, 128 if int8 else 64, 4, 3, hopper and aligned, False)
    if hopper and capability < (12, 0):
        if out_bytes > 2:
            return Tiles(128, 128, 128 if int8 else 64, 8, 3, aligned, aligned)
        stages = 4 if int8 and capability < (10, 0) else 3
        return Tiles(128, 256, 128 if int8 else 64, 8, stages, aligned, aligned)
    return Tiles(128, 128, 64 if int8 else 32, 8, 3, hopper and aligned, False)


def scaled_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    token_scale: torch.Tensor | None,
    row_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    when: tuple[torch.Tensor, int] | None = None,
    tiles: Tiles | None = None,
) -> torch.Tensor:
    """out = (a bᵀ) x token_scale x row_scale + bias.

    a (M, K), b (N, K): int8 or bfloat16, contiguous. token_scale: float32 (M,). row_scale: int32
    (N,), float32 bits; both None for no scales. bias: (N,) or None. out: (M, N), any float dtype, returned.
    when: (int32 scalar on the device, value): the launch writes nothing unless they are equal.
    tiles: a launch configuration of your own, for measurements.
    """
    (rows, inner), columns = a.shape, b.shape[0]
    int8 = a.dtype == torch.int8
    capability = target.probe(a.device).capability
    if tiles is None:
        tiles = tiles_for(capability, rows, columns, int8, inner * a.element_size() % 16 == 0, out.element_size())
    count = triton.cdiv(rows, tiles.m) * triton.cdiv(columns, tiles.n)
    grid = min(count, _multiprocessors(a.device)) if tiles.persistent else count
    left, right = (_descriptor(a, tiles.m, tiles.k), _descriptor(b, tiles.n, tiles.k)) if tiles.tma else (a, b)
    with torch.cuda.device_of(a):
        _scaled_matmul_kernel[(grid,)](
            left, right, out, out if token_scale is None else token_scale, out if row_scale is None else row_scale,
            out if bias is None else bias, out if when is None else when[0],
            rows, columns, inner, 0 if when is None else when[1],
            SCALED=token_scale is not None, HAS_BIAS=bias is not None, HAS_PREDICATE=when is not None, INT8=int8, TMA=tiles.tma,
            PERSISTENT=tiles.persistent, EVEN_K=inner % tiles.k == 0,
            BM=tiles.m, BN=tiles.n, BK=tiles.k, GROUP=8,
            num_warps=tiles.warps, num_stages=tiles.stages,
        )
    return out


def _descriptor(matrix: torch.Tensor, rows: int, columns: int):
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(matrix, [rows, columns])


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


_TYPES = {
    "a": "*i8", "b": "*i8", "c": "*bf16", "token_scale": "*fp32", "row_scale": "*i32", "bias": "*bf16",
    "predicate": "*i32", "M": "i32", "N": "i32", "K": "i32", "wanted": "i32",
}
_FLAGS = {
    "SCALED": True, "HAS_BIAS": True, "HAS_PREDICATE": False, "INT8": True, "TMA": False, "PERSISTENT": False,
    "EVEN_K": True, "BM": 128, "BN": 128, "BK": 64, "GROUP": 8,
}
_PREDICATED = {**_FLAGS, "HAS_PREDICATE": True}
_BF16 = {**_TYPES, "a": "*bf16", "b": "*bf16"}
_BF16_FLAGS = {**_FLAGS, "INT8": False, "BK": 32}
_TMA_TYPES = {**_TYPES, "a": "tensordesc<i8[128, 128]>", "b": "tensordesc<i8[256, 128]>"}
_TMA_FLAGS = {**_PREDICATED, "TMA": True, "PERSISTENT": True, "BN": 256, "BK": 128}
COMPILE_CASES = [
    (_scaled_matmul_kernel, _TYPES, _PREDICATED, {"num_warps": 8, "num_stages": 3}),
    (_scaled_matmul_kernel, _BF16, _BF16_FLAGS, {"num_warps": 8, "num_stages": 3}),
]
# Tensor memory accelerator: compute capability 9.0 and newer.
_SMALL_TMA_TYPES = {**_TYPES, "a": "tensordesc<i8[128, 64]>", "b": "tensordesc<i8[128, 64]>"}
COMPILE_CASES_TMA = [
    (_scaled_matmul_kernel, _TMA_TYPES, _TMA_FLAGS, {"num_warps": 8, "num_stages": 3}),
    (_scaled_matmul_kernel, _SMALL_TMA_TYPES, {**_FLAGS, "TMA": True}, {"num_warps": 8, "num_stages": 3}),
]
