"""The Triton kernels against their PyTorch twins on a real GPU, at sizes that use every launch form."""

import pytest
import torch
import torch.nn.functional as F

from kernels import (
    PRECISIONS,
    Workspace,
    dequantize,
    dequantize_weight,
    hadamard_block,
    int8_weight,
    pack_weight,
    quantized_linear,
)
from kernels.linear_w4a4 import linear_w4a4_torch
from kernels.linear_w4a8 import linear_w4a8_torch
from kernels.quantize_int8 import quantize_int8_torch
from kernels.quantize_nvfp4 import quantize_nvfp4_torch

pytestmark = pytest.mark.gpu

# Tokens and channels: one token, ragged, a modulation layer, video sizes.
SHAPES = [(1, 128, 64), (33, 40, 70), (2, 512, 3072), (700, 1056, 200), (2500, 3072, 3080)]


def error(approximation, exact):
    return ((approximation.double() - exact.double()).norm() / exact.double().norm()).item()


def assert_same_values(ours, twin, coarse):
    """Values may differ where one lies on a rounding boundary; bfloat16 tokens are rotated in bfloat16."""
    mine, other = dequantize(ours), dequantize(twin)
    int8 = ours.codes.dtype == torch.int8
    assert error(mine, other) < ((0.012 if int8 else 0.08) if coarse else (0.002 if int8 else 0.02))
    if int8:
        assert (ours.codes.int() - twin.codes.int()).abs().max() <= 1


@pytest.fixture(params=SHAPES, ids=str)
def case(request):
    rows, size, columns = request.param
    torch.manual_seed(0)
    x = torch.randn(rows, size, device="cuda").to(torch.bfloat16)
    x[0, 3] = 50
    return x, pack_weight(torch.randn(columns, size, device="cuda") * 0.05), torch.randn(columns, device="cuda")


def test_quantizers(case):
    from kernels.quantize_triton import quantize_int8_triton, quantize_nvfp4_triton

    x, block = case[0], hadamard_block(case[0].shape[1])
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        tokens = x.to(dtype)
        pairs = [(quantize_int8_triton(tokens, block), quantize_int8_torch(tokens, block))]
        for choice in (False, True):
            pairs.append((quantize_nvfp4_triton(tokens, block, choice), quantize_nvfp4_torch(tokens, block, choice)))
        for ours, twin in pairs:
            assert_same_values(ours, twin, dtype == torch.bfloat16)
            torch.testing.assert_close(ours.token_scale, twin.token_scale, rtol=5e-3, atol=0)
            torch.testing.assert_close(ours.absmax, twin.absmax)
            torch.testing.assert_close(ours.abssum, twin.abssum, rtol=1e-4, atol=1e-4)


def test_weight_unpacking(case):
    from kernels.unpack_triton import dequantize_weight_triton, int8_weight_triton

    packed = case[1]
    assert (int8_weight_triton(packed) != int8_weight(packed)).sum() <= 2
    assert error(dequantize_weight_triton(packed, torch.float32), dequantize_weight(packed)) < 1e-4


def test_products(case):
    from kernels.linear_w4a4_triton import linear_w4a4_triton
    from kernels.linear_w4a8_triton import linear_w4a8_triton

    x, packed, bias = case
    workspace = Workspace()
    act = quantize_int8_torch(x, packed.hadamard)
    twin = linear_w4a8_torch(act, packed, bias, torch.float32)
    assert error(linear_w4a8_triton(act, packed, bias, torch.float32, workspace), twin) < 1e-4
    act = quantize_nvfp4_torch(x, packed.hadamard)
    twin = linear_w4a4_torch(act, packed, bias, torch.float32)
    assert error(linear_w4a4_triton(act, packed, bias, torch.float32, workspace), twin) < 1e-4


def test_the_entry(case):
    x, packed, bias = case
    exact = F.linear(x.float(), dequantize_weight(packed), bias)
    for precision, limit in zip(PRECISIONS, (0.14, 0.03, 0.01)):
        y = quantized_linear(x, packed, bias, precision, workspace=Workspace())
        assert y.dtype == x.dtype and error(y, exact) < limit
        assert torch.equal(y, quantized_linear(x, packed, bias, precision))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_is_not_swallowed(precision):
    packed, x = pack_weight(torch.randn(64, 256, device="cuda")), torch.randn(40, 256, device="cuda")
    x[7, 7] = float("nan")
    y = quantized_linear(x, packed, None, precision)
    assert y[7].isnan().all() and y[:7].isfinite().all() and y[8:].isfinite().all()


@pytest.mark.parametrize("columns", [3072, 3080])
def test_a_video_sized_int8_product_adds_its_bias(columns):
    from kernels.scaled_matmul_triton import scaled_matmul

    a = torch.randint(-127, 128, (2500, 3072), dtype=torch.int8, device="cuda")
    b = torch.randint(-127, 128, (columns, 3072), dtype=torch.int8, device="cuda")
    scales = torch.rand(2500, device="cuda") * 1e-3, torch.rand(columns, device="cuda") * 1e-2
    for bias in (torch.randn(columns, device="cuda") * 10, torch.randn(columns, device="cuda").bfloat16(), None):
        exact = (a.double() @ b.double().T) * scales[0][:, None].double() * scales[1].double()
        exact += 0 if bias is None else bias.double()
        out = torch.empty(2500, columns, dtype=torch.bfloat16, device="cuda")
        scaled_matmul(a, b, scales[0], scales[1].view(torch.int32), bias, out)
        torch.testing.assert_close(out.double(), exact, rtol=5e-3, atol=1e-4)


def test_launch_forms_agree():
    from kernels.scaled_matmul_triton import Tiles, scaled_matmul

    a = torch.randint(-127, 128, (900, 1040), dtype=torch.int8, device="cuda")
    b = torch.randint(-127, 128, (770, 1040), dtype=torch.int8, device="cuda")
    scales = torch.rand(900, device="cuda"), torch.rand(770, device="cuda")
    exact = (a.double() @ b.double().T).float() * scales[0][:, None] * scales[1]
    forms = [(False, False), (False, True)]
    if torch.cuda.get_device_capability() >= (9, 0):
        forms += [(True, False), (True, True)]
    for tma, persistent in forms:
        out = torch.empty(900, 770, device="cuda")
        tiles = Tiles(128, 128, 64, 8, 3, tma, persistent)
        scaled_matmul(a, b, scales[0], scales[1].view(torch.int32), None, out, tiles=tiles)
        torch.testing.assert_close(out, exact, rtol=1e-5, atol=0)


def test_a_verdict_on_the_device_stops_a_product():
    from kernels.linear_w4a8_triton import linear_w4a8_triton

    packed, x = pack_weight(torch.randn(64, 256, device="cuda")), torch.randn(40, 256, device="cuda")
    act, verdict = quantize_int8_torch(x, packed.hadamard), torch.ones(1, dtype=torch.int32, device="cuda")
    out = torch.full((40, 64), 7.0, device="cuda")
    linear_w4a8_triton(act, packed, None, torch.float32, when=(verdict, 0), out=out)
    assert (out == 7).all()
    linear_w4a8_triton(act, packed, None, torch.float32, when=(verdict, 1), out=out)
    assert error(out, linear_w4a8_torch(act, packed, None, torch.float32)) < 1e-4
