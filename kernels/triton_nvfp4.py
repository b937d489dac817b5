"""NVFP4 rounding inside a Triton kernel. The rules are those of `kernels.quantize_nvfp4`.

Two ways. By float arithmetic, exact and for every card: compute capability 8.0 has no E4M3 type,
and no card before Blackwell converts to E2M1. From 8.9 on (FAST), with the E4M3 conversion of the
hardware and two E2M1 codes at a time in one register (`_pair_codes`), a third of the instructions.
"""

import triton
import triton.language as tl

from kernels.triton_rows import INTERPRETED

_EXPONENT = tl.constexpr(0x7F800000)
_SMALLEST_AMAX = tl.constexpr(1e-30)


@triton.jit
def encode_e4m3(x):
    """E4M3 bits as int32 of float32 magnitudes 0 … 448, to nearest, ties to even.

    A value keeps 3 mantissa bits, so it is a multiple of an eighth of its power of two, and of
    2^-9 below 2^-6. Adding and subtracting 1.5·2^23 such units lets the adder round.
    """
    power = tl.maximum(x.to(tl.int32, bitcast=True) & _EXPONENT, 121 << 23)
    magic = power.to(tl.float32, bitcast=True) * 1572864.0
    rounded = (x + magic) - magic
    normal = (rounded.to(tl.int32, bitcast=True) >> 20) - 960
    return tl.where(rounded < 0.015625, (rounded * 512.0).to(tl.int32), normal)


@triton.jit
def decode_e4m3(bits):
    """Float32 values of E4M3 bits (any integer type); 0x7F and 0xFF are NaN."""
    bits = bits.to(tl.int32)
    magnitude = bits & 0x7F
    normal = ((magnitude << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < 8, magnitude.to(tl.float32) * 0.001953125, normal)
    value = tl.where(magnitude == 0x7F, float("nan"), value)
    return tl.where(bits > 0x7F, -value, value)


@triton.jit
def round_e2m1(magnitude):
    """The nearest E2M1 magnitude, ties to the even code, above 6 to 6."""
    power = magnitude.to(tl.int32, bitcast=True) & _EXPONENT
    power = tl.minimum(tl.maximum(power, 127 << 23), 129 << 23)
    magic = power.to(tl.float32, bitcast=True) * 6291456.0
    return tl.minimum((magnitude + magic) - magic, 6.0)


@triton.jit
def encode_e2m1(rounded, negative):
    """Codes 0 … 15 as int32 of E2M1 magnitudes; the code is a concave function of the magnitude."""
    code = tl.minimum(tl.minimum(rounded * 2.0, rounded + 2.0), rounded * 0.5 + 4.0).to(tl.int32)
    return tl.where(negative & (rounded > 0.0), code + 8, code)


@triton.jit
def decode_e2m1(codes):
    """Float32 values of codes 0 … 15 (any integer type)."""
    codes = codes.to(tl.int32)
    magnitude = (codes & 7).to(tl.float32)
    value = tl.maximum(tl.maximum(magnitude * 0.5, magnitude - 2.0), magnitude * 2.0 - 8.0)
    return tl.where(codes > 7, -value, value)


@triton.jit
def to_block_scale(largest, FOUR_OVER_SIX: tl.constexpr):
    """Factor from a block's maximum to its E4M3 scale, given the token's largest value."""
    TOP: tl.constexpr = 256.0 if FOUR_OVER_SIX else 448.0
    return tl.div_rn(1.0, tl.maximum(largest, _SMALLEST_AMAX)) * TOP


@triton.jit
def token_scale(largest, FOUR_OVER_SIX: tl.constexpr):
    """The float32 scale over a token's blocks, given its largest value."""
    TOP: tl.constexpr = 256.0 if FOUR_OVER_SIX else 448.0
    return largest * (1.0 / (6.0 * TOP))


@triton.jit
def block_maxima(z, WIDTH: tl.constexpr):
    """Largest magnitude of each run of 16 of z (WIDTH,): float32 (WIDTH/16,)."""
    even, odd = _parted(tl.abs(z), WIDTH)
    return tl.max(tl.maximum(even, odd), 1)


@triton.jit
def nvfp4_chunk(
    z, block_max, to_scale, WIDTH: tl.constexpr, FOUR_OVER_SIX: tl.constexpr, FAST: tl.constexpr
):
    """WIDTH values of a rotated token in NVFP4.

    z: float32 (WIDTH,), zero beyond the token's channels; block_max: its `block_maxima`;
    to_scale: of the whole token. FAST: compute capability 8.9 or newer.
    Returns codes uint8 (WIDTH/2,), the even channel in the low nibble, and the E4M3 bits of the
    block scales, uint8 (WIDTH/16,).

    Even and odd channels are parted first, not when their codes are packed: a thread then holds
    more of a block, and the reductions take fewer exchanges between threads.
    """
    even, odd = _parted(z, WIDTH)
    if FAST and not FOUR_OVER_SIX:
        scale = (block_max * to_scale).to(tl.float8e4nv)
        # 6 · 2^-14: see `_pair_codes`. Beside a scale of 0 the codes mean nothing, if they are finite.
        inverse = reciprocal(tl.maximum(scale.to(tl.float32), 0.0009765625))
        factor = (inverse * (to_scale * 0.0003662109375))[:, None]
        codes = _pair_codes(even * factor, odd * factor)
        bits = scale.to(tl.uint8, bitcast=True)
    else:
        codes, bits = _by_arithmetic(even, odd, block_max, to_scale, FOUR_OVER_SIX)
    return tl.reshape(codes, (WIDTH // 2,)).to(tl.uint8), bits.to(tl.uint8)


@triton.jit
def _parted(z, WIDTH: tl.constexpr):
    even, odd = tl.split(tl.reshape(z, (WIDTH // 2, 2)))
    return tl.reshape(even, (WIDTH // 16, 8)), tl.reshape(odd, (WIDTH // 16, 8))


@triton.jit
def reciprocal(x):
    """1/x to the last bit or two, without the care that division takes of the largest and smallest x."""
    if INTERPRETED:
        result = 1.0 / x
    else:
        result = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return result


@triton.jit
def _pair_codes(even, odd):
    """E2M1 codes of float32 values times 2^-14, two to an int32, the even one in the low nibble.

    A float16 of exponent field 0 … 3 is an E2M1 number with 9 more bits of fraction: both are
    subnormal below 1. So the pair is converted to float16 in one register, cut at 6, and rounded
    at bit 9 by an integer addition, ties to even. Going through float16 first turns a value within
    2^-11 of a tie into that tie (about one code in a thousand falls the other way), and a negative
    value that rounds to nothing keeps its sign as code 8, −0.
    """
    rounded = tl.inline_asm_elementwise(
        """{
        .reg .b32 pair, odd, six;
        mov.b32 six, 0x0E000E00;
        cvt.rn.f16x2.f32 pair, $2, $1;
        min.xorsign.abs.f16x2 pair, pair, six;
        shr.u32 odd, pair, 9;
        and.b32 odd, odd, 0x00010001;
        add.u32 odd, odd, 0x00FF00FF;
        add.u32 $0, pair, odd;
        }""",
        "=r,r,r", [even, odd], dtype=tl.int32, is_pure=True, pack=1,
    )
    nibbles = (rounded | (rounded >> 3)) & 0x1E001E00
    return ((nibbles >> 9) | (nibbles >> 21)) & 0xFF


@triton.jit
def _by_arithmetic(even, odd, block_max, to_scale, FOUR_OVER_SIX: tl.constexpr):
    bits = encode_e4m3(block_max * to_scale)
    low, high = _round_blocks(even, odd, bits, to_scale)
    if FOUR_OVER_SIX:
        wide = encode_e4m3(block_max * (to_scale * 1.5))
        wide_low, wide_high = _round_blocks(even, odd, wide, to_scale)
        aim = to_scale * 6.0
        loss = _loss(low, high, bits, tl.abs(even) * aim, tl.abs(odd) * aim)
        wide_loss = _loss(wide_low, wide_high, wide, tl.abs(even) * aim, tl.abs(odd) * aim)
        better = wide_loss < loss
        bits = tl.where(better, wide, bits)
        low = tl.where(better[:, None], wide_low, low)
        high = tl.where(better[:, None], wide_high, high)
    return encode_e2m1(low, even < 0.0) | (encode_e2m1(high, odd < 0.0) << 4), bits


@triton.jit
def _round_blocks(even, odd, bits, to_scale):
    scale = decode_e4m3(bits)
    factor = tl.where(scale == 0.0, 0.0, tl.div_rn(to_scale * 6.0, scale))
    return round_e2m1(tl.abs(even) * factor[:, None]), round_e2m1(tl.abs(odd) * factor[:, None])


@triton.jit
def _loss(low, high, bits, aim_low, aim_high):
    scale = decode_e4m3(bits)[:, None]
    error_low = low * scale - aim_low
    error_high = high * scale - aim_high
    return tl.sum(error_low * error_low + error_high * error_high, 1)
