"""Triton kernels against their PyTorch twins, run under Triton's interpreter by test_interpreter_products.py."""

import pytest
import torch

from kernels import Workspace, dequantize_weight, hadamard_block, int8_weight, pack_weight, unpack_weight
from kernels.linear_w4a4 import linear_w4a4_torch
from kernels.linear_w4a4_triton import linear_w4a4_triton
from kernels.linear_w4a8 import linear_w4a8_torch
from kernels.linear_w4a8_triton import linear_w4a8_triton
from kernels.linear_w4a16 import linear_w4a16_torch
from kernels.linear_w4a16_triton import linear_w4a16_triton
from kernels.quantize_int8 import quantize_int8_torch
from kernels.quantize_nvfp4 import quantize_nvfp4_torch
from kernels.quantize_triton import quantize_int8_triton, quantize_nvfp4_triton
from kernels.scaled_matmul_triton import Tiles, scaled_matmul
from kernels.target import interpreting
from kernels.unpack_triton import dequantize_weight_triton, int8_weight_triton, unpack_weight_triton

# Rows and channels off every tile: a tail in K, no rotation, one token, several chunks a row.
SHAPES = [((3, 128), torch.float32), ((1, 192), torch.bfloat16), ((2, 2, 40), torch.float32), ((2, 544), torch.float16)]


def tokens(shape, dtype):
    torch.manual_seed(0)
    x = torch.randn(shape)
    x[..., 0, :] *= 30
    x[..., 0, 7] = 100
    if x.numel() > 1000 or shape[-2] > 1:
        x[..., -1, :] = 0
    return x.to(dtype)


def test_the_interpreter_is_on():
    assert interpreting()


def check_tokens(ours, twin, dtype):
    assert ours.shape == twin.shape
    torch.testing.assert_close(ours.absmax, twin.absmax)
    torch.testing.assert_close(ours.abssum, twin.abssum)
    # bfloat16 tokens are rotated in bfloat16, which moves some values over a rounding boundary.
    loose = dtype == torch.bfloat16
    torch.testing.assert_close(ours.token_scale, twin.token_scale, rtol=5e-3 if loose else 1e-5, atol=0)
    assert (ours.codes != twin.codes).float().mean() < (0.08 if loose else 0.01)


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_int8_quantizer(shape, dtype):
    x, block = tokens(shape, dtype), hadamard_block(shape[-1])
    ours, twin = quantize_int8_triton(x, block), quantize_int8_torch(x, block)
    check_tokens(ours, twin, dtype)
    assert (ours.codes.int() - twin.codes.int()).abs().max() <= 1


@pytest.mark.parametrize("four_over_six", [False, True])
@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_nvfp4_quantizer(shape, dtype, four_over_six):
    x, block = tokens(shape, dtype), hadamard_block(shape[-1])
    ours, twin = quantize_nvfp4_triton(x, block, four_over_six), quantize_nvfp4_torch(x, block, four_over_six)
    check_tokens(ours, twin, dtype)
    assert (ours.scales != twin.scales).float().mean() < 0.06


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("quantize", [quantize_int8_triton, quantize_nvfp4_triton])
def test_nan_and_inf_reach_the_token_scale(quantize, bad):
    x = torch.randn(3, 64)
    x[1, 9] = bad
    scale = quantize(x, 64).token_scale
    assert scale[1].isnan() and scale[[0, 2]].isfinite().all()


@pytest.mark.parametrize("size", [40, 128, 1056])
def test_unpacking(size):
    torch.manual_seed(0)
    packed, workspace = pack_weight(torch.randn(5, size)), Workspace()
    assert torch.equal(int8_weight_triton(packed, workspace), int8_weight(packed))
    assert torch.equal(unpack_weight_triton(packed, torch.bfloat16, workspace), unpack_weight(packed, torch.bfloat16))
    ours = dequantize_weight_triton(packed, torch.float32, workspace)
    torch.testing.assert_close(ours, dequantize_weight(packed), rtol=1e-4, atol=1e-5)
    assert workspace.nbytes == 5 * size * 4


@pytest.mark.parametrize(("size", "bias"), [(40, True), (192, False)])
def test_products(size, bias):
    torch.manual_seed(0)
    x, packed = torch.randn(2, 9, size), pack_weight(torch.randn(40, size) * 0.1)
    bias = torch.randn(40) if bias else None
    act = quantize_int8_torch(x, packed.hadamard)
    twin = linear_w4a8_torch(act, packed, bias, torch.float32)
    torch.testing.assert_close(linear_w4a8_triton(act, packed, bias, torch.float32, Workspace()), twin)
    act = quantize_nvfp4_torch(x, packed.hadamard)
    twin = linear_w4a4_torch(act, packed, bias, torch.float32)
    torch.testing.assert_close(linear_w4a4_triton(act, packed, bias, torch.float32, Workspace()), twin)
    twin = linear_w4a16_torch(x, packed, bias)
    torch.testing.assert_close(linear_w4a16_triton(x, packed, bias, Workspace()), twin, rtol=1e-4, atol=1e-4)


def test_activations_are_simulated_in_slices(monkeypatch):
    torch.manual_seed(0)
    packed = pack_weight(torch.randn(40, 64))
    act = quantize_nvfp4_torch(torch.randn(21, 64), packed.hadamard)
    monkeypatch.setattr("kernels.linear_w4a4_triton._CHUNK_BYTES", 8 * 2 * 64)
    twin = linear_w4a4_torch(act, packed, None, torch.float32)
    torch.testing.assert_close(linear_w4a4_triton(act, packed, None, torch.float32), twin)


@pytest.mark.parametrize("inner", [64, 80])
@pytest.mark.parametrize(
    "tiles",
    [
        Tiles(32, 32, 32, 4, 2, False, False),
        Tiles(32, 16, 32, 4, 2, False, True),
        Tiles(16, 32, 32, 4, 2, True, True),
        Tiles(32, 32, 64, 4, 2, True, False),
    ],
)
def test_every_launch_form_of_the_product_is_exact(tiles, inner):
    torch.manual_seed(0)
    a = torch.randint(-127, 128, (70, inner), dtype=torch.int8)
    b = torch.randint(-127, 128, (50, inner), dtype=torch.int8)
    token_scale, row_scale = torch.rand(70), torch.rand(50)
    exact = (a.to(torch.int64) @ b.to(torch.int64).T).float() * token_scale[:, None] * row_scale
    out = torch.empty(70, 50)
    scaled_matmul(a, b, token_scale, row_scale.view(torch.int32), None, out, tiles=tiles)
    torch.testing.assert_close(out, exact, rtol=1e-6, atol=0)


def test_a_product_whose_predicate_says_no_writes_nothing():
    packed, x = pack_weight(torch.randn(20, 32)), torch.randn(4, 32)
    verdict = torch.tensor([1], dtype=torch.int32)
    act8, act4 = quantize_int8_torch(x, packed.hadamard), quantize_nvfp4_torch(x, packed.hadamard)
    twins = [
        (lambda **how: linear_w4a8_triton(act8, packed, None, torch.float32, **how),
         linear_w4a8_torch(act8, packed, None, torch.float32)),
        (lambda **how: linear_w4a4_triton(act4, packed, None, torch.float32, **how),
         linear_w4a4_torch(act4, packed, None, torch.float32)),
        (lambda **how: linear_w4a16_triton(x, packed, None, **how), linear_w4a16_torch(x, packed, None)),
    ]
    for run, twin in twins:
        out = torch.full((4, 20), 7.0)
        run(when=(verdict, 0), out=out)
        assert (out == 7.0).all()
        run(when=(verdict, 1), out=out)
        torch.testing.assert_close(out, twin, rtol=0.02, atol=0.1)
