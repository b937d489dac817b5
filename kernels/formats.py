"""The two number formats of this package, and the exact arithmetic on them.

NVFP4: sixteen E2M1 values share one E4M3 scale, and a float32 scale stands over the blocks (per
token for activations, per matrix for weights). E2M1 has one sign, two exponent and one mantissa
bit, so its magnitudes are 0, .5, 1, 1.5, 2, 3, 4, 6 (OCP Microscaling formats 1.0, section 5.3.3).
Two codes share a byte, the even index in the low nibble, as in `torch.float4_e2m1fn_x2`.

INT8: symmetric codes in [-127, 127], one float32 scale per token or per output row.

Everything here runs on any device and uses float32 throughout.
"""

from __future__ import annotations

import torch

BLOCK = 16
INT8_MAX = 127
E2M1_MAX = 6.0
E4M3_MAX = 448.0
# With "four over six" a block may map its maximum to 4 instead of 6, which needs a scale 1.5 times
# larger: 256 leaves that room below 448.
FOUR_OVER_SIX_TOP = 256.0
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
# Below this a maximum counts as zero: its reciprocal times 127 or 2688 would leave float32.
SMALLEST_AMAX = 1e-30

# x + 1.5*2^22*p rounds x to a multiple of p/2, half to even, for |x| far below 2^22.
ROUNDING_MAGIC = 1.5 * 2.0**22
_EXPONENT_MASK = 0x7F800000


def round_e2m1(x: torch.Tensor) -> torch.Tensor:
    """The nearest E2M1 value, ties to the even code, magnitudes above 6 to 6; NaN stays NaN.

    The distance of neighbouring values is .5 below 2, then 1, then 2: half of the power of two
    at or below |x|, but at least .5. Adding and subtracting a large constant in that unit lets
    the adder do the rounding.
    x: float32, any shape. Returns float32, same shape; never -0.
    """
    unit = (x.view(torch.int32) & _EXPONENT_MASK).view(torch.float32).clamp_(1.0, 4.0).mul_(ROUNDING_MAGIC)
    return (x + unit).sub_(unit).clamp_(-E2M1_MAX, E2M1_MAX)


def encode_e2m1(values: torch.Tensor) -> torch.Tensor:
    """Codes 0..15 (uint8) of values that are already E2M1 values; NaN becomes code 0.

    The code is a concave piecewise linear function of the magnitude, hence the minimum of its
    pieces.
    """
    magnitude = values.abs()
    code = torch.minimum(torch.minimum(magnitude * 2, magnitude + 2), magnitude * 0.5 + 4)
    code = torch.nan_to_num(code + 8.0 * (values < 0), nan=0.0)
    return code.to(torch.uint8)


def decode_e2m1(codes: torch.Tensor) -> torch.Tensor:
    """Float32 values of codes 0..15 (uint8), same shape."""
    table = torch.tensor(E2M1_VALUES, dtype=torch.float32, device=codes.device)
    return table[codes.to(torch.int64)]


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """uint8 codes (..., K) -> uint8 (..., K/2): the even index in the low nibble. K is even."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """uint8 (..., K/2) -> uint8 codes (..., K), the inverse of `pack_nibbles`."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def encode_e4m3(x: torch.Tensor) -> torch.Tensor:
    """E4M3 bits (uint8) of float values: nearest, ties to even, saturating at 448; NaN stays NaN."""
    return _on_float8_device(x.clamp(-E4M3_MAX, E4M3_MAX)).to(torch.float8_e4m3fn).view(torch.uint8).to(x.device)


def decode_e4m3(bits: torch.Tensor) -> torch.Tensor:
    """Float32 values of E4M3 bits (uint8), same shape; 0x7F and 0xFF are NaN."""
    return _on_float8_device(bits).contiguous().view(torch.float8_e4m3fn).to(torch.float32).to(bits.device)


def _on_float8_device(x: torch.Tensor) -> torch.Tensor:
    # Apple's GPU backend has no 8-bit floats; scales are few enough to make the trip.
    return x if x.device.type in ("cpu", "cuda") else x.cpu()


def float_bits(x: torch.Tensor) -> torch.Tensor:
    """Float32 values as int32 bits, which survive `module.to(bfloat16)` unchanged."""
    return x.to(torch.float32).contiguous().view(torch.int32)


def bits_float(bits: torch.Tensor) -> torch.Tensor:
    """The inverse of `float_bits`."""
    return bits.contiguous().view(torch.float32)
