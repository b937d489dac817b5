"""AdaLN's LayerNorm and modulation, fused with the quantization of what it makes.

    y = LayerNorm(x) · (1 + scale) + shift

Stock diffusers writes y to memory three times and reads it back each time; here a token goes
from x to rotated INT8 or NVFP4 codes in one read. Several streams (CogVideoX: text, then video)
land in one activation, as the concatenation that the attention and FFN products expect.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

import torch

from kernels import target
from kernels.activations import Int8Activation, Nvfp4Activation
from kernels.hadamard import check_block
from kernels.quantize_int8 import quantize_int8_torch
from kernels.quantize_nvfp4 import quantize_nvfp4_torch

QUANTIZED = (None, "int8", "nvfp4")


class Stream(NamedTuple):
    """One residual stream and its modulation.

    x: (batch, tokens, C) float. shift, scale: (batch, C) float, or None for no modulation.
    """

    x: torch.Tensor
    shift: torch.Tensor | None = None
    scale: torch.Tensor | None = None


def norm_modulate(
    streams: Sequence[Stream],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    eps: float = 1e-5,
    quantize: str | None = None,
    hadamard: int = 1,
    four_over_six: bool = False,
) -> torch.Tensor | Int8Activation | Nvfp4Activation:
    """LayerNorm over the channels, modulation, and quantization after a block Hadamard rotation.

    streams: of one batch size, C and dtype; they are concatenated along the tokens in this order.
    weight, bias: (C,), the norm's affine parameters shared by all streams, or None.
    quantize: None | "int8" | "nvfp4"; hadamard: block of the rotation, 1 for none.

    Returns, for the shape (batch, all tokens, C): the normalized tensor in the streams' dtype,
    or an Int8Activation / Nvfp4Activation as `quantize_int8` / `quantize_nvfp4` of the float32 y
    would make it, with absmax and abssum of each token taken before the rotation. In a
    CogVideoX block (norm1 before q, k, v; norm2 before the FFN):

        shift, scale, gate, text_shift, text_scale, text_gate = modulation.chunk(6, dim=1)
        act = norm_modulate([Stream(text, text_shift, text_scale), Stream(video, shift, scale)],
                            norm.weight, norm.bias, eps=norm.eps, quantize="int8", hadamard=128)

    Raises ValueError if the streams do not fit together, or for an unknown `quantize`.
    """
    streams = [Stream(*stream) for stream in streams]
    _check(streams, quantize)
    if quantize is not None:
        check_block(streams[0].x.shape[-1], hadamard)
    if target.probe(streams[0].x.device).triton:
        from kernels.norm_modulate_triton import norm_modulate_triton as twin
    else:
        twin = norm_modulate_torch
    return twin(streams, weight, bias, eps, quantize, hadamard, four_over_six)


def norm_modulate_torch(
    streams, weight=None, bias=None, eps=1e-5, quantize=None, hadamard=1, four_over_six=False
):
    """`norm_modulate` in plain PyTorch: the definition, and the path without Triton."""
    parts = []
    for x, shift, scale in streams:
        affine = [None if part is None else part.float() for part in (weight, bias)]
        y = torch.nn.functional.layer_norm(x.float(), x.shape[-1:], *affine, eps)
        if scale is not None:
            y = y * (1.0 + scale.float()[:, None])
        if shift is not None:
            y = y + shift.float()[:, None]
        parts.append(y)
    return finish(torch.cat(parts, dim=1), streams[0].x.dtype, quantize, hadamard, four_over_six)


def finish(y, dtype, quantize, hadamard, four_over_six):
    """The float32 result of a fused op as the caller asked for it (the definition)."""
    if quantize == "int8":
        return quantize_int8_torch(y, hadamard)
    if quantize == "nvfp4":
        return quantize_nvfp4_torch(y, hadamard, four_over_six)
    return y.to(dtype)


def _check(streams: list[Stream], quantize: str | None) -> None:
    if quantize not in QUANTIZED:
        raise ValueError(f'quantize must be None, "int8" or "nvfp4", but it is {quantize!r}.')
    if not streams or any(stream.x.dim() != 3 for stream in streams):
        raise ValueError("norm_modulate needs at least one stream of shape (batch, tokens, C).")
    first = streams[0].x
    for x, shift, scale in streams:
        if x.shape[0] != first.shape[0] or x.shape[-1] != first.shape[-1] or x.dtype != first.dtype:
            raise ValueError(
                "All streams must share batch size, channels and dtype, but they are "
                f"{[(tuple(stream.x.shape), str(stream.x.dtype)) for stream in streams]}."
            )
        wanted = (x.shape[0], x.shape[-1])
        for name, part in (("shift", shift), ("scale", scale)):
            if part is not None and tuple(part.shape) != wanted:
                raise ValueError(f"{name} must have shape {wanted}, but it has {tuple(part.shape)}.")
