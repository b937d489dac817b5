"""The one packed form of a weight that every precision reads.

NVFP4 codes and E4M3 block scales, with the float32 scales kept apart as integer views: a module's
`.to(bfloat16)` would round real float buffers. E2M1 x E4M3 has at most six significant bits, so
`unpack_weight` is exact in bfloat16 as long as the tensor scale stays out of it; the products
apply that one at the end.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

import torch

from kernels.activations import nvfp4_values
from kernels.formats import (
    BLOCK,
    E2M1_MAX,
    FOUR_OVER_SIX_TOP,
    INT8_MAX,
    SMALLEST_AMAX,
    bits_float,
    decode_e4m3,
    encode_e2m1,
    encode_e4m3,
    float_bits,
    pack_nibbles,
    round_e2m1,
)
from kernels.hadamard import check_block, hadamard, hadamard_block

# Scale candidates as steps of the E4M3 code around amax/6, eight steps to a factor of two: from
# amax/7.8 (the largest value saturates) to amax/3.6. Step 0 comes first, so the search only wins.
_SEARCH_STEPS = (0, 1, 2, 3, 4, 5, 6, -1, -2, -3)
_LARGEST_FINITE_E4M3 = 0x7E
_CHUNK_ELEMENTS = 1 << 22


class PackedWeight(NamedTuple):
    """A weight (N, K) in NVFP4, rotated along K by a block Hadamard matrix.

    codes: uint8 (N, Kp/2), Kp = K rounded up to a multiple of 16, the tail zero.
    scales: uint8 (N, Kp/16), E4M3 bits, row-major.
    tensor_scale: int32 (N,), float32 bits, one per output row: a matrix repeats its own, so q, k
        and v can be joined into one.
    int8_scale: int32 (N,), float32 bits of the row scale of the INT8 route, tensor scale included.
    shape: (N, K), the true sizes.
    hadamard: the block size folded into the weight, 1 for none.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    tensor_scale: torch.Tensor
    int8_scale: torch.Tensor
    shape: tuple[int, int]
    hadamard: int


def pack_weight(weight: torch.Tensor, hadamard: int | None = None, search: bool = True) -> PackedWeight:
    """Quantize a weight once, offline.

    weight: (N, K), any float dtype, finite. hadamard: block size, None picks `hadamard_block(K)`.
    search: try ten scales per block and keep the one with the least squared error; without it
    every block maps its maximum to 6. Raises ValueError for other shapes, dtypes, NaN or Inf.
    """
    if weight.dim() != 2 or not weight.is_floating_point():
        raise ValueError(f"A weight to pack must be a float matrix (N, K), got {weight.dtype} of shape {tuple(weight.shape)}.")
    rows, size = weight.shape
    block = hadamard_block(size) if hadamard is None else hadamard
    check_block(size, block)
    padded = -(-size // BLOCK) * BLOCK
    step = max(1, _CHUNK_ELEMENTS // max(padded, 1))
    chunks = [slice(start, min(start + step, rows)) for start in range(0, rows, step)]

    largest = torch.stack([_rotated(weight[chunk], block, padded).abs().amax() for chunk in chunks]).amax()
    if not torch.isfinite(largest):
        raise ValueError("The weight holds NaN or Inf and cannot be quantized: check the checkpoint.")
    tensor_scale = largest.clamp_min(SMALLEST_AMAX) / (E2M1_MAX * FOUR_OVER_SIX_TOP)

    parts = [_pack_rows(_rotated(weight[chunk], block, padded) / tensor_scale, search) for chunk in chunks]
    codes, scales, largest_value = (torch.cat(part) for part in zip(*parts))
    return PackedWeight(
        codes,
        scales,
        float_bits(tensor_scale.expand(rows)),
        float_bits(tensor_scale * largest_value.clamp_min(SMALLEST_AMAX) / INT8_MAX),
        (rows, size),
        block,
    )


def concat_packed(parts: Sequence[PackedWeight]) -> PackedWeight:
    """Join weights that read the same input along N, for one product instead of several.

    Raises ValueError when K or the rotation differ.
    """
    if len({(part.shape[1], part.hadamard) for part in parts}) != 1:
        raise ValueError(
            "Only packed weights of one input size and one Hadamard block can be joined, got "
            + ", ".join(f"K={part.shape[1]} with block {part.hadamard}" for part in parts)
            + "."
        )
    tensors = (torch.cat([part[field] for part in parts]) for field in range(4))
    return PackedWeight(*tensors, (sum(part.shape[0] for part in parts), parts[0].shape[1]), parts[0].hadamard)


def unpack_weight(packed: PackedWeight, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """code x block scale, (N, K), rotated, without the tensor scale: exact in bfloat16 and float32."""
    return nvfp4_values(packed.codes, packed.scales)[:, : packed.shape[1]].to(dtype)


def int8_weight(packed: PackedWeight) -> torch.Tensor:
    """The weight of the INT8 route: int8 codes (N, K); times `int8_scale` they are the weight."""
    ratio = bits_float(packed.tensor_scale) / bits_float(packed.int8_scale)
    codes = (unpack_weight(packed) * ratio[:, None]).round_()
    return codes.clamp_(-INT8_MAX, INT8_MAX).to(torch.int8)


def dequantize_weight(packed: PackedWeight, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The weight (N, K) on its original axes: unpacked, scaled and rotated back."""
    weight = unpack_weight(packed) * bits_float(packed.tensor_scale)[:, None]
    return hadamard(weight, packed.hadamard).to(dtype)


def packed_nbytes(packed: PackedWeight) -> int:
    """Bytes of the four tensors together."""
    return sum(part.numel() * part.element_size() for part in packed[:4])


def _rotated(weight: torch.Tensor, block: int, padded: int) -> torch.Tensor:
    rotated = hadamard(weight.detach(), block).to(torch.float32)
    return torch.nn.functional.pad(rotated, (0, padded - weight.shape[1]))


def _pack_rows(values: torch.Tensor, search: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows in units of the tensor scale -> packed codes, scale bits, largest dequantized magnitude."""
    blocks = values.view(values.shape[0], -1, BLOCK)
    base = encode_e4m3(blocks.abs().amax(-1) / E2M1_MAX)
    best, rounded, error = base, None, None
    for step in _SEARCH_STEPS if search else (0,):
        bits = (base.to(torch.int16) + step).clamp_(0, _LARGEST_FINITE_E4M3).to(torch.uint8)
        scale = decode_e4m3(bits)
        candidate = round_e2m1(blocks * _reciprocal(scale)[:, :, None])
        loss = (candidate * scale[:, :, None]).sub_(blocks).square_().sum(-1)
        if error is None:
            rounded, error = candidate, loss
            continue
        wins = loss < error
        best = torch.where(wins, bits, best)
        rounded = torch.where(wins[:, :, None], candidate, rounded)
        error = torch.where(wins, loss, error)
    largest = (rounded.abs().amax(-1) * decode_e4m3(best)).amax(-1)
    return pack_nibbles(encode_e2m1(rounded).flatten(1)), best, largest


def _reciprocal(scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale > 0, 1.0 / scale, torch.zeros_like(scale))
