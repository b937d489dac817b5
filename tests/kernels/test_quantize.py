"""Activations: values by hand, tokens that do not couple, NaN, zeros, odd shapes and types."""

import math

import pytest
import torch

from kernels import dequantize, hadamard, outlier_ratio, quantize_int8, quantize_nvfp4, token_stats
from kernels.formats import decode_e4m3, unpack_nibbles

QUANTIZERS = [
    pytest.param(quantize_int8, id="int8"),
    pytest.param(quantize_nvfp4, id="nvfp4"),
    pytest.param(lambda x, block=1: quantize_nvfp4(x, block, four_over_six=True), id="nvfp4-4/6"),
]


def error(approximation, exact):
    return ((approximation - exact).norm() / exact.norm()).item()


def test_int8_by_hand():
    act = quantize_int8(torch.tensor([[127.0, -63.5, 0.5, 1.5, 2.4]]))
    # Scale 1: halves go to the even code.
    assert act.codes.tolist() == [[127, -64, 0, 2, 2]]
    assert act.token_scale.item() == pytest.approx(1.0)
    assert (act.absmax.item(), act.abssum.item()) == pytest.approx((127.0, 194.9))


def test_nvfp4_by_hand():
    first = [6.0, -5.0, 2.5, 0.25, 1.75] + [0.0] * 11
    second = [0.75] + [0.0] * 15
    act = quantize_nvfp4(torch.tensor([first + second]) * 448)
    # The token's largest block has scale 448 and the token scale is 1; the second block's is .125 x 448 = 56.
    assert act.token_scale.item() == pytest.approx(1.0)
    assert decode_e4m3(act.scales).tolist() == [[448.0, 56.0]]
    assert unpack_nibbles(act.codes)[0, :5].tolist() == [7, 14, 4, 0, 4]
    assert unpack_nibbles(act.codes)[0, 16].item() == 7
    assert dequantize(act)[0, 16].item() == pytest.approx(0.75 * 448)


@pytest.mark.parametrize("quantize", QUANTIZERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(1, 256), (3, 5, 64), (2, 3, 4, 48), (7, 40), (256,)])
def test_error_is_that_of_the_format(quantize, dtype, shape):
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype)
    block = 16 if shape[-1] % 16 == 0 else 1
    act = quantize(x, block)
    back = hadamard(dequantize(act), block)
    assert back.shape == x.shape
    assert error(back, x.float()) < (0.02 if act.codes.dtype == torch.int8 else 0.13)


@pytest.mark.parametrize("quantize", QUANTIZERS)
def test_tokens_do_not_couple(quantize):
    torch.manual_seed(0)
    x = torch.randn(6, 64)
    x[2] *= 1e4
    whole, alone = quantize(x, 64), quantize(x[4:5], 64)
    assert torch.equal(whole.codes[4:5], alone.codes)
    assert torch.equal(whole.token_scale[4:5], alone.token_scale)


@pytest.mark.parametrize("quantize", QUANTIZERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("block", [1, 64])
def test_a_token_with_nan_or_inf_becomes_nan_and_no_other(quantize, bad, block):
    x = torch.randn(3, 64)
    x[1, 17] = bad
    values = dequantize(quantize(x, block))
    assert values[1].isnan().all()
    assert values[[0, 2]].isfinite().all()


@pytest.mark.parametrize("quantize", QUANTIZERS)
def test_zero_tokens_zero_blocks_and_tiny_values(quantize):
    x = torch.zeros(4, 64)
    x[1, 20] = 1.0
    x[2] = 1e-38
    x[3, 0], x[3, 16:] = 1e30, 1e-30
    values = dequantize(quantize(x))
    assert (values[0] == 0).all() and values.isfinite().all()
    assert values[1].count_nonzero() == 1 and values[1, 20].item() == pytest.approx(1.0, rel=1e-6)
    assert (values[3, 16:] == 0).all()


@pytest.mark.parametrize("quantize", QUANTIZERS)
def test_strided_input_equals_its_copy(quantize):
    x = torch.randn(64, 12).T[::2]
    ours, copy = quantize(x, 64), quantize(x.contiguous(), 64)
    assert torch.equal(ours.codes, copy.codes) and torch.equal(ours.token_scale, copy.token_scale)


@pytest.mark.parametrize("quantize", QUANTIZERS)
def test_no_tokens(quantize):
    assert dequantize(quantize(torch.zeros(0, 64), 64)).shape == (0, 64)


def test_four_over_six_lowers_the_error():
    torch.manual_seed(0)
    x = torch.randn(256, 256)
    plain, better = quantize_nvfp4(x), quantize_nvfp4(x, four_over_six=True)
    ratio = (dequantize(better) - x).square().mean() / (dequantize(plain) - x).square().mean()
    assert ratio < 0.9


def test_rotation_tames_an_outlier_channel_for_int8():
    torch.manual_seed(0)
    x = torch.randn(64, 256)
    x[:, 7] *= 60
    plain, rotated = dequantize(quantize_int8(x)), hadamard(dequantize(quantize_int8(x, 128)), 128)
    assert error(rotated, x) < 0.4 * error(plain, x)


@pytest.mark.parametrize("quantize", QUANTIZERS)
def test_statistics_are_taken_before_the_rotation(quantize):
    x = torch.randn(2, 3, 128)
    act = quantize(x, 128)
    absmax, abssum = token_stats(x)
    assert torch.equal(act.absmax, absmax) and torch.equal(act.abssum, abssum)
    assert torch.equal(absmax, x.abs().amax(-1).flatten())
    torch.testing.assert_close(abssum, x.abs().sum(-1).flatten())


def test_outlier_ratio_speaks_per_sample():
    x = torch.ones(3, 4, 8)
    x[1, 2, 3] = 33.0
    x[2] = 0.0
    ratio = outlier_ratio(*token_stats(x), batch=3, size=8)
    assert ratio.tolist() == pytest.approx([1.0, 33.0 / 2.0, 1.0])
    x[0, 0, 0] = float("nan")
    assert math.isnan(outlier_ratio(*token_stats(x), batch=3, size=8)[0])
    with pytest.raises(ValueError, match="12 tokens do not divide into a batch of 5"):
        outlier_ratio(*token_stats(x), batch=5, size=8)


@pytest.mark.parametrize("quantize", QUANTIZERS)
def test_wrong_inputs_are_refused(quantize):
    with pytest.raises(ValueError, match="float tensor"):
        quantize(torch.zeros(2, 16, dtype=torch.int64))
    with pytest.raises(ValueError, match="Hadamard block"):
        quantize(torch.zeros(2, 40), 16)
