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
    as_samples,
    load_chunk,
    load_row,
    round_to_int8,
    row_max_and_sum,
    row_shape,
    row_start,
    row_sum,
    store_chunk,
    token_step,
)

_FORMATS = {None: 0, "int8": 1, "fp8": 2, "bf16": 3}
_SUM_BLOCK = 4096


@triton.jit
def _read_delta(
    codes, scales, row, INDEX: tl.constexpr,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, FORMAT: tl.constexpr,
):
    chunk = load_chunk(codes + row.to(tl.int64) * CHANNELS, INDEX, CHANNELS, WIDTH)
    if FORMAT == 2:
        chunk = chunk.to(tl.float8e4nv, bitcast=True)
    value = chunk.to(tl.float32)
    if FORMAT != 3:
        value = value * tl.load(scales + row)
    return value


@triton.jit
def _magnitude_sum(row, CHUNKS: tl.constexpr):
    magnitudes = ()
    for i in tl.static_range(CHUNKS):
        magnitudes = magnitudes + (tl.abs(row[i]),)
    return row_sum(magnitudes, CHUNKS)


@triton.jit(do_not_specialize=["tokens", "rows"])
def _residual_delta_kernel(
    x, y, old_codes, old_scale, codes, scale, sums,
    tokens, rows, x_batch, x_token, y_batch, y_token,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr,
    OLD: tl.constexpr, NEW: tl.constexpr,
):
    row = tl.program_id(0)
    x_row = load_row(x + row_start(row, tokens, x_batch, x_token), CHANNELS, WIDTH, CHUNKS)
    y_row = load_row(y + row_start(row, tokens, y_batch, y_token), CHANNELS, WIDTH, CHUNKS)
    delta = ()
    for i in tl.static_range(CHUNKS):
        delta = delta + (y_row[i] - x_row[i],)
    largest, delta_sum = row_max_and_sum(delta, CHUNKS)
    tl.store(sums + row, delta_sum)
    tl.store(sums + rows + row, _magnitude_sum(x_row, CHUNKS))
    if OLD:
        change = ()
        old = ()
        for i in tl.static_range(CHUNKS):
            part = _read_delta(old_codes, old_scale, row, i, CHANNELS, WIDTH, OLD)
            old = old + (part,)
            change = change + (delta[i] - part,)
        tl.store(sums + 2 * rows + row, _magnitude_sum(change, CHUNKS))
        tl.store(sums + 3 * rows + row, _magnitude_sum(old, CHUNKS))

    inverse = 1.0
    if NEW == 1:
        step, inverse = token_step(largest, delta_sum, 127.0)
        tl.store(scale + row, step)
    elif NEW == 2:
        step, inverse = token_step(largest, delta_sum, 448.0)
        tl.store(scale + row, step)
    out = codes + row.to(tl.int64) * CHANNELS
    for i in tl.static_range(CHUNKS):
        if NEW == 1:
            store_chunk(out, round_to_int8(delta[i] * inverse), i, CHANNELS, WIDTH)
        elif NEW == 2:
            bits = (delta[i] * inverse).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
            store_chunk(out, bits, i, CHANNELS, WIDTH)
        else:
            store_chunk(out, delta[i], i, CHANNELS, WIDTH)


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


@triton.jit(do_not_specialize=["tokens"])
def _apply_delta_kernel(
    x, codes, scale, y, tokens, x_batch, x_token,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, FORMAT: tl.constexpr,
):
    row = tl.program_id(0)
    start = row_start(row, tokens, x_batch, x_token)
    for i in tl.static_range(CHUNKS):
        value = load_chunk(x + start, i, CHANNELS, WIDTH).to(tl.float32)
        value += _read_delta(codes, scale, row, i, CHANNELS, WIDTH, FORMAT)
        store_chunk(y + row.to(tl.int64) * CHANNELS, value, i, CHANNELS, WIDTH)


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
    with torch.cuda.device_of(x):
        _residual_delta_kernel[(rows,)](
            xs, ys, old.codes, old.scale, codes, scale, sums,
            tokens, rows, xs.stride(0), xs.stride(1), ys.stride(0), ys.stride(1),
            OLD=_FORMATS[old.format], NEW=_FORMATS[format], **row_shape(channels),
        )
    with torch.cuda.device_of(x):
        _sum_tokens_kernel[(batch, 2 if cached is None else 4)](
            sums, stats, tokens, rows, BLOCK=_SUM_BLOCK, num_warps=8
        )
    return CachedDelta(codes, scale, format, tuple(x.shape)), stats


def apply_delta_triton(x, cached):
    """`apply_delta` for the byte formats on a GPU."""
    xs = as_samples(x)
    batch, tokens, channels = xs.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    with torch.cuda.device_of(x):
        _apply_delta_kernel[(batch * tokens,)](
            xs, cached.codes, cached.scale, y, tokens, xs.stride(0), xs.stride(1),
            FORMAT=_FORMATS[cached.format], **row_shape(channels),
        )
    return y


_ROW = {"CHANNELS": 512, "WIDTH": 256, "CHUNKS": 2}
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
    (_residual_delta_kernel, _DELTA, {**_ROW, "OLD": 1, "NEW": 1}, {"num_warps": 1}),
    (_residual_delta_kernel, _DELTA_FP8, {**_ROW, "OLD": 2, "NEW": 2}, {"num_warps": 1, "min_cc": 89}),
    (_apply_delta_kernel, _APPLY, {**_ROW, "FORMAT": 1}, {"num_warps": 1}),
    (_sum_tokens_kernel, {"sums": "*fp32", "stats": "*fp32", "tokens": "i32", "rows": "i32"},
     {"BLOCK": _SUM_BLOCK}, {"num_warps": 8}),
]
