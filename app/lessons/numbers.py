"""NVFP4, INT8 and the Hadamard rotation on a handful of values, in numpy.

The engine's definitions live in `kernels/` and need torch. The lessons must work on a page that
never loads torch, so the same arithmetic stands here once more for 16 to a few thousand values;
`tests/app/test_lessons_numbers.py` holds both equal.

Formats: NVFP4 = E2M1 codes, one E4M3 scale per 16 values, one float32 scale per token
(NVIDIA's NVFP4 layout with the tensor scale taken per token, as in `kernels`). INT8 = one
float32 scale per token, symmetric, 127 levels each side.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

BLOCK = 16
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=np.float32)
E4M3_MAX = np.float32(448.0)
INT8_MAX = np.float32(127.0)


class Quantized(NamedTuple):
    """A token after quantization.

    values: float32 (K,), what the codes stand for; codes: int (K,), the signed index into E2M1
    (NVFP4) or the integer (INT8); ruler: float32 (K,), the distance that one unit of the code's
    grid is worth at each value (block scale x token scale, or the token's one scale).
    """

    values: np.ndarray
    codes: np.ndarray
    ruler: np.ndarray


def round_e4m3(x: np.ndarray) -> np.ndarray:
    """float32 >= 0 of any shape -> the nearest E4M3 value (ties to even, at most 448)."""
    x = np.minimum(np.asarray(x, dtype=np.float32), E4M3_MAX)
    # 2**-6 is the smallest normal number; below it the steps stay 2**-9 wide.
    exponent = np.maximum(np.frexp(x)[1] - 1, -6)
    step = np.ldexp(np.float32(1.0), exponent - 3)
    return np.minimum(np.rint(x / step) * step, E4M3_MAX).astype(np.float32)


def round_e2m1(x: np.ndarray) -> np.ndarray:
    """float32 of any shape -> signed index of the nearest E2M1 value; ties go to the even code."""
    size = np.abs(np.asarray(x, dtype=np.float32))
    # Midpoints of the grid, and which of them belong to the upper neighbour (the even code).
    middles = (E2M1[1:] + E2M1[:-1]) / 2
    upper_is_even = np.arange(1, 8) % 2 == 0
    beyond = np.where(upper_is_even, size[..., None] >= middles, size[..., None] > middles)
    return np.where(np.signbit(x), -1, 1) * beyond.sum(-1)


def nvfp4(token: np.ndarray) -> Quantized:
    """float32 (K,), K divisible by 16 -> the token in NVFP4."""
    token = _token(token)
    if len(token) % BLOCK:
        raise ValueError(f"NVFP4 needs whole blocks of {BLOCK} values, got {len(token)} values.")
    blocks = token.reshape(-1, BLOCK)
    token_scale = np.float32(np.abs(token).max(initial=0.0) / np.float32(6.0 * 448.0))
    if token_scale == 0.0:
        zeros = np.zeros_like(token)
        return Quantized(zeros, zeros.astype(int), zeros)
    block_scale = round_e4m3(np.abs(blocks).max(1) / np.float32(6.0) / token_scale)
    ruler = (block_scale * token_scale)[:, None]
    codes = round_e2m1(np.divide(blocks, ruler, out=np.zeros_like(blocks), where=ruler > 0))
    values = np.sign(codes) * E2M1[np.abs(codes)] * ruler
    return Quantized(
        values.reshape(-1).astype(np.float32),
        codes.reshape(-1),
        np.broadcast_to(ruler, blocks.shape).reshape(-1).astype(np.float32),
    )


def int8(token: np.ndarray) -> Quantized:
    """float32 (K,) -> the token in INT8, one scale for all its values."""
    token = _token(token)
    scale = np.float32(np.abs(token).max(initial=0.0) / INT8_MAX)
    if scale == 0.0:
        zeros = np.zeros_like(token)
        return Quantized(zeros, zeros.astype(int), zeros)
    codes = np.clip(np.rint(token / scale), -127, 127).astype(int)
    return Quantized((codes * scale).astype(np.float32), codes, np.full_like(token, scale))


def hadamard_block(width: int) -> int:
    """The widest rotation among 128, 64, 32, 16 that divides `width` (1 = none fits)."""
    return next((block for block in (128, 64, 32, 16) if width % block == 0), 1)


def hadamard(token: np.ndarray, block: int | None = None) -> np.ndarray:
    """Rotate float32 (..., K) by the orthonormal Walsh-Hadamard matrix, block by block."""
    token = np.asarray(token, dtype=np.float32)
    block = hadamard_block(token.shape[-1]) if block is None else block
    rotated = token.reshape(-1, block)
    width = 1
    while width < block:
        halves = rotated.reshape(-1, block // (2 * width), 2, width)
        rotated = np.concatenate(
            (halves[:, :, :1] + halves[:, :, 1:], halves[:, :, :1] - halves[:, :, 1:]), axis=2
        ).reshape(-1, block)
        width *= 2
    return (rotated / np.sqrt(np.float32(block))).reshape(token.shape)


def relative_error(got: np.ndarray, wanted: np.ndarray) -> float:
    """Root of the squared distance over the squared size; NaN where nothing was wanted."""
    size = float(np.linalg.norm(wanted))
    return float(np.linalg.norm(np.asarray(got) - wanted)) / size if size else float("nan")


def outlier_ratio(token: np.ndarray) -> float:
    """max|x| / mean|x| (paper, equation 12) of one token; NaN for an all-zero one."""
    mean = float(np.abs(token).mean())
    return float(np.abs(token).max()) / mean if mean else float("nan")


def _token(values: np.ndarray) -> np.ndarray:
    token = np.asarray(values, dtype=np.float32)
    if token.ndim != 1 or not np.isfinite(token).all():
        raise ValueError("Expected one row of finite numbers; clear the row and try again.")
    return token
