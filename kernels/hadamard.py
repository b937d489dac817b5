"""The block Hadamard rotation that spreads outliers before quantization.

H is the natural-order (Sylvester) Hadamard matrix divided by the square root of its size, so it
is orthonormal and its own inverse: (x H)(W H)^T = x W^T. The weights are rotated once, offline;
activations on the fly.
"""

from __future__ import annotations

import functools
import math

import torch

BLOCKS = (128, 64, 32, 16)


def hadamard_block(size: int) -> int:
    """The largest of 128, 64, 32, 16 that divides `size`, or 1 (no rotation)."""
    return next((block for block in BLOCKS if size % block == 0), 1)


def hadamard(x: torch.Tensor, block: int) -> torch.Tensor:
    """Rotate consecutive blocks of the last dimension, in float32.

    x: (..., K) of any float dtype; K is a multiple of `block` (1, 16, 32, 64 or 128). Returns a new
    float32 tensor of the same shape (float64 stays float64, for measurements); for block 1 the
    values of x. Raises ValueError for a block that does not fit.
    """
    check_block(x.shape[-1], block)
    values = x if x.dtype == torch.float64 else x.to(torch.float32)
    if block == 1:
        return values.clone() if values is x else values
    # The first four stages as one small product, the others as butterflies: a single product
    # with the 128-wide matrix takes 2.5 times as long on a CPU.
    inner = min(block, 16)
    flat = values.reshape(-1, inner) @ _signs(inner, values.dtype, x.device).mul(1.0 / math.sqrt(block))
    span = inner
    while span < block:
        pair = flat.view(-1, 2, span)
        flat = torch.empty_like(pair)
        torch.add(pair[:, 0], pair[:, 1], out=flat[:, 0])
        torch.sub(pair[:, 0], pair[:, 1], out=flat[:, 1])
        span *= 2
    return flat.view(x.shape)


def check_block(size: int, block: int) -> None:
    """Raise ValueError unless `block` is 1 or one of BLOCKS and divides `size`."""
    if block not in (1, *BLOCKS) or size % block:
        raise ValueError(
            "A Hadamard block must be 1, 16, 32, 64 or 128 and divide the last dimension: "
            f"got block {block} for a last dimension of {size}."
        )


@functools.lru_cache(maxsize=32)
def _signs(block: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The unnormalised matrix (block, block) with entries +1 and -1; exact in every dtype."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < block:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix.to(device=device, dtype=dtype)
