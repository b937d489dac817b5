"""The three products against their meaning, and the CPU's fast path against the products."""

import pytest
import torch
import torch.nn.functional as F

from kernels import (
    PRECISIONS,
    Workspace,
    concat_packed,
    dequantize,
    dequantize_weight,
    int8_weight,
    linear_w4a4,
    linear_w4a8,
    linear_w4a16,
    pack_weight,
    quantize_int8,
    quantize_nvfp4,
    quantized_linear,
    unpack_weight,
)
from kernels.formats import bits_float
from kernels.linear_w4a8 import integer_product

PRODUCTS = {"nvfp4": linear_w4a4, "int8": linear_w4a8, "w4a16": linear_w4a16}


def layer(rows=40, size=256, seed=0):
    torch.manual_seed(seed)
    return torch.randn(rows, size) * 0.05, torch.randn(rows)


def error(approximation, exact):
    return ((approximation.double() - exact.double()).norm() / exact.double().norm()).item()


def test_w4a4_is_the_exact_product_of_what_the_codes_mean():
    weight, bias = layer()
    packed, x = pack_weight(weight), torch.randn(9, 256)
    act = quantize_nvfp4(x, packed.hadamard)
    outer = bits_float(packed.tensor_scale).double()[:, None]
    exact = dequantize(act).double() @ (unpack_weight(packed).double() * outer).T + bias
    torch.testing.assert_close(linear_w4a4(act, packed, bias).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [16, 1024, 1040, 4096])
def test_int8_sums_are_exact(size):
    torch.manual_seed(0)
    codes = torch.randint(-127, 128, (5, size), dtype=torch.int8)
    weight = torch.randint(-127, 128, (6, size), dtype=torch.int8)
    # The largest sum there can be, too.
    codes[0], weight[0] = 127, 127
    exact = codes.to(torch.int64) @ weight.to(torch.int64).T
    assert torch.equal(integer_product(codes, weight).to(torch.int64), exact)


def test_w4a8_applies_both_scales_to_the_integer_sum():
    weight, bias = layer()
    packed, x = pack_weight(weight), torch.randn(9, 256)
    act = quantize_int8(x, packed.hadamard)
    total = act.codes.to(torch.int64) @ int8_weight(packed).to(torch.int64).T
    exact = total.double() * act.token_scale.double()[:, None] * bits_float(packed.int8_scale).double() + bias
    torch.testing.assert_close(linear_w4a8(act, packed, bias).double(), exact, rtol=1e-5, atol=1e-5)


def test_w4a16_undoes_the_rotation():
    weight, bias = layer()
    packed, x = pack_weight(weight), torch.randn(9, 256)
    torch.testing.assert_close(linear_w4a16(x, packed, bias), F.linear(x, dequantize_weight(packed), bias))


def test_errors_come_in_the_expected_order():
    weight, bias = layer(128, 512)
    packed, x = pack_weight(weight), torch.randn(64, 512)
    exact = F.linear(x, dequantize_weight(packed), bias)
    four, eight = (error(quantized_linear(x, packed, bias, name), exact) for name in ("nvfp4", "int8"))
    assert eight < 0.015 < 0.05 < four < 0.13


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("loops", [True, False], ids=["compiled", "pytorch"])
@pytest.mark.parametrize(
    ("shape", "size"),
    [((2, 37), 256), ((1,), 128), ((70,), 192), ((3, 33), 96), ((5, 9, 2), 48), ((64,), 40), ((), 64)],
)
def test_fast_path_equals_the_definition(precision, loops, shape, size, monkeypatch):
    if not loops:
        monkeypatch.setattr("kernels.target.compiled", lambda name: None)
    weight, bias = layer(24, size)
    packed, x = pack_weight(weight), torch.randn(*shape, size)
    fast = quantized_linear(x, packed, bias, precision)
    definition = PRODUCTS[precision](x, packed, bias)
    assert fast.shape == definition.shape == (*shape, 24)
    # A value on a rounding boundary may fall either way: one code, in one or two of the tokens.
    assert error(fast, definition) < 2e-3
    rows = (fast - definition).view(-1, 24).norm(dim=1) / definition.view(-1, 24).norm(dim=1)
    assert (rows < 1e-5).float().mean() > 0.95 or rows.numel() < 20


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_inputs(precision, dtype):
    weight, bias = layer()
    packed, x = pack_weight(weight), torch.randn(40, 256).to(dtype)
    y = quantized_linear(x, packed, bias.to(dtype), precision)
    assert y.dtype == dtype
    assert error(y, quantized_linear(x.float(), packed, bias, precision)) < 0.01


def test_a_cpu_with_bfloat16_multiplies_in_it(monkeypatch):
    from kernels import target

    weight, bias = layer()
    packed, x = pack_weight(weight), torch.randn(40, 256).to(torch.bfloat16)
    expected = {name: quantized_linear(x, packed, bias, name) for name in PRECISIONS}
    probe = target.probe
    monkeypatch.setattr("kernels.target.probe", lambda device: probe(device)._replace(native_bf16=True))
    for name in PRECISIONS:
        assert error(quantized_linear(x, packed, bias, name), expected[name]) < 0.01


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("tokens", [3, 64])
def test_nan_and_inf_are_never_swallowed(precision, bad, tokens):
    weight, bias = layer()
    packed, x = pack_weight(weight), torch.randn(tokens, 256)
    x[1, 5] = bad
    y = quantized_linear(x, packed, bias, precision)
    assert not y[1].isfinite().any()
    assert y[0].isfinite().all() and y[2:].isfinite().all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_joined_weights_give_the_parts_outputs(precision):
    parts = [pack_weight(layer(16, seed=seed)[0]) for seed in range(3)]
    x = torch.randn(2, 20, 256)
    whole = quantized_linear(x, concat_packed(parts), None, precision)
    apart = torch.cat([quantized_linear(x, part, None, precision) for part in parts], -1)
    torch.testing.assert_close(whole, apart, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_strides_zeros_no_tokens_and_no_bias(precision):
    packed = pack_weight(layer()[0])
    x = torch.randn(256, 80).T[::2]
    workspace = Workspace()
    y = quantized_linear(x, packed, None, precision, workspace=workspace)
    assert torch.equal(y, quantized_linear(x.contiguous(), packed, None, precision, workspace=workspace))
    assert (quantized_linear(torch.zeros(4, 256), packed, None, precision) == 0).all()
    assert quantized_linear(torch.zeros(0, 256), packed, None, precision).shape == (0, 40)


def test_same_samples_and_same_runs_give_the_same_bits():
    packed, x = pack_weight(layer()[0]), torch.randn(1, 90, 256)
    for precision in PRECISIONS:
        twice = quantized_linear(x.repeat(2, 1, 1), packed, None, precision)
        assert torch.equal(twice, quantized_linear(x.repeat(2, 1, 1), packed, None, precision))
        torch.testing.assert_close(twice[0], twice[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_thread_count_does_not_change_the_quantized_values(dtype):
    # The product's own sums may, so the weight picks single values.
    packed, x = pack_weight(torch.eye(256), hadamard=1), torch.randn(700, 256).to(dtype)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append([quantized_linear(x, packed, None, precision) for precision in ("int8", "nvfp4")])
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(ours, same) for ours, same in zip(results[0], other))


def test_four_over_six_is_passed_on():
    packed, x = pack_weight(layer(64, 512)[0]), torch.randn(64, 512)
    exact = F.linear(x, dequantize_weight(packed))
    plain, better = (quantized_linear(x, packed, None, "nvfp4", four_over_six=choice) for choice in (False, True))
    assert error(better, exact) < error(plain, exact)
    act = quantize_nvfp4(x, packed.hadamard, four_over_six=True)
    torch.testing.assert_close(better, linear_w4a4(act, packed), rtol=1e-5, atol=1e-5)


def test_wrong_use_gets_a_sentence():
    packed = pack_weight(layer()[0])
    with pytest.raises(ValueError, match='Unknown precision "fp4": expected one of nvfp4, int8, w4a16'):
        quantized_linear(torch.zeros(2, 256), packed, None, "fp4")
    with pytest.raises(ValueError, match="last dimension is 128 but the packed weight"):
        quantized_linear(torch.zeros(2, 128), packed, None, "int8")
    with pytest.raises(ValueError, match="float input"):
        quantized_linear(torch.zeros(2, 256, dtype=torch.int32), packed, None, "int8")
