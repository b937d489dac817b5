"""E2M1 and E4M3 arithmetic over every code, and the ties between them."""

import pytest
import torch

from kernels.formats import (
    E2M1_VALUES,
    bits_float,
    decode_e2m1,
    decode_e4m3,
    encode_e2m1,
    encode_e4m3,
    float_bits,
    pack_nibbles,
    round_e2m1,
    unpack_nibbles,
)

MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def test_all_sixteen_codes_round_trip():
    codes = torch.arange(16, dtype=torch.uint8)
    values = decode_e2m1(codes)
    assert values.tolist() == list(E2M1_VALUES)
    # Code 8 is -0; zero always encodes as 0.
    expected = codes.clone()
    expected[8] = 0
    assert torch.equal(encode_e2m1(values), expected)
    assert torch.equal(round_e2m1(values), values + 0.0)


def test_rounding_is_to_the_nearest_value_on_a_fine_grid():
    x = torch.linspace(-8, 8, 100_001)
    table = torch.tensor(sorted(set(MAGNITUDES) | {-m for m in MAGNITUDES}))
    distance = (x[:, None] - table).abs()
    nearest = distance.amin(1)
    assert torch.equal((round_e2m1(x) - x).abs(), nearest)


@pytest.mark.parametrize(
    ("tie", "rounded"),
    # Halfway between codes c and c+1: the even code wins.
    [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)],
)
def test_ties_go_to_the_even_code(tie, rounded):
    assert round_e2m1(torch.tensor([tie, -tie])).tolist() == [rounded, -rounded]
    above = torch.nextafter(torch.tensor([tie]), torch.tensor([9.0]))
    below = torch.nextafter(torch.tensor([tie]), torch.tensor([0.0]))
    index = MAGNITUDES.index(rounded)
    larger = MAGNITUDES[index] if rounded > tie else MAGNITUDES[index + 1]
    smaller = MAGNITUDES[index] if rounded < tie else MAGNITUDES[index - 1]
    assert round_e2m1(above).item() == larger
    assert round_e2m1(below).item() == smaller


def test_large_values_saturate_and_nan_stays_nan():
    x = torch.tensor([6.1, 7.0, 1e6, 3e38, float("inf"), -float("inf"), float("nan")])
    rounded = round_e2m1(x)
    assert rounded[:4].tolist() == [6.0] * 4
    assert rounded[6].isnan()
    assert encode_e2m1(rounded)[6] == 0


def test_all_256_scale_bytes_round_trip():
    bits = torch.arange(256, dtype=torch.uint8)
    values = decode_e4m3(bits)
    nan = torch.zeros(256, dtype=torch.bool)
    nan[[0x7F, 0xFF]] = True
    assert torch.equal(values.isnan(), nan)
    assert torch.equal(encode_e4m3(values)[~nan], bits[~nan])
    # Written out by hand: sign, four exponent bits of bias 7, three mantissa bits.
    exponent, mantissa = (bits >> 3) & 15, (bits & 7).float()
    by_hand = torch.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent.float() - 7))
    by_hand = torch.where(bits >= 128, -by_hand, by_hand)
    assert torch.equal(values[~nan], by_hand[~nan])


def test_scales_saturate_instead_of_becoming_nan():
    assert decode_e4m3(encode_e4m3(torch.tensor([448.0, 470.0, 1e9, -1e9]))).tolist() == [448.0, 448.0, 448.0, -448.0]


def test_nibbles_put_the_even_index_low():
    codes = torch.arange(16, dtype=torch.uint8).view(2, 8)
    packed = pack_nibbles(codes)
    assert packed[0].tolist() == [0x10, 0x32, 0x54, 0x76]
    assert torch.equal(unpack_nibbles(packed), codes)
    every = torch.arange(256, dtype=torch.uint8).view(16, 16)
    assert torch.equal(pack_nibbles(unpack_nibbles(every)), every)


def test_nibble_order_is_that_of_the_torch_type():
    # torch documents float4_e2m1fn_x2 as two values per byte, the first in the low bits.
    packed = torch.tensor([0x21], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert unpack_nibbles(packed.view(torch.uint8)).tolist() == [1, 2]


def test_integer_views_survive_a_cast_of_the_module():
    module = torch.nn.Module()
    module.register_buffer("plain", torch.tensor([1.2345678]))
    module.register_buffer("bits", float_bits(torch.tensor([1.2345678])))
    module.to(torch.bfloat16)
    assert module.plain.item() == 1.234375
    assert bits_float(module.bits).item() == torch.tensor(1.2345678).item()
