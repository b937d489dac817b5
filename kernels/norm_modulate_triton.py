"""LayerNorm + modulation + Hadamard + quantization as one Triton kernel over one or two streams.

The modulation of a channel is four times as many bytes as a token's value there. Held in registers
over many tokens it would be read once, but then a multiprocessor has room for four tokens at a time,
too few to hide what each waits for. So every program reads it again, from the first-level cache, for
the one or few tokens (TOKENS) that it works on at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels import target
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
from kernels.triton_rows import as_samples, load_chunk, pair_sums, widen, within_row

_AFFINE_BLOCK = 1024


@triton.jit
def _modulation_kernel(
    weight, bias, shift, scale, other_shift, other_scale, gain, offset, channels,
    shift_batch, scale_batch, other_shift_batch, other_scale_batch,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SHIFT: tl.constexpr,
    HAS_SCALE: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):
    """gain, offset: float32 (streams, samples, CHUNKS·WIDTH) in the order of `_load_halves`, zero beyond the channels."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    sample = tl.program_id(0).to(tl.int64)
    shift += sample * shift_batch
    scale += sample * scale_batch
    if tl.program_id(2) == 1:
        shift = other_shift + sample * other_shift_batch
        scale = other_scale + sample * other_scale_batch
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < channels
    factor = tl.where(mask, 1.0, 0.0)
    if HAS_SCALE:
        factor += tl.load(scale + columns, mask=mask, other=0.0).to(tl.float32)
    addend = tl.zeros((BLOCK,), tl.float32)
    if HAS_BIAS:
        addend = tl.load(bias + columns, mask=mask, other=0.0).to(tl.float32) * factor
    if HAS_SHIFT:
        addend += tl.load(shift + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_WEIGHT:
        factor *= tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    within = columns % WIDTH
    halves = columns - within + within % 2 * (WIDTH // 2) + within // 2
    place = (tl.program_id(2) * tl.num_programs(0) + sample) * (CHUNKS * WIDTH) + halves
    padded = columns < CHUNKS * WIDTH
    tl.store(gain + place, factor, mask=padded)
    tl.store(offset + place, addend, mask=padded)


@triton.jit
def _load_halves(pointer, INDEX: tl.constexpr, WIDTH: tl.constexpr):
    """Chunk INDEX of a row of float32 that holds, chunk by chunk, the even channels before the odd ones.

    A thread works on eight channels in turn, so two reads of 16 bytes. Were they neighbours in memory, each read of a
    warp would leave out every other 16 bytes, and take the first-level cache twice as long.
    """
    places = tl.arange(0, WIDTH // 2)[:, None] + tl.arange(0, 2)[None, :] * (WIDTH // 2)
    return tl.reshape(tl.load(pointer + INDEX * WIDTH + places), (WIDTH,))


@triton.jit
def _centre(row, CHANNELS: tl.constexpr):
    """The middle one of three values of a row, to sum distances from.

    Mean and variance then come from one reduction. No value is more than √CHANNELS deviations from
    the mean, so the difference of the two squares loses at most some CHANNELS · 2^-24 of the variance,
    and next to nothing unless two of the three are outliers.
    """
    a = tl.load(row).to(tl.float32)
    b = tl.load(row + CHANNELS // 3).to(tl.float32)
    c = tl.load(row + CHANNELS * 2 // 3).to(tl.float32)
    return tl.maximum(tl.minimum(a, b), tl.minimum(tl.maximum(a, b), c))


# Lengths change nothing that the compiler could use: no other kernel for each of them.
@triton.jit(do_not_specialize=["tokens", "other_tokens", "total", "first"])
def _norm_modulate_kernel(
    x, other, gain, offset, codes, scales, token_scale, absmax, abssum,
    tokens, other_tokens, total, first, x_batch, x_token, other_batch, other_token, eps,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr,
    KIND: tl.constexpr, HADAMARD: tl.constexpr, SPLIT: tl.constexpr, FOUR_OVER_SIX: tl.constexpr,
    FAST: tl.constexpr, EARLY: tl.constexpr,
):
    program = tl.program_id(0)
    sample = tl.program_id(1)
    out = sample * total + first
    modulation = sample
    x += sample.to(tl.int64) * x_batch
    programs = tl.cdiv(tokens, TOKENS)
    second = program >= programs
    if second:
        x = other + sample.to(tl.int64) * other_batch
    program -= tl.where(second, programs, 0)
    out += tl.where(second, tokens, 0)
    modulation += tl.where(second, tl.num_programs(1), 0)
    x_token = tl.where(second, other_token, x_token)
    tokens = tl.where(second, other_tokens, tokens)
    gain += modulation * (CHUNKS * WIDTH)
    offset += modulation * (CHUNKS * WIDTH)
    distances = ()
    means = ()
    rstds = ()
    for step in tl.static_range(TOKENS):
        # The last program of a stream repeats its last token rather than branch.
        token = tl.minimum(program * TOKENS + step, tokens - 1)
        row = x + token.to(tl.int64) * x_token
        centre = _centre(row, CHANNELS)
        total = widen(load_chunk(row, 0, CHANNELS, WIDTH, True)) - centre
        total = within_row(total, 0, CHANNELS, WIDTH)
        distances = distances + (total,)
        squares = total * total
        for i in tl.static_range(1, CHUNKS):
            part = widen(load_chunk(row, i, CHANNELS, WIDTH, True)) - centre
            part = within_row(part, i, CHANNELS, WIDTH)
            distances = distances + (part,)
            total += part
            squares += part * part
        sum_distance, sum_square = pair_sums(total, squares)
        mean = sum_distance / CHANNELS
        rstd = tl.rsqrt(tl.maximum(sum_square / CHANNELS - mean * mean, 0.0) + eps)
        means = means + (mean * rstd,)
        rstds = rstds + (rstd,)
    if EARLY:
        # What lies before depends on the streams alone, so it ran beside `_modulation_kernel`.
        tl.extra.cuda.gdc_wait()
    y = ()
    for i in tl.static_range(CHUNKS):
        factor = _load_halves(gain, i, WIDTH)
        addend = _load_halves(offset, i, WIDTH)
        for step in tl.static_range(TOKENS):
            part = distances[step * CHUNKS + i] * rstds[step] - means[step]
            y = y + (part * factor + addend,)
    for step in tl.static_range(TOKENS):
        normed = ()
        for i in tl.static_range(CHUNKS):
            normed = normed + (y[i * TOKENS + step],)
        token = tl.minimum(program * TOKENS + step, tokens - 1)
        store_row(
            normed, out + token, codes, scales, token_scale, absmax, abssum,
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
    # Hopper and newer: the row kernel may start before the small kernel in front of it has ended.
    early = out.early and (target.probe(device).capability or (0, 0)) >= (9, 0) and hasattr(getattr(tl.extra, "cuda", None), "gdc_wait")
    first = 0
    for start in range(0, len(streams), 2):
        pair = streams[start : start + 2]
        gain, offset = _modulation(weight, bias, pair, batch, channels, device, early, out.constants)
        xs = [as_samples(stream.x) for stream in pair]
        counts = [x.shape[1] for x in xs] + [0] * (2 - len(xs))
        programs = sum(triton.cdiv(count, out.constants["TOKENS"]) for count in counts)
        if programs:
            with torch.cuda.device_of(xs[0]):
                _norm_modulate_kernel[(programs, batch)](
                    xs[0], xs[-1], gain, offset, *out.pointers, *counts, total, first,
                    xs[0].stride(0), xs[0].stride(1), xs[-1].stride(0), xs[-1].stride(1), eps,
                    EARLY=early, **out.constants, **({"launch_pdl": True} if early else {}),
                )
        first += sum(counts)
    return out.result()


def _modulation(weight, bias, streams, batch, channels, device, early, constants):
    """y = LayerNorm(x)·gain + offset: two float32 (streams, batch, CHUNKS·WIDTH), ordered as `_load_halves` reads them."""
    width, chunks = constants["WIDTH"], constants["CHUNKS"]
    gain, offset = torch.empty((2, len(streams), batch, chunks * width), dtype=torch.float32, device=device).unbind(0)
    shifts = _rows([stream.shift for stream in streams], batch, channels, device)
    scales = _rows([stream.scale for stream in streams], batch, channels, device)
    parts = [gain[0] if part is None else part for part in (shifts[0], scales[0], shifts[-1], scales[-1])]
    with torch.cuda.device_of(gain):
        _modulation_kernel[(batch, triton.cdiv(chunks * width, _AFFINE_BLOCK), len(streams))](
            gain if weight is None else weight, gain if bias is None else bias, *parts, gain, offset, channels,
            *[part.stride(0) for part in parts],
            weight is not None, bias is not None, shifts[0] is not None, scales[0] is not None,
            WIDTH=width, CHUNKS=chunks, BLOCK=_AFFINE_BLOCK, EARLY=early,
        )
    return gain, offset


def _rows(parts, batch, channels, device):
    """The streams' shifts or scales in one dtype with contiguous channels; all None, or zeros for those that are."""
    dtypes = {part.dtype for part in parts if part is not None}
    if not dtypes:
        return parts
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    parts = [torch.zeros((batch, channels), device=device) if part is None else part for part in parts]
    parts = [part.to(dtype) for part in parts]
    return [part if part.stride(-1) == 1 else part.contiguous() for part in parts]


_TYPES = {
    "x": "*bf16", "other": "*bf16", "gain": "*fp32", "offset": "*fp32", **STORE_TYPES,
    **dict.fromkeys(("tokens", "other_tokens", "total", "first"), "i32"),
    **dict.fromkeys(("x_batch", "x_token", "other_batch", "other_token"), "i64"), "eps": "fp32",
}
_ROW = {"TOKENS": 2, "CHANNELS": 512, "WIDTH": 256, "CHUNKS": 2, "EARLY": False}
_SMALL_ROW = {"TOKENS": 1, "CHANNELS": 256, "WIDTH": 256, "CHUNKS": 1, "EARLY": False}
_AFFINE_TYPES = {
    **dict.fromkeys(("weight", "bias", "shift", "scale", "other_shift", "other_scale"), "*bf16"),
    "gain": "*fp32", "offset": "*fp32", "channels": "i32",
    **dict.fromkeys(("shift_batch", "scale_batch", "other_shift_batch", "other_scale_batch"), "i64"),
}
COMPILE_CASES = [
    (_norm_modulate_kernel, _TYPES, {**_ROW, **STORE_INT8}, {"num_warps": 1}),
    (_norm_modulate_kernel, _TYPES, {**_ROW, **STORE_INT8_FAST}, {"num_warps": 1, "min_cc": 89}),
    (_norm_modulate_kernel, {**_TYPES, "codes": "*u8"}, {**_SMALL_ROW, **STORE_NVFP4}, {"num_warps": 1}),
    (_norm_modulate_kernel, {**_TYPES, "codes": "*u8"}, {**_SMALL_ROW, **STORE_NVFP4_FAST}, {"num_warps": 1, "min_cc": 89}),
    (_norm_modulate_kernel, {**_TYPES, "codes": "*bf16"}, {**_ROW, **STORE_PLAIN}, {"num_warps": 1}),
    (_modulation_kernel, _AFFINE_TYPES,
     {**dict.fromkeys(("HAS_WEIGHT", "HAS_BIAS", "HAS_SHIFT", "HAS_SCALE"), True), "WIDTH": 256, "CHUNKS": 4, "BLOCK": 1024, "EARLY": False},
     {"num_warps": 4}),
    (_norm_modulate_kernel, _TYPES, {**_ROW, "EARLY": True, **STORE_INT8}, {"num_warps": 1, "min_cc": 90}),
    (_modulation_kernel, _AFFINE_TYPES,
     {**dict.fromkeys(("HAS_WEIGHT", "HAS_BIAS", "HAS_SHIFT", "HAS_SCALE"), True), "WIDTH": 256, "CHUNKS": 4, "BLOCK": 1024, "EARLY": True},
     {"num_warps": 4, "min_cc": 90}),
]
