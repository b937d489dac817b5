"""A T5 text encoder with packed weights: NVFP4 in memory, W4A16 in the product, about 3.5 times smaller.

The encoder runs once a prompt, so its speed hardly matters; at CogVideoX-5B's size its 9.5 GB in bfloat16 are more
than everything else of a packed pipeline together. Off unless asked for: the weights' own error (7–9 % per layer)
changes what the model is told, and no decision of the policy can take that back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from kernels import PackedWeight, pack_weight, packed_nbytes, quantized_linear

from .linear import held, hold, stand_in

SLOT = "text_encoder"
CLASSES = ("T5EncoderModel", "UMT5EncoderModel")
CHOICES = ("stock", "w4a16")


class PackedLinear(nn.Linear):
    """A linear layer that holds a packed weight and always multiplies W4A16; made by `pack_text_encoder`."""

    @property
    def weight(self) -> torch.Tensor:
        """A stand-in: T5 asks for the dtype."""
        return stand_in(self)

    @property
    def packed(self) -> PackedWeight:
        """The weight, on the layer's device."""
        return held(self, (self.out_features, self.in_features), self._hadamard)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (…, K) -> (…, N) in x.dtype."""
        # Several runs may encode at once, so the unpacked weight lives in memory of this call's own.
        return quantized_linear(x.detach(), self.packed, self.bias, "w4a16")


def pack_text_encoder(
    pipe, progress: Callable[[int, int], None] | None = None, packed: Mapping[str, PackedWeight] | None = None
) -> dict[str, int]:
    """Pack the linears of `pipe.text_encoder` (a T5 or UMT5 encoder) in place; embeddings and norms stay.

    There is no way back: load the pipeline again for the stock encoder. progress: called as progress(done, total).
    packed: ready packed weights by the linear's dotted name inside the encoder; the linears may then be empty (meta).

    Returns bytes of the linears' weights: "before" and "after". Raises ValueError in one sentence, with nothing
    changed, for another kind of encoder, one that is packed already, offloaded, or wrapped by adapters.
    """
    encoder = getattr(pipe, SLOT, None)
    linears = linears_of(encoder)
    before = after = 0
    for done, (name, linear) in enumerate(linears.items(), 1):
        weight = linear._parameters["weight"]
        made = pack_weight(weight.detach()) if packed is None else packed[name]
        before += weight.numel() * weight.element_size()
        after += packed_nbytes(made)
        _adopt(linear, made, weight.dtype)
        del weight
        if progress is not None:
            progress(done, len(linears))
    return {"before": before, "after": after}


def packed_linears(encoder) -> dict[str, PackedWeight]:
    """The packed weights of an encoder by dotted name; empty for a stock one."""
    return {name: module.packed for name, module in encoder.named_modules() if isinstance(module, PackedLinear)}


def _adopt(linear: nn.Linear, made: PackedWeight, dtype: torch.dtype) -> None:
    del linear._parameters["weight"]
    linear.__class__ = PackedLinear
    linear.__dict__["_hadamard"] = made.hadamard
    hold(linear, made)
    linear.register_buffer("like", torch.empty(0, dtype=dtype, device=made.codes.device), persistent=False)


def linears_of(encoder) -> dict[str, nn.Linear]:
    """The linears of a T5 encoder that can be packed, by dotted name. Raises ValueError for an encoder that cannot."""
    name = type(encoder).__name__
    if name not in CLASSES:
        raise ValueError(
            f"Only a text encoder of the classes {', '.join(CLASSES)} can be packed; this pipeline's is a {name}."
        )
    if packed_linears(encoder):
        raise ValueError("This text encoder is packed already; nothing to do.")
    if any("_hf_hook" in module.__dict__ or "base_layer" in module._modules for module in encoder.modules()):
        raise ValueError(
            "The text encoder has offloading hooks or adapters; remove them, pack it, then enable offloading again."
        )
    found = {path: module for path, module in encoder.named_modules() if type(module) is nn.Linear}
    if not found:
        raise ValueError("The text encoder has no plain linear layers; load it without a quantization config.")
    return found
