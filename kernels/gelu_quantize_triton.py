"""GELU + Hadamard + quantization as one Triton kernel, a few tokens a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton_quantize import (
    STORE_INT8,
    STORE_INT8_FAST,
    STORE_NVFP4,
    STORE_NVFP4_FAST,
    STORE_PLAIN,
    STORE_TYPES,
    RowOutput,
    store_row,
)
from kernels.triton_rows import INTERPRETED, as_samples, load_row, row_start


@triton.jit
def gelu_tanh(x, COARSE: tl.constexpr, UNIT: tl.constexpr):
    """x·sigmoid(2u) with u = √(2/π)(x + 0.044715x³), which equals x(1 + tanh u)/2; in units of UNIT, 1 or ½.

    COARSE: by the hardware's tanh, one of its slow instructions instead of two; off by up to 2^-11
    of x/2, an eighth of bfloat16's own spacing.
    """
    if COARSE and not INTERPRETED:
        u = x * (0.7978845608028654 + 0.03567740814183427 * (x * x))
        tanh = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [u], dtype=tl.float32, is_pure=True, pack=1
        )
        part = x * (0.5 / UNIT) if UNIT != 0.5 else x
        y = part * tanh + part
    else:
        # 2·√(2/π)·log2(e) = 2.3022082; exp2 is one instruction where exp is two.
        exponent = x * (2.302208198150447 + 0.10294324 * (x * x))
        y = x * (1.0 / UNIT) / (1.0 + tl.exp2(-exponent))
    return y


@triton.jit(do_not_specialize=["rows", "tokens"])
def _gelu_quantize_kernel(
    x, codes, scales, token_scale, absmax, abssum, rows, tokens, x_batch, x_token,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, KIND: tl.constexpr,
    HADAMARD: tl.constexpr, SPLIT: tl.constexpr, FOUR_OVER_SIX: tl.constexpr, FAST: tl.constexpr,
):
    # One multiplication less, where the scale makes good for it.
    UNIT: tl.constexpr = 0.5 if KIND != 0 and HADAMARD == 128 and FAST and not SPLIT and not FOUR_OVER_SIX else 1.0
    for step in range(TOKENS):
        row = tl.minimum(tl.program_id(0) * TOKENS + step, rows - 1)
        value = load_row(x + row_start(row, tokens, x_batch, x_token), CHANNELS, WIDTH, CHUNKS, True)
        y = ()
        for i in tl.static_range(CHUNKS):
            y = y + (gelu_tanh(value[i], KIND != 0 and not SPLIT, UNIT),)
        store_row(
            y, row, codes, scales, token_scale, absmax, abssum,
            CHANNELS, WIDTH, CHUNKS, KIND, HADAMARD, SPLIT, FOUR_OVER_SIX, FAST, UNIT,
        )


def gelu_quantize_triton(x, quantize="int8", hadamard=1, four_over_six=False):
    """`gelu_quantize` on a GPU; see there for shapes and meaning."""
    xs = as_samples(x)
    out = RowOutput("gelu_quantize", x.shape, x.dtype, x.device, quantize, hadamard, four_over_six)
    with torch.cuda.device_of(xs):
        _gelu_quantize_kernel[out.grid](
            xs, *out.pointers, out.rows, xs.shape[1], xs.stride(0), xs.stride(1), **out.constants
        )
    return out.result()


_TYPES = {"x": "*bf16", **STORE_TYPES, "rows": "i32", "tokens": "i32", "x_batch": "i64", "x_token": "i64"}
_ROW = {"TOKENS": 8, "CHANNELS": 512, "WIDTH": 256, "CHUNKS": 2}
COMPILE_CASES = [
    (_gelu_quantize_kernel, _TYPES, {**_ROW, **STORE_INT8}, {"num_warps": 1}),
    (_gelu_quantize_kernel, _TYPES, {**_ROW, **STORE_INT8_FAST}, {"num_warps": 1, "min_cc": 89}),
    (_gelu_quantize_kernel, {**_TYPES, "codes": "*u8"}, {**_ROW, "CHUNKS": 1, "CHANNELS": 256, **STORE_NVFP4}, {"num_warps": 1}),
    (_gelu_quantize_kernel, {**_TYPES, "codes": "*u8"}, {**_ROW, "CHUNKS": 1, "CHANNELS": 256, **STORE_NVFP4_FAST}, {"num_warps": 1, "min_cc": 89}),
    (_gelu_quantize_kernel, {**_TYPES, "codes": "*bf16"}, {**_ROW, **STORE_PLAIN}, {"num_warps": 1}),
]
