"""LayerNorm + modulation + Hadamard + quantization as one Triton kernel.

The modulation of a channel is twice as many bytes as a token's value there, and it would be read
again for every token: a program keeps it in registers over several tokens of one sample.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton_quantize import (
    STORE_INT8,
    STORE_NVFP4,
    STORE_NVFP4_FAST,
    STORE_PLAIN,
    STORE_TYPES,
    RowOutput,
    store_row,
)
from kernels.triton_rows import as_samples, load_chunk, load_row, row_sum

_AFFINE_BLOCK = 1024


@triton.jit
def _modulation_kernel(
    weight, bias, shift, scale, gain, offset, channels, shift_batch, scale_batch,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SHIFT: tl.constexpr,
    HAS_SCALE: tl.constexpr, BLOCK: tl.constexpr,
):
    sample = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < channels
    factor = tl.full((BLOCK,), 1.0, tl.float32)
    if HAS_SCALE:
        row = scale + sample.to(tl.int64) * scale_batch
        factor += tl.load(row + columns, mask=mask, other=0.0).to(tl.float32)
    addend = tl.zeros((BLOCK,), tl.float32)
    if HAS_BIAS:
        addend = tl.load(bias + columns, mask=mask, other=0.0).to(tl.float32) * factor
    if HAS_SHIFT:
        row = shift + sample.to(tl.int64) * shift_batch
        addend += tl.load(row + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_WEIGHT:
        factor *= tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(gain + sample * channels + columns, factor, mask=mask)
    tl.store(offset + sample * channels + columns, addend, mask=mask)


@triton.jit
def _norm_modulate_kernel(
    x, gain, offset, codes, scales, token_scale, absmax, abssum,
    tokens, total, first, x_batch, x_token, eps, TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, KIND: tl.constexpr,
    HADAMARD: tl.constexpr, SPLIT: tl.constexpr, FOUR_OVER_SIX: tl.constexpr, FAST: tl.constexpr,
):
    sample = tl.program_id(1)
    x += sample.to(tl.int64) * x_batch
    factor = ()
    addend = ()
    for i in tl.static_range(CHUNKS):
        factor = factor + (load_chunk(gain + sample * CHANNELS, i, CHANNELS, WIDTH),)
        addend = addend + (load_chunk(offset + sample * CHANNELS, i, CHANNELS, WIDTH),)
    for step in range(TOKENS):
        # The last program repeats the last token rather than branch.
        token = tl.minimum(tl.program_id(0) * TOKENS + step, tokens - 1)
        value = load_row(x + token * x_token, CHANNELS, WIDTH, CHUNKS, True)
        mean = row_sum(value, CHUNKS) / CHANNELS
        centred = ()
        squares = ()
        for i in tl.static_range(CHUNKS):
            part = value[i] - mean
            if (i + 1) * WIDTH > CHANNELS:
                part = tl.where(i * WIDTH + tl.arange(0, WIDTH) < CHANNELS, part, 0.0)
            centred = centred + (part,)
            squares = squares + (part * part,)
        rstd = tl.rsqrt(row_sum(squares, CHUNKS) / CHANNELS + eps)
        y = ()
        for i in tl.static_range(CHUNKS):
            y = y + (centred[i] * (factor[i] * rstd) + addend[i],)
        store_row(
            y, sample * total + first + token, codes, scales, token_scale, absmax, abssum,
            CHANNELS, WIDTH, CHUNKS, KIND, HADAMARD, SPLIT, FOUR_OVER_SIX, FAST,
        )


def norm_modulate_triton(
    streams, weight=None, bias=None, eps=1e-5, quantize=None, hadamard=1, four_over_six=False
):
    """`norm_modulate` on a GPU; see there for shapes and meaning."""
    batch, _, channels = streams[0].x.shape
    total = sum(stream.x.shape[1] for stream in streams)
    device, dtype = streams[0].x.device, streams[0].x.dtype
    out = RowOutput("norm_modulate", (batch, total, channels), dtype, device, quantize, hadamard, four_over_six)
    first = 0
    for x, shift, scale in streams:
        xs = as_samples(x)
        tokens = xs.shape[1]
        gain, offset = _modulation(weight, bias, shift, scale, batch, channels, device)
        with torch.cuda.device_of(xs):
            _norm_modulate_kernel[(triton.cdiv(tokens, out.constants["TOKENS"]), batch)](
                xs, gain, offset, *out.pointers,
                tokens, total, first, xs.stride(0), xs.stride(1), eps, **out.constants,
            )
        first += tokens
    return out.result()


def _modulation(weight, bias, shift, scale, batch, channels, device):
    gain, offset = torch.empty((2, batch, channels), dtype=torch.float32, device=device).unbind(0)
    shift, scale = [
        part if part is None or part.stride(-1) == 1 else part.contiguous()
        for part in (shift, scale)
    ]
    with torch.cuda.device_of(gain):
        _modulation_kernel[(batch, triton.cdiv(channels, _AFFINE_BLOCK))](
            *[gain if part is None else part for part in (weight, bias, shift, scale)],
            gain, offset, channels,
            0 if shift is None else shift.stride(0), 0 if scale is None else scale.stride(0),
            weight is not None, bias is not None, shift is not None, scale is not None,
            BLOCK=_AFFINE_BLOCK,
        )
    return gain, offset


_TYPES = {
    "x": "*bf16", "gain": "*fp32", "offset": "*fp32", **STORE_TYPES, "tokens": "i32",
    "total": "i32", "first": "i32", "x_batch": "i64", "x_token": "i64", "eps": "fp32",
}
_ROW = {"TOKENS": 8, "CHANNELS": 512, "WIDTH": 256, "CHUNKS": 2}
_AFFINE_TYPES = {
    **dict.fromkeys(("weight", "bias", "shift", "scale"), "*bf16"), "gain": "*fp32",
    "offset": "*fp32", "channels": "i32", "shift_batch": "i64", "scale_batch": "i64",
}
COMPILE_CASES = [
    (_norm_modulate_kernel, _TYPES, {**_ROW, **STORE_INT8}, {"num_warps": 1}),
    (_norm_modulate_kernel, {**_TYPES, "codes": "*u8"}, {**_ROW, "CHUNKS": 1, "CHANNELS": 256, **STORE_NVFP4}, {"num_warps": 1}),
    (_norm_modulate_kernel, {**_TYPES, "codes": "*u8"}, {**_ROW, "CHUNKS": 1, "CHANNELS": 256, **STORE_NVFP4_FAST}, {"num_warps": 1, "min_cc": 89}),
    (_norm_modulate_kernel, {**_TYPES, "codes": "*bf16"}, {**_ROW, **STORE_PLAIN}, {"num_warps": 1}),
    (_modulation_kernel, _AFFINE_TYPES,
     {**dict.fromkeys(("HAS_WEIGHT", "HAS_BIAS", "HAS_SHIFT", "HAS_SCALE"), True), "BLOCK": 1024},
     {"num_warps": 4}),
]
