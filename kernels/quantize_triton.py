"""Plain quantizers as one Triton kernel, a few tokens a program: read, rotate, round, store.

The statistics of `store_row` come from the same read. The rotation, the rounding and the row walk
are shared with the fused kernels (`triton_quantize.py`, `triton_nvfp4.py`, `triton_rows.py`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.activations import Int8Activation, Nvfp4Activation, as_tokens
from kernels.triton_quantize import (
    STORE_INT8,
    STORE_INT8_FAST,
    STORE_NVFP4,
    STORE_NVFP4_FAST,
    STORE_TYPES,
    RowOutput,
    store_row,
)
from kernels.triton_rows import load_chunk, load_row


@triton.jit(do_not_specialize=["rows"])
def _quantize_kernel(
    x, codes, scales, token_scale, absmax, abssum, rows, x_token,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, KIND: tl.constexpr,
    HADAMARD: tl.constexpr, SPLIT: tl.constexpr, FOUR_OVER_SIX: tl.constexpr, FAST: tl.constexpr,
):
    for step in range(TOKENS):
        row = tl.minimum(tl.program_id(0) * TOKENS + step, rows - 1)
        token = x + row.to(tl.int64) * x_token
        if KIND != 0 and HADAMARD == 128 and FAST and not SPLIT and not FOUR_OVER_SIX:
            # `store_row` takes the values as they are, two to a register.
            y = ()
            for i in tl.static_range(CHUNKS):
                y = y + (load_chunk(token, i, CHANNELS, WIDTH, True),)
        else:
            y = load_row(token, CHANNELS, WIDTH, CHUNKS, True)
        store_row(
            y, row, codes, scales, token_scale, absmax, abssum,
            CHANNELS, WIDTH, CHUNKS, KIND, HADAMARD, SPLIT, FOUR_OVER_SIX, FAST,
        )


def quantize_int8_triton(x: torch.Tensor, hadamard: int = 1) -> Int8Activation:
    """`quantize_int8` on a GPU."""
    return _launch(x, "int8", hadamard, False)


def quantize_nvfp4_triton(x: torch.Tensor, hadamard: int = 1, four_over_six: bool = False) -> Nvfp4Activation:
    """`quantize_nvfp4` on a GPU."""
    return _launch(x, "nvfp4", hadamard, four_over_six)


def _launch(x, quantize, hadamard, four_over_six):
    tokens = as_tokens(x)
    if tokens.stride(1) != 1:
        tokens = tokens.contiguous()
    out = RowOutput("quantize", x.shape, x.dtype, x.device, quantize, hadamard, four_over_six)
    with torch.cuda.device_of(tokens):
        _quantize_kernel[out.grid](tokens, *out.pointers, out.rows, tokens.stride(0), **out.constants)
    return out.result()


_TYPES = {"x": "*bf16", **STORE_TYPES, "rows": "i32", "x_token": "i32"}
_ROW = {"TOKENS": 8, "CHANNELS": 256, "WIDTH": 256, "CHUNKS": 1}
COMPILE_CASES = [
    (_quantize_kernel, _TYPES, {**_ROW, **STORE_INT8}, {"num_warps": 1}),
    (_quantize_kernel, _TYPES, {**_ROW, **STORE_INT8_FAST}, {"num_warps": 1, "min_cc": 89}),
    (_quantize_kernel, {**_TYPES, "codes": "*u8"}, {**_ROW, **STORE_NVFP4}, {"num_warps": 1}),
    (_quantize_kernel, {**_TYPES, "codes": "*u8"}, {**_ROW, **STORE_NVFP4_FAST}, {"num_warps": 1, "min_cc": 89}),
]
