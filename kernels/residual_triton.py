"""The delta ops as Triton kernels: X and Y are read once, Δ is written once in 8 bits.

Each program handles one token and stores its four sums; a second kernel adds the sums of a
sample's tokens in a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.residual import CachedDelta
from kernels.triton_rows import (
    INTERPRETED,
    as_samples,
    max_and_sum,
    round_to_int8,
    row_shape,
    row_start,
    token_step,
)

_FORMATS = {None: 0, "int8": 1, "fp8": 2, "bf16": 3}
_SUM_BLOCK = 4096


@triton.jit
def _sum_pair(a, b):
    if INTERPRETED:
        first = tl.sum(a, 0)
        second = tl.sum(b, 0)
    else:
        first, second = tl.reduce((a, b), 0, _combine_sums)
    return first, second


@triton.jit
def _combine_sums(a0, b0, a1, b1):
    return a0 + a1, b0 + b1


@triton.jit
def _read_delta(codes, scales, row, columns, mask, CHANNELS: tl.constexpr, FORMAT: tl.constexpr):
    offsets = row.to(tl.int64) * CHANNELS + columns
    if FORMAT == 3:
        value = tl.load(codes + offsets, mask=mask, other=0.0).to(tl.float32)
    elif FORMAT == 2:
        bits = tl.load(codes + offsets, mask=mask, other=0)
        value = bits.to(tl.float8e4nv, bitcast=True).to(tl.float32) * tl.load(scales + row)
    else:
        value = tl.load(codes + offsets, mask=mask, other=0).to(tl.float32) * tl.load(scales + row)
    return value


@triton.jit
def _residual_delta_kernel(
    x, y, old_codes, old_scale, codes, scale, sums,
    tokens, rows, x_batch, x_token, y_batch, y_token,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, OLD: tl.constexpr, NEW: tl.constexpr,
):
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    mask = columns < CHANNELS
    x_row = tl.load(x + row_start(row, tokens, x_batch, x_token) + columns, mask=mask, other=0.0)
    y_row = tl.load(y + row_start(row, tokens, y_batch, y_token) + columns, mask=mask, other=0.0)
    x_row = x_row.to(tl.float32)
    delta = y_row.to(tl.float32) - x_row
    magnitude = tl.abs(delta)
    if OLD:
        old = _read_delta(old_codes, old_scale, row, columns, mask, CHANNELS, OLD)
        change_sum, old_sum = _sum_pair(tl.abs(delta - old), tl.abs(old))
        tl.store(sums + 2 * rows + row, change_sum)
        tl.store(sums + 3 * rows + row, old_sum)
    largest, delta_sum = max_and_sum(magnitude)
    x_sum = tl.sum(tl.abs(x_row), 0)
    tl.store(sums + row, delta_sum)
    tl.store(sums + rows + row, x_sum)

    out = codes + row.to(tl.int64) * CHANNELS + columns
    if NEW == 3:
        tl.store(out, delta.to(tl.bfloat16), mask=mask)
    elif NEW == 2:
        step, inverse = token_step(largest, delta_sum, 448.0)
        tl.store(scale + row, step)
        bits = (delta * inverse).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        tl.store(out, bits, mask=mask)
    else:
        step, inverse = token_step(largest, delta_sum, 127.0)
        tl.store(scale + row, step)
        tl.store(out, round_to_int8(delta * inverse), mask=mask)


@triton.jit
def _sum_tokens_kernel(sums, stats, tokens, rows, BLOCK: tl.constexpr):
    sample = tl.program_id(0)
    kind = tl.program_id(1)
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    base = sums + kind * rows + sample * tokens
    for start in range(0, tokens, BLOCK):
        total += tl.load(base + start + lanes, mask=start + lanes < tokens, other=0.0)
    tl.store(stats + sample * 4 + kind, tl.sum(total, 0))


@triton.jit
def _apply_delta_kernel(
    x, codes, scale, y, tokens, x_batch, x_token,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, FORMAT: tl.constexpr,
):
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    mask = columns < CHANNELS
    x_row = tl.load(x + row_start(row, tokens, x_batch, x_token) + columns, mask=mask, other=0.0)
    value = x_row.to(tl.float32) + _read_delta(codes, scale, row, columns, mask, CHANNELS, FORMAT)
    out = y + row.to(tl.int64) * CHANNELS + columns
    tl.store(out, value.to(y.dtype.element_ty), mask=mask)


def residual_delta_triton(x, y, cached=None, format="int8"):
    """`residual_delta` for the byte formats on a GPU; see there for shapes and meaning."""
    xs, ys = as_samples(x), as_samples(y)
    batch, tokens, channels = xs.shape
    rows = batch * tokens
    stored = {"int8": torch.int8, "fp8": torch.uint8, "bf16": torch.bfloat16}[format]
    codes = torch.empty((rows, channels), dtype=stored, device=x.device)
    scale = torch.empty(0 if format == "bf16" else rows, dtype=torch.float32, device=x.device)
    sums = torch.empty((4, rows), dtype=torch.float32, device=x.device)
    stats = torch.full((batch, 4), float("nan"), dtype=torch.float32, device=x.device)
    old = cached if cached is not None else CachedDelta(codes, scale, None, ())
    _residual_delta_kernel[(rows,)](
        xs, ys, old.codes, old.scale, codes, scale, sums,
        tokens, rows, xs.stride(0), xs.stride(1), ys.stride(0), ys.stride(1),
        OLD=_FORMATS[old.format], NEW=_FORMATS[format], **row_shape(channels),
    )
    _sum_tokens_kernel[(batch, 2 if cached is None else 4)](
        sums, stats, tokens, rows, BLOCK=_SUM_BLOCK, num_warps=8
    )
    return CachedDelta(codes, scale, format, tuple(x.shape)), stats


def apply_delta_triton(x, cached):
    """`apply_delta` for the byte formats on a GPU."""
    xs = as_samples(x)
    batch, tokens, channels = xs.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _apply_delta_kernel[(batch * tokens,)](
        xs, cached.codes, cached.scale, y, tokens, xs.stride(0), xs.stride(1),
        FORMAT=_FORMATS[cached.format], **row_shape(channels),
    )
    return y


_ROW = {"CHANNELS": 3072, "WIDTH": 4096}
_STREAMS = {"x": "*bf16", "y": "*bf16"}
_STRIDES = dict.fromkeys(("x_batch", "x_token"), "i64")
_DELTA = {
    **_STREAMS, "old_codes": "*i8", "old_scale": "*fp32", "codes": "*i8", "scale": "*fp32",
    "sums": "*fp32", "tokens": "i32", "rows": "i32", **_STRIDES, "y_batch": "i64", "y_token": "i64",
}
_DELTA_FP8 = {**_DELTA, "old_codes": "*u8", "codes": "*u8"}
_APPLY = {
    "x": "*bf16", "codes": "*i8", "scale": "*fp32", "y": "*bf16", "tokens": "i32", **_STRIDES
}
COMPILE_CASES = [
    (_residual_delta_kernel, _DELTA, {**_ROW, "OLD": 1, "NEW": 1}, {"num_warps": 4}),
    (_residual_delta_kernel, _DELTA_FP8, {**_ROW, "OLD": 2, "NEW": 2}, {"num_warps": 4, "min_cc": 89}),
    (_apply_delta_kernel, _APPLY, {**_ROW, "FORMAT": 1}, {"num_warps": 4}),
    (_sum_tokens_kernel, {"sums": "*fp32", "stats": "*fp32", "tokens": "i32", "rows": "i32"},
     {"BLOCK": _SUM_BLOCK}, {"num_warps": 8}),
]
