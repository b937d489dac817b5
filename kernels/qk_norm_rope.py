"""Query and key normalization and rotary embedding in one pass, in place.

Stock CogVideoX normalizes 64-wide heads one by one (about 2 ms a call on an H200 at 480p, the
largest single waste of a step), then rotates in a pass of its own. Here each token's q and k are
read and written once. Wan normalizes across all heads and rotates likewise.
"""

from __future__ import annotations

import torch

from kernels import target

NORMS = ("layer", "rms")


def qk_norm_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    heads: int,
    q_weight: torch.Tensor | None = None,
    q_bias: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    k_bias: torch.Tensor | None = None,
    *,
    norm: str = "layer",
    eps: float = 1e-6,
    rope: tuple[torch.Tensor, torch.Tensor] | None = None,
    first: int = 0,
) -> None:
    """Normalize q and k and rotate their tokens from `first` on, overwriting both.

    q, k: (batch, tokens, heads·D) float with contiguous channels, D even; slices of one joint
    q, k, v product may be passed as they are. For attention afterwards, view them as
    `q.unflatten(-1, (heads, D)).transpose(1, 2)`.
    norm: "layer" is LayerNorm over each head's D values, weights and biases (D,) (CogVideoX);
    "rms" is RMSNorm over all heads, weights (heads·D,), no bias (Wan).
    rope: (cos, sin), each (tokens − first, D) or with singleton axes around, as diffusers'
    `image_rotary_emb` and Wan's `rotary_emb`; pairs (2j, 2j+1) turn. None: no rotation.
    first: leading tokens that are normalized only (CogVideoX: the text tokens).

    All arithmetic is float32 with one rounding at the end (stock rounds between the two steps).
    Raises ValueError for shapes that do not fit.
    """
    cos, sin = _check(q, k, heads, norm, rope, first)
    arguments = (q, k, heads, q_weight, q_bias, k_weight, k_bias, norm, eps, cos, sin, first)
    here = target.probe(q.device)
    if here.triton:
        from kernels.qk_norm_rope_triton import fits, qk_norm_rope_triton

        if fits(q.shape[-1], heads, norm):
            qk_norm_rope_triton(*arguments)
            return
    qk_norm_rope_torch(*arguments)


def qk_norm_rope_torch(
    q, k, heads, q_weight, q_bias, k_weight, k_bias, norm, eps, cos, sin, first
) -> None:
    """`qk_norm_rope` in plain PyTorch: the definition, and the path without Triton."""
    for x, weight, bias in ((q, q_weight, q_bias), (k, k_weight, k_bias)):
        weight, bias = [None if part is None else part.float() for part in (weight, bias)]
        value = x.float()
        if norm == "layer":
            value = value.unflatten(-1, (heads, -1))
            value = torch.nn.functional.layer_norm(value, value.shape[-1:], weight, bias, eps)
        else:
            value = torch.nn.functional.rms_norm(value, value.shape[-1:], weight, eps)
            value = value.unflatten(-1, (heads, -1))
        if cos is not None:
            value = torch.cat([value[:, :first], _rotate(value[:, first:], cos, sin)], dim=1)
        x.copy_(value.flatten(-2))


def _rotate(value: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    even, odd = value.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([-odd, even], dim=-1).flatten(-2)
    return value * cos[:, None].float() + turned * sin[:, None].float()


def _check(q, k, heads, norm, rope, first):
    if norm not in NORMS:
        raise ValueError(f'norm must be "layer" or "rms", but it is {norm!r}.')
    if q.dim() != 3 or k.shape != q.shape or q.shape[-1] % (2 * heads):
        raise ValueError(
            "q and k must share one shape (batch, tokens, heads x D) with D even, but they are "
            f"{tuple(q.shape)} and {tuple(k.shape)} for {heads} heads."
        )
    if q.stride(-1) != 1 or k.stride(-1) != 1:
        raise ValueError("q and k are overwritten, so their channels must be contiguous.")
    if rope is None:
        return None, None
    width = q.shape[-1] // heads
    cos, sin = (part.reshape(-1, width).contiguous() for part in rope)
    if cos.shape[0] != q.shape[1] - first or sin.shape != cos.shape:
        raise ValueError(
            f"The rotary embedding covers {cos.shape[0]} tokens, but {q.shape[1] - first} tokens "
            "are to be rotated."
        )
    return cos, sin
