"""GELU fused with quantization: its definition."""

import pytest
import torch

pytest.importorskip("diffusers")

from diffusers.models.activations import GELU  # noqa: E402

from kernels import quantize_int8, quantize_nvfp4  # noqa: E402
from kernels.gelu_quantize import gelu_quantize  # noqa: E402


def test_equals_the_stock_activation():
    x = torch.randn(2, 5, 64) * 3
    stock = GELU(64, 64, approximate="tanh").gelu(x)
    torch.testing.assert_close(gelu_quantize(x, quantize=None), stock, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "quantizer"), [("int8", quantize_int8), ("nvfp4", quantize_nvfp4)])
def test_quantizes_what_the_plain_quantizer_would(name, quantizer):
    x = torch.randn(2, 5, 64) * 3
    fused = gelu_quantize(x, quantize=name, hadamard=64)
    plain = quantizer(torch.nn.functional.gelu(x, approximate="tanh"), 64)
    assert all(torch.equal(ours, other) for ours, other in zip(fused[:-1], plain[:-1]))
    assert fused.shape == (2, 5, 64)


def test_refuses_an_unknown_format():
    with pytest.raises(ValueError, match='None, "int8" or "nvfp4"'):
        gelu_quantize(torch.randn(2, 16), quantize="fp8")
