"""The fused ops' definitions against the stock diffusers modules that they replace."""

import pytest
import torch

pytest.importorskip("diffusers")

from diffusers.models.normalization import CogVideoXLayerNormZero  # noqa: E402

from kernels import dequantize, hadamard, quantize_int8, quantize_nvfp4  # noqa: E402
from kernels.norm_modulate import Stream, norm_modulate  # noqa: E402


@pytest.fixture
def block():
    torch.manual_seed(0)
    norm = CogVideoXLayerNormZero(32, 64)
    torch.nn.init.normal_(norm.norm.weight)
    torch.nn.init.normal_(norm.norm.bias)
    video, text, temb = torch.randn(2, 11, 64) * 3 + 1, torch.randn(2, 3, 64), torch.randn(2, 32)
    with torch.no_grad():
        stock = norm(video, text, temb)
        shift, scale, _, text_shift, text_scale, _ = norm.linear(norm.silu(temb)).chunk(6, dim=1)
    streams = [Stream(text, text_shift, text_scale), Stream(video, shift, scale)]
    return norm.norm, streams, torch.cat([stock[1], stock[0]], dim=1)


def test_equals_the_stock_norm_on_the_joint_sequence(block):
    norm, streams, stock = block
    joint = norm_modulate(streams, norm.weight, norm.bias, eps=norm.eps)
    torch.testing.assert_close(joint, stock.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "quantizer"), [("int8", quantize_int8), ("nvfp4", quantize_nvfp4)])
@torch.no_grad()
def test_quantizes_what_the_plain_quantizer_would(block, name, quantizer):
    norm, streams, stock = block
    fused = norm_modulate(streams, norm.weight, norm.bias, eps=norm.eps, quantize=name, hadamard=64)
    plain = quantizer(stock.detach(), 64)
    assert fused.shape == plain.shape == (2, 14, 64)
    assert (fused.codes == plain.codes).float().mean() > 0.99
    torch.testing.assert_close(fused.absmax, plain.absmax, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fused.abssum, plain.abssum, rtol=1e-4, atol=1e-4)
    back = hadamard(dequantize(fused), 64)
    limit = 0.02 if name == "int8" else 0.15
    assert (back - stock).norm() / stock.norm() < limit


def test_without_modulation_it_is_layer_norm():
    x = torch.randn(1, 4, 48).to(torch.bfloat16)
    y = norm_modulate([Stream(x)], eps=1e-6)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, torch.nn.functional.layer_norm(x.float(), (48,), eps=1e-6).to(y.dtype))


def test_refusals_are_sentences():
    x = torch.randn(2, 4, 48)
    with pytest.raises(ValueError, match="at least one stream"):
        norm_modulate([])
    with pytest.raises(ValueError, match="must share batch size"):
        norm_modulate([Stream(x), Stream(x[:1])])
    with pytest.raises(ValueError, match="shift must have shape"):
        norm_modulate([Stream(x, torch.randn(2, 47), None)])
    with pytest.raises(ValueError, match='None, "int8" or "nvfp4"'):
        norm_modulate([Stream(x)], quantize="int4")
