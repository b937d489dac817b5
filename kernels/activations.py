"""Quantized activations as values, and the token statistics the policy asks for.

Both are per token (one row of the flattened input), never per batch, so samples do not couple.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.formats import BLOCK, decode_e2m1, decode_e4m3, unpack_nibbles

# The Triton row kernels hold a whole token in the registers of one program; beyond this, PyTorch.
LARGEST_ROW = 16384


class Nvfp4Activation(NamedTuple):
    """NVFP4 activations after the rotation.

    codes: uint8 (M, Kp/2), Kp = K rounded up to a multiple of 16, the tail zero.
    scales: uint8 (M, Kp/16), E4M3 bits of the block scales.
    token_scale: float32 (M,). The value is code x block scale x token scale.
    absmax, abssum: float32 (M,), max|x| and sum|x| of each token before the rotation.
    shape: the shape (..., K) of the input.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    token_scale: torch.Tensor
    absmax: torch.Tensor
    abssum: torch.Tensor
    shape: tuple[int, ...]


class Int8Activation(NamedTuple):
    """INT8 activations after the rotation: codes int8 (M, K), the value is code x token_scale.

    The other fields are those of `Nvfp4Activation`.
    """

    codes: torch.Tensor
    token_scale: torch.Tensor
    absmax: torch.Tensor
    abssum: torch.Tensor
    shape: tuple[int, ...]


def dequantize(act: Nvfp4Activation | Int8Activation, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The rotated values that the codes stand for, in the input's shape.

    Rotate once more with `kernels.hadamard` to return to the input's own axes.
    """
    values = act.codes.to(torch.float32) if isinstance(act, Int8Activation) else block_values(act)
    return (values * act.token_scale[:, None]).to(dtype).reshape(act.shape)


def block_values(act: Nvfp4Activation) -> torch.Tensor:
    """code x block scale, float32 (M, K), without the token scale: at most 6 significant bits."""
    return nvfp4_values(act.codes, act.scales)[:, : act.shape[-1]]


def nvfp4_values(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Packed codes (R, Kp/2) and E4M3 bits (R, Kp/16) -> float32 (R, Kp) without any outer scale."""
    values = decode_e2m1(unpack_nibbles(codes)).view(*scales.shape, BLOCK)
    return values.mul_(decode_e4m3(scales)[:, :, None]).flatten(1)


def as_tokens(x: torch.Tensor) -> torch.Tensor:
    """(..., K) -> (M, K) float, whatever the strides. Raises ValueError for other inputs."""
    if not x.is_floating_point() or x.dim() < 1:
        raise ValueError(f"Expected a float tensor of shape (..., K), got {x.dtype} of shape {tuple(x.shape)}.")
    return x.reshape(-1, x.shape[-1])


def token_stats(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """max|x| and sum|x| over the last dimension: two float32 tensors (M,), M = all other dimensions.

    NaN in a token gives NaN in both.
    """
    magnitude = as_tokens(x).to(torch.float32).abs()
    return magnitude.amax(-1), magnitude.sum(-1)


def outlier_ratio(absmax: torch.Tensor, abssum: torch.Tensor, batch: int, size: int) -> torch.Tensor:
    """r = max|X| / mean|X| of each sample (6Bit-Diffusion, Eq. 12), measured before the rotation.

    absmax, abssum: float32 (M,) of `token_stats`, M = batch x tokens. size: K.
    Returns float32 (batch,); an all-zero sample has ratio 1, NaN stays NaN.
    """
    if batch < 1 or absmax.numel() % batch:
        raise ValueError(f"{absmax.numel()} tokens do not divide into a batch of {batch}.")
    largest = absmax.view(batch, -1).amax(-1)
    mean = abssum.view(batch, -1).sum(-1) / (absmax.numel() // batch * size)
    return torch.where(mean == 0, torch.ones_like(mean), largest / mean)
