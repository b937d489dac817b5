"""A CogVideoX block as few passes over memory as possible, on a card with Triton.

Stock diffusers spends more of a step on LayerNorm, modulation, per-head normalization and other elementwise work than
on all matrix products together. Here a token goes from the residual stream to rotated INT8 or NVFP4 codes in one read,
q, k and v come from one product over the text and video tokens, and each gated residual is one pass. The arithmetic is
that of `CogVideoXBlock.forward` with float32 between the roundings that remain; the decisions, the measurements and
the cache are the evaluation's, as on the plain path. Nothing here waits for the device.

Why a second forward at all, where everything else calls the stock one: the fusions cut across the stock block's
submodules (a norm writes the codes that a linear reads), so they cannot be had by replacing modules. `applies` is
strict, and anything it does not know (another attention processor, hooks, adapters) takes the stock forward.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels import quantize_int8, quantize_nvfp4, target
from kernels.gate_residual import gate_residual
from kernels.gelu_quantize import gelu_quantize
from kernels.norm_modulate import Stream, norm_modulate
from kernels.qk_norm_rope import qk_norm_rope

from .products import Quantized, feed_forward

_GROUPS = ("qkv", "out", "up", "down")
INPUTS = {"qkv": "norm", "up": "norm", "down": "gelu"}
"""What makes the input of a group, where it is not the product before: as `kernels.first_use.Use` says it."""
_PROCESSOR = "CogVideoXAttnProcessor2_0"
# Samples whose queries, keys and values exist at once: 655 MB for two at CogVideoX-5B's size, which is a block's peak.
_SAMPLES = 1


def applies(module, groups, kwargs, x: torch.Tensor) -> bool:
    """Whether this block call may take the fused forward: a CogVideoX block as diffusers builds it, on a Triton device,
    without gradients, hooks or adapters on any of its parts, and no attention arguments of the caller's own."""
    if torch.is_grad_enabled() or not target.probe(x.device).triton:
        return False
    return knows(module, groups, kwargs)


def knows(module, groups, kwargs) -> bool:
    """Whether a block is built, and called, as diffusers builds and calls it."""
    if module.__class__.__name__ != "CogVideoXBlock" or any(name not in groups for name in _GROUPS):
        return False
    attention = module.attn1
    video, text, temb, rope = (
        kwargs.get(name) for name in ("hidden_states", "encoder_hidden_states", "temb", "image_rotary_emb")
    )
    # What the stock block would broadcast over the samples, or refuse.
    if not len(video) == len(text) == len(temb):
        return False
    if rope is not None and any(part.numel() * attention.heads != video[0].numel() for part in rope):
        return False
    if (
        type(attention.processor).__name__ != _PROCESSOR
        or kwargs.get("attention_kwargs")
        or attention.is_cross_attention
    ):
        return False
    if attention.norm_q is None or type(attention.norm_q) is not torch.nn.LayerNorm:
        return False
    if type(module.ff.net[0]).__name__ != "GELU" or module.ff.net[0].approximate != "tanh" or module.training:
        return False
    # An adapter loaded after attach wraps a linear whose product would be taken without it here.
    now = (attention.to_q, attention.to_k, attention.to_v, attention.to_out[0], module.ff.net[0].proj, module.ff.net[2])
    packed = [member for name in _GROUPS for member in groups[name].members]
    if len(now) != len(packed) or any(one is not other for one, other in zip(now, packed)):
        return False
    return not any(part._forward_hooks or part._forward_pre_hooks or _shadowed(part) for part in module.modules())


def _shadowed(part) -> bool:
    # diffusers' hooks and adapters put a forward of their own on the instance.
    return "forward" in part.__dict__


def cogvideox_block(evaluation, module, groups, hidden_states, encoder_hidden_states, temb, image_rotary_emb=None, **_):
    """The block's outputs (video, text), each (batch, tokens, channels) in the input's dtype.

    evaluation: the `Evaluation` whose plan decides and which takes notes.
    """
    video, text = hidden_states, encoder_hidden_states
    samples, tokens = len(video), text.shape[1] + video.shape[1]
    text, video = _attention(evaluation, module, groups, text, video, temb, image_rotary_emb)

    modulation = module.norm2.linear(module.norm2.silu(temb))
    make, gates = _modulated(module.norm2.norm, modulation, text, video, groups["up"])
    # Both streams are this block's own by now, so the last update may land in place.
    feed_forward(
        evaluation, groups["up"], groups["down"], make, _activated, video.dtype, samples, tokens,
        lambda sample, start, update: _add(text, video, text, video, gates, update, slice(sample, sample + 1), start),
    )  # fmt: skip
    return video, text


def _attention(evaluation, module, groups, text, video, temb, rope):
    """The streams after the gated attention, (text, video), in memory of their own."""
    attention, dtype, first = module.attn1, video.dtype, text.shape[1]
    rows = len(video) * (first + video.shape[1])
    parts = [slice(start, start + _SAMPLES) for start in range(0, len(video), _SAMPLES)]
    modulation = module.norm1.linear(module.norm1.silu(temb))
    make, gates = _modulated(module.norm1.norm, modulation, text, video, groups["qkv"])
    joint = Quantized(evaluation, groups["qkv"], make, parts, rows, dtype)
    after = tuple(torch.empty(stream.shape, dtype=dtype, device=stream.device) for stream in (text, video))
    mixed: dict[int, torch.Tensor] = {}

    def mix(index: int) -> None:
        q, k, v = joint(index).split(groups["qkv"].sizes, dim=-1)
        qk_norm_rope(
            q, k, attention.heads, attention.norm_q.weight, attention.norm_q.bias, attention.norm_k.weight,
            attention.norm_k.bias, norm="layer", eps=attention.norm_q.eps, rope=rope, first=first,
        )  # fmt: skip
        heads = (part.unflatten(-1, (attention.heads, -1)).transpose(1, 2) for part in (q, k, v))
        mixed[parts[index].start] = attend(*heads).transpose(1, 2).flatten(2)

    def quantized() -> Quantized:
        return Quantized(evaluation, groups["out"], _quantizer(mixed, groups["out"]), parts, rows, dtype)

    if evaluation.purifiable(groups["out"]):
        for index in range(len(parts)):
            mix(index)
        del joint, make
        out = quantized()
    else:
        out = quantized()
    for index, part in enumerate(parts):
        if part.start not in mixed:
            mix(index)
        update = out(index)
        del mixed[part.start]
        _add(*after, text, video, gates, update, part)
        del update
    return after


def _add(text_out, video_out, text, video, gates, update, samples: slice, start: int = 0) -> None:
    """Gate `update`, the tokens of these samples from `start` on (text first, then video), onto both streams."""
    first, stop = text.shape[1], start + update.shape[1]
    for stream, out, gate, offset, end in (
        (text, text_out, gates[0], 0, min(stop, first)), (video, video_out, gates[1], first, stop),
    ):  # fmt: skip
        begin = max(start, offset)
        if begin < end:
            here = (samples, slice(begin - offset, end - offset))
            gate_residual(stream[here], update[:, begin - start : end - start], gate[samples], out=out[here])


def _modulated(norm, modulation, text, video, group):
    shift, scale, gate, text_shift, text_scale, text_gate = modulation.chunk(6, dim=1)
    inputs = ((text, text_shift, text_scale), (video, shift, scale))

    def make(precision, samples):
        streams = [Stream(*(part[samples] for part in stream)) for stream in inputs]
        return norm_modulate(
            streams, norm.weight, norm.bias, eps=norm.eps, quantize=precision, hadamard=group.packed.hadamard
        )

    return make, (text_gate, gate)


def _quantizer(inputs: dict[int, torch.Tensor], group):
    def make(precision, samples):
        x = inputs[samples.start]
        if precision is None:
            return x
        return (quantize_int8 if precision == "int8" else quantize_nvfp4)(x, group.packed.hadamard)

    return make


def _activated(x: torch.Tensor, precision: str | None, group):
    return gelu_quantize(x, quantize=precision, hadamard=group.packed.hadamard)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Softmax attention, (batch, heads, tokens, D) each, by the backend that was fastest where we measured.

    On an H200 cuDNN runs D = 64 at 406–417 TFLOP/s against flash's 319 (17,776 tokens); elsewhere PyTorch chooses.
    """
    if q.is_cuda and torch.cuda.get_device_capability(q.device) >= (9, 0) and q.dtype != torch.float32:
        asked = torch.backends.cuda.SDPAParams(q, k, v, None, 0.0, False, False)
        if torch.backends.cuda.can_use_cudnn_attention(asked):
            # Called by name: the switches that choose a backend hold for the whole process, so other threads would see
            # them, and setting an order once takes PyTorch's own preference for cuDNN away for good.
            return torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, False)[0]
    return F.scaled_dot_product_attention(q, k, v)
