"""Query/key norm and rotary embedding: the definition against the stock attention's steps."""

import pytest
import torch

pytest.importorskip("diffusers")

from diffusers.models.embeddings import apply_rotary_emb  # noqa: E402
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed  # noqa: E402

from kernels.qk_norm_rope import qk_norm_rope  # noqa: E402

TEXT = 3


def test_cogvideox():
    torch.manual_seed(0)
    norm_q, norm_k = torch.nn.LayerNorm(16, eps=1e-6), torch.nn.LayerNorm(16, eps=1e-6)
    for norm in (norm_q, norm_k):
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    joint = torch.randn(2, 10, 3 * 64)
    q, k, v = joint.chunk(3, dim=-1)
    angles = torch.randn(10 - TEXT, 8).repeat_interleave(2, dim=1)
    rope = angles.cos(), angles.sin()
    expected = []
    with torch.no_grad():
        for x, norm in ((q, norm_q), (k, norm_k)):
            heads = norm(x.clone().view(2, 10, 4, 16).transpose(1, 2))
            heads[:, :, TEXT:] = apply_rotary_emb(heads[:, :, TEXT:], rope)
            expected.append(heads)
        value = v.clone()
        affine = norm_q.weight, norm_q.bias, norm_k.weight, norm_k.bias
        qk_norm_rope(q, k, 4, *affine, rope=rope, first=TEXT)
    for ours, stock in zip((q, k), expected):
        torch.testing.assert_close(ours.unflatten(-1, (4, 16)).transpose(1, 2), stock, rtol=1e-5, atol=1e-5)
    assert torch.equal(v, value), "the values pass untouched"


def test_wan():
    torch.manual_seed(0)
    norm_q, norm_k = torch.nn.RMSNorm(48, eps=1e-5), torch.nn.RMSNorm(48, eps=1e-5)
    for norm in (norm_q, norm_k):
        torch.nn.init.normal_(norm.weight)
    rope = WanRotaryPosEmbed(24, (1, 2, 2), 32)(torch.empty(1, 4, 2, 4, 4))
    tokens = rope[0].shape[1]
    q, k = torch.randn(2, tokens, 48), torch.randn(2, tokens, 48)

    def stock(x, norm):
        x = norm(x).unflatten(2, (2, -1))
        even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = rope[0][..., 0::2], rope[1][..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)

    with torch.no_grad():
        expected = stock(q, norm_q), stock(k, norm_k)
        qk_norm_rope(q, k, 2, norm_q.weight, None, norm_k.weight, None, norm="rms", eps=1e-5, rope=rope)
    for ours, other in zip((q, k), expected):
        torch.testing.assert_close(ours.unflatten(-1, (2, 24)).float(), other.float(), rtol=1e-5, atol=1e-5)


def test_refusals_are_sentences():
    q = torch.randn(1, 5, 64)
    with pytest.raises(ValueError, match="share one shape"):
        qk_norm_rope(q, q[:, 1:], 4)
    with pytest.raises(ValueError, match='"layer" or "rms"'):
        qk_norm_rope(q, q.clone(), 4, norm="batch")
    with pytest.raises(ValueError, match="covers 4 tokens"):
        qk_norm_rope(q, q.clone(), 4, rope=(torch.ones(4, 16), torch.ones(4, 16)), first=2)
    turned = torch.randn(1, 64, 5).transpose(1, 2)
    with pytest.raises(ValueError, match="contiguous"):
        qk_norm_rope(turned, turned, 4)
