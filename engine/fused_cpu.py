"""A CogVideoX block on a CPU, in six passes around its four products.

As in `engine.fused`, whose arithmetic and decisions these are; but a CPU's passes are not a card's. A product's sums go
straight to the pass that reads them, the gated residual and the LayerNorm after it are one pass, nothing is cut into
samples, and PDR's verdict is a branch on the spot. A group in INT8 or NVFP4 gets its quantized input from the pass
before; W4A16 gets the values and multiplies as the plain path does.
"""

from __future__ import annotations

import torch

from kernels import cpu_fused, quantized_linear
from kernels.cpu_fused import Made, Norm, Product
from kernels.outlier_predicate import outlier_predicate

from . import fused
from . import policy as rules

_GROUPS = ("qkv", "out", "up", "down")
# Sums of one product that live at once; a block of a larger model takes the plain path, which cuts them.
_MOST_SUMS = 1 << 24


def applies(module, groups, kwargs, x: torch.Tensor) -> bool:
    """Whether this block call may take the passes: see `engine.fused.applies`, on a CPU with Numba."""
    if torch.is_grad_enabled() or not cpu_fused.fits(x) or not fused.knows(module, groups, kwargs):
        return False
    text = kwargs["encoder_hidden_states"]
    tokens = len(x) * (x.shape[1] + text.shape[1])
    widest = max(sum(groups[name].sizes) for name in _GROUPS)
    head = x.shape[-1] // module.attn1.heads
    return text.dtype == x.dtype and tokens * widest <= _MOST_SUMS and head % 16 == 0


def cogvideox_block(evaluation, module, groups, hidden_states, encoder_hidden_states, temb, image_rotary_emb=None, **_):
    """The block's outputs (video, text), each (samples, tokens, channels) in the input's dtype, in memory of their own.

    evaluation: the `Evaluation` whose plan decides and which takes notes.
    """
    video, text = hidden_states.contiguous(), encoder_hidden_states.contiguous()
    samples, plain, dtype, attention = len(video), text.shape[1], video.dtype, module.attn1
    work = _Products(evaluation, samples)

    first = _norm(module.norm1, temb, groups["qkv"])
    product = work(groups["qkv"], lambda precision: cpu_fused.streams(text, video, first, precision)[0])
    norms = attention.norm_q, attention.norm_k
    affine = torch.stack([part for norm in norms for part in _affine(norm)])
    heads = cpu_fused.split_heads(
        product, samples, attention.heads, affine, attention.norm_q.eps, image_rotary_emb, plain, dtype
    )
    mixed = torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(0, 1).flatten(1)
    update = work(groups["out"], lambda precision: _as_made(mixed, precision, groups["out"].packed.hadamard))

    second = _norm(module.norm2, temb, groups["up"])
    planned = evaluation.planned(groups["up"]).precision
    made, text, video = cpu_fused.streams(text, video, second, planned, update, first.modulation)

    def again(precision: str) -> Made:
        return cpu_fused.streams(text, video, second, precision)[0]

    product = work(groups["up"], again, made)
    block = groups["down"].packed.hadamard
    update = work(groups["down"], lambda precision: cpu_fused.activated(product, block, precision, dtype))
    _, text, video = cpu_fused.streams(text, video, None, update=update, gates=second.modulation)
    return video, text


class _Products:
    """Products of a block's groups in the precision decided for each."""

    def __init__(self, evaluation, samples: int):
        self._evaluation, self._samples = evaluation, samples

    def __call__(self, group, make, made: Made | None = None) -> Product:
        """The product of `group`. make: precision → its input; made: if there, what `make` gives as planned."""
        evaluation, packed = self._evaluation, group.packed
        decision = evaluation.planned(group)
        precision = decision.precision
        if made is None:
            made = make(precision)
        count = made.absmax.shape[0]
        if evaluation.purifiable(group):
            policy = evaluation.policy
            verdict = outlier_predicate(
                made.absmax, made.abssum, self._samples, group.in_features, policy.outlier_threshold
            )
            evaluation.settle(group, None, count, ratio=verdict.ratio.max())
            if precision in rules.purifiable(policy) and int(verdict.flag):
                precision = policy.purify_to
                made = make(precision)
        else:
            evaluation.settle(group, decision, count)
        workspace = evaluation.workspace
        if precision != "w4a16":
            return cpu_fused.multiply(made, precision, packed, group.bias, workspace)
        sums = quantized_linear(made.values, packed, None, precision, workspace=workspace)
        ones = torch.ones(max(count, packed.shape[0]))
        return Product(sums, ones[:count], ones[: packed.shape[0]], cpu_fused.offset(group.bias, packed.shape[0]))


def _norm(module, temb, group) -> Norm:
    modulation = module.linear(module.silu(temb)).float().contiguous()
    return Norm(*_affine(module.norm), module.norm.eps, modulation, group.packed.hadamard)


def _affine(norm: torch.nn.LayerNorm) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias, float32 (C,); where the norm has none, those that change nothing."""
    weight = torch.ones(norm.normalized_shape) if norm.weight is None else norm.weight.detach().float()
    bias = torch.zeros(norm.normalized_shape) if norm.bias is None else norm.bias.detach().float()
    return weight, bias


def _as_made(x: torch.Tensor, precision: str, block: int) -> Made:
    if precision != "w4a16":
        return cpu_fused.quantized(x, block, precision)
    magnitude = x.float().abs()
    empty = torch.empty(1)
    return Made(empty, x.to(cpu_fused.operand(x.dtype)), empty, magnitude.amax(-1), magnitude.sum(-1))
