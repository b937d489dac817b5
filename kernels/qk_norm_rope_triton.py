"""Q/K normalization and rotary embedding as Triton kernels.

Per-head LayerNorm: a program takes one token's q and k for a power-of-two share of the heads, so
48 heads of 64 are three programs of 16 heads without padding. RMSNorm over all heads: one token
a program.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton_rows import load_chunk, row_shape, row_start, row_sum, store_chunk

_VALUES_PER_PROGRAM = 2048


@triton.jit
def _rotate_pairs(value, cos, sin, HEADS: tl.constexpr, DIM: tl.constexpr):
    """(HEADS, DIM) values; cos and sin (DIM,): pair (2j, 2j+1) turns by its own angle."""
    even, odd = tl.split(tl.reshape(value, (HEADS, DIM // 2, 2)))
    cos_even, cos_odd = tl.split(tl.reshape(cos, (DIM // 2, 2)))
    sin_even, sin_odd = tl.split(tl.reshape(sin, (DIM // 2, 2)))
    left = even * cos_even[None, :] - odd * sin_even[None, :]
    right = odd * cos_odd[None, :] + even * sin_odd[None, :]
    return tl.reshape(tl.join(left, right), (HEADS, DIM))


@triton.jit
def _angles(cos, sin, token, DIM: tl.constexpr):
    """cos and sin (DIM,) of a token; of no turn for tokens before the first that turns."""
    place = token * DIM + tl.arange(0, DIM)
    cos_row = tl.load(cos + place, mask=place >= 0, other=1.0)
    sin_row = tl.load(sin + place, mask=place >= 0, other=0.0)
    return cos_row.to(tl.float32), sin_row.to(tl.float32)


@triton.jit
def _layer_norm_heads(
    x, weight, bias, columns, eps, DIM: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
):
    value = tl.load(x).to(tl.float32)
    value -= (tl.sum(value, 1) / DIM)[:, None]
    value *= tl.rsqrt(tl.sum(value * value, 1) / DIM + eps)[:, None]
    if HAS_WEIGHT:
        value *= tl.load(weight + columns).to(tl.float32)[None, :]
    if HAS_BIAS:
        value += tl.load(bias + columns).to(tl.float32)[None, :]
    return value


@triton.jit(do_not_specialize=["tokens", "first"])
def _qk_layer_norm_rope_kernel(
    q, k, q_weight, q_bias, k_weight, k_bias, cos, sin,
    tokens, first, q_batch, q_token, k_batch, k_token, eps,
    HEADS: tl.constexpr, DIM: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_ROPE: tl.constexpr,
):
    row = tl.program_id(0)
    columns = tl.arange(0, DIM)
    place = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None] * DIM + columns[None, :]
    q_place = q + row_start(row, tokens, q_batch, q_token) + place
    k_place = k + row_start(row, tokens, k_batch, k_token) + place
    q_value = _layer_norm_heads(q_place, q_weight, q_bias, columns, eps, DIM, HAS_WEIGHT, HAS_BIAS)
    k_value = _layer_norm_heads(k_place, k_weight, k_bias, columns, eps, DIM, HAS_WEIGHT, HAS_BIAS)
    if HAS_ROPE:
        cos_row, sin_row = _angles(cos, sin, row % tokens - first, DIM)
        q_value = _rotate_pairs(q_value, cos_row, sin_row, HEADS, DIM)
        k_value = _rotate_pairs(k_value, cos_row, sin_row, HEADS, DIM)
    tl.store(q_place, q_value.to(q.dtype.element_ty))
    tl.store(k_place, k_value.to(k.dtype.element_ty))


@triton.jit(do_not_specialize=["tokens", "first"])
def _qk_rms_norm_rope_kernel(
    q, k, q_weight, k_weight, cos, sin,
    tokens, first, q_batch, q_token, k_batch, k_token, eps,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, DIM: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_ROPE: tl.constexpr,
):
    row = tl.program_id(0)
    which = tl.program_id(1)
    x = q + row_start(row, tokens, q_batch, q_token)
    weight = q_weight
    if which == 1:
        x = k + row_start(row, tokens, k_batch, k_token)
        weight = k_weight
    value = ()
    squares = ()
    for i in tl.static_range(CHUNKS):
        chunk = load_chunk(x, i, CHANNELS, WIDTH, True).to(tl.float32)
        value = value + (chunk,)
        squares = squares + (chunk * chunk,)
    rstd = tl.rsqrt(row_sum(squares, CHUNKS) / CHANNELS + eps)
    if HAS_ROPE:
        cos_row, sin_row = _angles(cos, sin, row % tokens - first, DIM)
    for i in tl.static_range(CHUNKS):
        chunk = value[i] * rstd
        if HAS_WEIGHT:
            chunk *= load_chunk(weight, i, CHANNELS, WIDTH).to(tl.float32)
        if HAS_ROPE:
            chunk = tl.reshape(chunk, (WIDTH // DIM, DIM))
            chunk = _rotate_pairs(chunk, cos_row, sin_row, WIDTH // DIM, DIM)
            chunk = tl.reshape(chunk, (WIDTH,))
        store_chunk(x, chunk, i, CHANNELS, WIDTH)


def fits(channels: int, heads: int, norm: str) -> bool:
    """Whether the kernels take these heads: a head's width must be a power of two, 16 to 256."""
    width = channels // heads
    return width & (width - 1) == 0 and 16 <= width <= 256 and (norm == "layer" or channels <= 16384)


def qk_norm_rope_triton(
    q, k, heads, q_weight, q_bias, k_weight, k_bias, norm, eps, cos, sin, first
) -> None:
    """`qk_norm_rope` on a GPU; see there for shapes and meaning."""
    batch, tokens, channels = q.shape
    width = channels // heads
    rope = (q, q) if cos is None else (cos, sin)
    strides = (q.stride(0), q.stride(1), k.stride(0), k.stride(1))
    if norm == "rms":
        weights = [q if part is None else part for part in (q_weight, k_weight)]
        with torch.cuda.device_of(q):
            _qk_rms_norm_rope_kernel[(batch * tokens, 2)](
                q, k, *weights, *rope, tokens, first, *strides, eps,
                DIM=width, HAS_WEIGHT=q_weight is not None, HAS_ROPE=cos is not None,
                **row_shape(channels),
            )
        return
    share = heads & -heads
    while share > 1 and share * width > _VALUES_PER_PROGRAM:
        share //= 2
    affine = [q if part is None else part for part in (q_weight, q_bias, k_weight, k_bias)]
    with torch.cuda.device_of(q):
        _qk_layer_norm_rope_kernel[(batch * tokens, heads // share)](
            q, k, *affine, *rope, tokens, first, *strides, eps,
            HEADS=share, DIM=width, HAS_WEIGHT=q_weight is not None, HAS_BIAS=q_bias is not None,
            HAS_ROPE=cos is not None, num_warps=max(1, share * width // 1024),
        )


_PAIR = {"q": "*bf16", "k": "*bf16"}
_ROPE = {"cos": "*fp32", "sin": "*fp32"}
_PLACE = {
    "tokens": "i32", "first": "i32",
    **dict.fromkeys(("q_batch", "q_token", "k_batch", "k_token"), "i64"), "eps": "fp32",
}
_AFFINE = dict.fromkeys(("q_weight", "q_bias", "k_weight", "k_bias"), "*bf16")
_WEIGHTS = dict.fromkeys(("q_weight", "k_weight"), "*bf16")
COMPILE_CASES = [
    (_qk_layer_norm_rope_kernel, {**_PAIR, **_AFFINE, **_ROPE, **_PLACE},
     {"HEADS": 4, "DIM": 64, "HAS_WEIGHT": True, "HAS_BIAS": True, "HAS_ROPE": True},
     {"num_warps": 1}),
    (_qk_rms_norm_rope_kernel, {**_PAIR, **_WEIGHTS, **_ROPE, **_PLACE},
     {"CHANNELS": 768, "WIDTH": 256, "CHUNKS": 3, "DIM": 128, "HAS_WEIGHT": True,
      "HAS_ROPE": True}, {"num_warps": 1}),
]
