"""Packing: layout, search, INT8 route, joined weights."""

import pytest
import torch

from kernels import (
    concat_packed,
    dequantize_weight,
    hadamard,
    int8_weight,
    pack_weight,
    packed_nbytes,
    unpack_weight,
)
from kernels.formats import bits_float, decode_e4m3


def weight(rows=24, size=256, seed=0):
    torch.manual_seed(seed)
    return torch.randn(rows, size) * 0.05


def error(approximation, exact):
    return ((approximation - exact).norm() / exact.norm()).item()


def test_one_block_by_hand():
    # Largest value 6 and no rotation: the scales cancel and E2M1 values come back exactly.
    values = torch.tensor([[0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6, 0]])
    packed = pack_weight(values, hadamard=1)
    assert packed.codes.tolist() == [[0x10, 0x32, 0x54, 0x76, 0xA9, 0xCB, 0xED, 0x0F]]
    assert decode_e4m3(packed.scales).tolist() == [[256.0]]
    torch.testing.assert_close(dequantize_weight(packed), values, rtol=1e-6, atol=0)


@pytest.mark.parametrize("block", [None, 1, 64])
def test_search_never_loses_and_usually_wins_in_every_block(block):
    exact = weight()
    found, plain = pack_weight(exact, block), pack_weight(exact, block, search=False)
    rotated = hadamard(exact, found.hadamard)

    def block_errors(packed):
        values = unpack_weight(packed) * bits_float(packed.tensor_scale)[:, None]
        return (values - rotated).square().view(len(exact), -1, 16).sum(-1)

    assert (block_errors(found) <= block_errors(plain) * (1 + 1e-5)).all()
    assert error(dequantize_weight(found), exact) < 0.9 * error(dequantize_weight(plain), exact)


def test_unpacked_values_are_exact_in_bfloat16():
    packed = pack_weight(weight())
    assert torch.equal(unpack_weight(packed, torch.bfloat16).float(), unpack_weight(packed))


def test_int8_codes_approximate_the_packed_weight():
    packed = pack_weight(weight())
    codes = int8_weight(packed)
    assert codes.dtype == torch.int8 and codes.abs().amax() == 127
    assert (codes.abs().amax(1) == 127).all()
    exact = unpack_weight(packed) * bits_float(packed.tensor_scale)[:, None]
    step = bits_float(packed.int8_scale)[:, None]
    assert ((codes * step - exact).abs() <= step * 0.5001).all()


def test_sizes_that_blocks_do_not_divide_are_padded_inside():
    exact = weight(size=43)
    packed = pack_weight(exact)
    assert packed.shape == (24, 43) and packed.hadamard == 1
    assert packed.codes.shape == (24, 24) and packed.scales.shape == (24, 3)
    assert dequantize_weight(packed).shape == exact.shape and int8_weight(packed).shape == exact.shape
    assert error(dequantize_weight(packed), exact) < 0.11


def test_zero_blocks_and_a_zero_matrix():
    exact = weight()
    exact[:, 128:] = 0
    exact[3] = 0
    packed = pack_weight(exact)
    assert (dequantize_weight(packed)[:, 128:] == 0).all() and (int8_weight(packed)[3] == 0).all()
    nothing = pack_weight(torch.zeros(4, 32))
    assert (dequantize_weight(nothing) == 0).all() and (int8_weight(nothing) == 0).all()
    assert torch.isfinite(bits_float(nothing.int8_scale)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_float_types_and_strides(dtype):
    exact = weight(256, 24).T.to(dtype)
    assert not exact.is_contiguous()
    packed = pack_weight(exact)
    assert error(dequantize_weight(packed), exact.float()) < 0.1


def test_joined_weights_equal_their_parts():
    parts = [pack_weight(weight(rows, seed=seed) * 10**seed) for seed, rows in enumerate((8, 16, 4))]
    joined = concat_packed(parts)
    assert joined.shape == (28, 256)
    assert torch.equal(dequantize_weight(joined), torch.cat([dequantize_weight(part) for part in parts]))
    assert torch.equal(int8_weight(joined), torch.cat([int8_weight(part) for part in parts]))
    with pytest.raises(ValueError, match="K=256 with block 128, K=128 with block 128"):
        concat_packed([parts[0], pack_weight(weight(size=128))])


def test_packed_bytes_are_a_quarter_and_a_bit_of_bfloat16():
    packed = pack_weight(weight(64, 1024))
    # Half a byte a value, a byte every 16, two float32 a row.
    assert packed_nbytes(packed) == 64 * (512 + 64 + 8)


def test_chunks_do_not_change_the_result(monkeypatch):
    exact = weight()
    whole = pack_weight(exact)
    monkeypatch.setattr("kernels.weights._CHUNK_ELEMENTS", 5 * 256)
    for a, b in zip(whole[:4], pack_weight(exact)[:4]):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.full((2, 16), float("nan")), "NaN or Inf"),
        (torch.zeros(2, 3, 4), "float matrix"),
        (torch.zeros(2, 16, dtype=torch.int32), "float matrix"),
    ],
)
def test_what_cannot_be_packed_is_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        pack_weight(bad)
