"""How the row-wise Triton kernels walk a tensor: one program a token, all its channels at once.

A token fits in the registers of one program, so statistics, rotation and rounding need a single
read. It is held as a tuple of equal chunks, because a Triton tensor has a power of two of values:
3,072 channels are 3 chunks of 1,024 and waste nothing, where one tensor of 4,096 would spend a
quarter of the instructions on padding. Many small programs, not few large ones, keep enough
reads in flight to fill the memory bus.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernels import formats
from kernels.target import interpreting

_MAX_CHANNELS = 16384
# A chunk gives each thread 8, 16 or 32 values (one to four 16-byte reads); the rotation's shortest
# product needs 16 runs of 16.
_CHUNK_WIDTHS = (256, 512, 1024)
# Up to 96 float32 values a thread stay in registers without spilling.
_MOST_VALUES = 96

# One reduction of a pair is one trip through shared memory, but the interpreter walks it value by
# value; there, two plain reductions stand in.
INTERPRETED = tl.constexpr(interpreting())
# Adding 1.5·2^23 leaves round-half-even(x) in the low bits of a float32, for |x| < 2^22. The
# hardware's own float to integer conversion runs at an eighth of the speed of an addition.
INTEGER_MAGIC = tl.constexpr(12582912.0)
SMALLEST_AMAX = tl.constexpr(formats.SMALLEST_AMAX)


def as_samples(x: torch.Tensor) -> torch.Tensor:
    """(batch, tokens, C) view of (batch, ..., C) with contiguous channels; copies only if it must."""
    samples = x.unsqueeze(1) if x.dim() == 2 else x.flatten(1, -2)
    return samples if samples.stride(-1) == 1 else samples.contiguous()


def row_shape(channels: int, values: int | None = None) -> dict[str, int]:
    """Launch constants of a row kernel: CHANNELS, WIDTH of a chunk, CHUNKS, and num_warps.

    Without `values` the fewest warps that hold the row, then the width that pads least, then the
    widest chunk. Else about `values` values a thread, with little padding, in the narrowest chunks:
    one 16-byte read a thread, which `hadamard_128` takes without moving it.
    Raises ValueError for a row that does not fit in one program.
    """
    if channels > _MAX_CHANNELS:
        raise ValueError(
            f"A Triton row kernel takes at most {_MAX_CHANNELS} channels, but the tensor has "
            f"{channels}; call the PyTorch twin for it."
        )
    shapes = []
    for warps in (1, 2, 4, 8, 16) if values else (1, 2, 4, 8):
        for per_warp in _CHUNK_WIDTHS[:1] if values else _CHUNK_WIDTHS:
            width = warps * per_warp
            chunks = -(-channels // width)
            held = chunks * per_warp // 32
            if held <= _MOST_VALUES:
                padding = chunks * width / channels - 1.0
                badness = abs(math.log2(held / values)) + 5.0 * padding if values else (warps, padding, -width)
                shapes.append((badness, width, chunks, warps))
    _, width, chunks, warps = min(shapes)
    return {"CHANNELS": channels, "WIDTH": width, "CHUNKS": chunks, "num_warps": warps}


@triton.jit
def row_start(row, tokens, batch_stride, token_stride):
    """Offset of a row of a (batch, tokens, C) tensor; 64-bit, as large videos need it."""
    sample = (row // tokens).to(tl.int64)
    return sample * batch_stride + (row - sample * tokens) * token_stride


@triton.jit
def load_chunk(
    pointer, INDEX: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr,
    STREAM: tl.constexpr = False,
):
    """Chunk INDEX of the row at `pointer`, in its own dtype, zero beyond CHANNELS.

    STREAM: pass by the L1 cache, for a row that is read once beside vectors that are reused.
    """
    columns = INDEX * WIDTH + tl.arange(0, WIDTH)
    whole: tl.constexpr = (INDEX + 1) * WIDTH <= CHANNELS
    if whole and STREAM:
        chunk = tl.load(pointer + columns, cache_modifier=".cg")
    elif whole:
        chunk = tl.load(pointer + columns)
    elif STREAM:
        chunk = tl.load(pointer + columns, mask=columns < CHANNELS, other=0, cache_modifier=".cg")
    else:
        chunk = tl.load(pointer + columns, mask=columns < CHANNELS, other=0)
    return chunk


@triton.jit
def store_chunk(pointer, chunk, INDEX: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """Store chunk INDEX of the row at `pointer`, in the pointer's dtype."""
    columns = INDEX * WIDTH + tl.arange(0, WIDTH)
    value = chunk.to(pointer.dtype.element_ty)
    if (INDEX + 1) * WIDTH <= CHANNELS:
        tl.store(pointer + columns, value)
    else:
        tl.store(pointer + columns, value, mask=columns < CHANNELS)


@triton.jit
def load_row(
    pointer, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr,
    STREAM: tl.constexpr = False,
):
    """The row at `pointer` as CHUNKS float32 tensors (WIDTH,)."""
    row = ()
    for i in tl.static_range(CHUNKS):
        row = row + (load_chunk(pointer, i, CHANNELS, WIDTH, STREAM).to(tl.float32),)
    return row


@triton.jit
def widen(x):
    """Float32 of x. A pair of bfloat16 in one register takes one instruction each, not three.

    Only before a reduction: where the rotation follows, the compiler prefers to work everything out
    twice, once for each layout of the row.
    """
    if INTERPRETED or x.dtype != tl.bfloat16:
        wide = x.to(tl.float32)
    else:
        wide = tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=f,=f,r", [x], dtype=tl.float32,
            is_pure=True, pack=2,
        )
    return wide


@triton.jit
def within_row(chunk, INDEX: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """Chunk INDEX with zeros beyond CHANNELS."""
    if (INDEX + 1) * WIDTH > CHANNELS:
        chunk = tl.where(INDEX * WIDTH + tl.arange(0, WIDTH) < CHANNELS, chunk, 0.0)
    return chunk


@triton.jit
def row_sum(row, CHUNKS: tl.constexpr):
    """Sum over a row: chunk onto chunk, then within the chunk."""
    total = row[0]
    for i in tl.static_range(1, CHUNKS):
        total += row[i]
    return tl.sum(total, 0)


@triton.jit
def pair_sums(a, b):
    """The sums of two tensors (WIDTH,), in one trip through shared memory."""
    return _reduced_pair(a, b, False)


@triton.jit
def _reduced_pair(a, b, MAX: tl.constexpr):
    """The sum of a, or its maximum, and the sum of b."""
    if INTERPRETED:
        first = tl.max(a, 0) if MAX else tl.sum(a, 0)
        second = tl.sum(b, 0)
    else:
        first, second = tl.reduce((a, b), 0, _combine_max_sum if MAX else _combine_sums)
    return first, second


@triton.jit
def _combine_sums(first_a, second_a, first_b, second_b):
    return first_a + first_b, second_a + second_b


@triton.jit
def _combine_max_sum(max_a, sum_a, max_b, sum_b):
    return tl.maximum(max_a, max_b), sum_a + sum_b


@triton.jit
def row_max(row, CHUNKS: tl.constexpr):
    """Largest magnitude of a row; NaN is passed over."""
    largest = tl.abs(row[0])
    for i in tl.static_range(1, CHUNKS):
        largest = tl.maximum(largest, tl.abs(row[i]))
    return tl.max(largest, 0)


@triton.jit
def row_max_and_sum(row, CHUNKS: tl.constexpr):
    """Largest magnitude and sum of magnitudes of a row. Only the sum tells of NaN."""
    largest = tl.abs(row[0])
    total = tl.abs(row[0])
    for i in tl.static_range(1, CHUNKS):
        largest = tl.maximum(largest, tl.abs(row[i]))
        total += tl.abs(row[i])
    return _reduced_pair(largest, total, True)


@triton.jit
def is_finite(x):
    """Elementwise; a sum of magnitudes is finite only if every term is."""
    return x - x == 0.0


@triton.jit
def token_step(absmax, abssum, TOP: tl.constexpr):
    """A token's step and its reciprocal for codes up to TOP; NaN and Inf give a NaN step."""
    inverse = tl.div_rn(1.0, tl.maximum(absmax, SMALLEST_AMAX)) * TOP
    return tl.where(is_finite(abssum), absmax * (1.0 / TOP), float("nan")), inverse


@triton.jit
def round_to_int8(x):
    """Round half to even and truncate to int8; |x| must be at most 127."""
    return (x + INTEGER_MAGIC).to(tl.int32, bitcast=True).to(tl.int8)
