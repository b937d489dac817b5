"""Linear layers that hold one packed NVFP4 weight and ask the active run how to multiply.

The unit is the `Group`: linears that read one input (query, key and value) share one packed
weight, one decision, one quantization and one product. A layer changes its class in place and
changes back; its bias, its hooks and everybody's references to it stay what they were. Packed
data are integer buffers, because a cast such as `pipe.to(torch.bfloat16)` rewrites every
floating-point buffer, scales included.

A layer holds nothing that a run may change. What belongs to a run lies in the run.
"""

from __future__ import annotations

from typing import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from kernels import PackedWeight, concat_packed, pack_weight, packed_nbytes

FIELDS = PackedWeight._fields[:4]
"""The tensors of a packed weight, by name: each is a buffer of the layer that holds it and is in packed checkpoints."""


class Group:
    """Linears of one block that share an input, and the packed weight they share.

    owner: the attachment, which knows the active run of this thread.
    model, block: the transformer's slot in the pipeline and the block's index.
    name: the group's name in the family table.
    members: the linears, in the order of the packed rows.
    static: packed W4A16 without a decision (AdaLN modulation, keys of a constant context).
    """

    def __init__(self, owner, model: str, block: int, name: str, members: Sequence[nn.Linear], static: bool):
        self.owner, self.model, self.block, self.name = owner, model, block, name
        self.members, self.static = tuple(members), static
        self.sizes = [member.out_features for member in members]
        self.in_features = members[0].in_features
        self.kept_bytes = 0
        self._hadamard = 1

    @property
    def macs_per_token(self) -> int:
        """Multiply-accumulates that one token costs in all members together."""
        return self.in_features * sum(self.sizes)

    @property
    def packed(self) -> PackedWeight:
        """The packed weight of all members, rows in member order, on the device of the layer."""
        return held(self.members[0], (sum(self.sizes), self.in_features), self._hadamard)

    @property
    def bias(self) -> torch.Tensor | None:
        """The members' biases in row order, or None."""
        if len(self.members) == 1:
            return self.members[0].bias
        return self.members[0].group_bias

    def quantize(self, keep: str, packed: PackedWeight | None = None) -> None:
        """Pack the weights and turn the members into `QuantizedLinear`, in place.

        keep: where the originals go: "device" (stay parameters), "cpu" (held aside), or "none"
            (held aside where they are, until `drop_originals`).
        packed: an already packed weight of all members, used instead of packing.
        """
        if packed is None:
            packed = concat_packed([pack_weight(member.weight.detach()) for member in self.members])
        self._hadamard = packed.hadamard
        biases = [member.bias for member in self.members]
        for index, member in enumerate(self.members):
            weight = member._parameters["weight"]
            device = packed.codes.device
            self.kept_bytes += weight.numel() * weight.element_size()
            member.__class__ = QuantizedLinear
            member.__dict__.update(_group=self, _member=index, _original=weight)
            member.register_buffer("like", torch.empty(0, dtype=weight.dtype, device=device), persistent=False)
            if keep != "device":
                del member._parameters["weight"]
            if keep == "cpu":
                # The Parameter object is kept for detach, its device memory is not.
                weight.data = weight.data.to("cpu")
        leader = self.members[0]
        hold(leader, packed)
        if len(self.members) > 1:
            joined = None if biases[0] is None else torch.cat([bias.detach() for bias in biases])
            leader.register_buffer("group_bias", joined, persistent=False)

    def drop_originals(self) -> None:
        """Let go of the 16-bit weights; stock precision and `restore` are over then."""
        self.kept_bytes = 0
        for member in self.members:
            member.__dict__["_original"] = None

    def restore(self) -> None:
        """Give every quantized member its class, parameters and buffers back."""
        for member in self.members:
            if not isinstance(member, QuantizedLinear):
                continue
            weight, like = member._original, member.like
            for name in (*FIELDS, "like", "group_bias"):
                member._buffers.pop(name, None)
                member._non_persistent_buffers_set.discard(name)
            if weight.device != like.device or weight.dtype != like.dtype:
                weight.data = weight.data.to(device=like.device, dtype=like.dtype)
            member._parameters = {"weight": weight, "bias": member._parameters["bias"]}
            for name in ("_group", "_member", "_original"):
                del member.__dict__[name]
            member.__class__ = nn.Linear

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weight."""
        return packed_nbytes(self.packed)


class QuantizedLinear(nn.Linear):
    """A linear layer of a `Group`: asks the active run, and is a plain `nn.Linear` without one.

    Only ever made by `Group.quantize`, which changes the class of an existing layer.
    """

    @property
    def weight(self) -> torch.Tensor:
        """The original where it is kept on the device; otherwise a stand-in."""
        original = self._parameters.get("weight")
        return stand_in(self) if original is None else original

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (…, K) -> (…, N) in x.dtype; the precision is the active run's decision."""
        run = self._group.owner.active()
        if run is None:
            return self.stock(x)
        return run.linear(self._group, self._member, x)

    def stock(self, x: torch.Tensor) -> torch.Tensor:
        """The product with the original weight, exactly as `nn.Linear` computes it.

        Raises RuntimeError if the originals were not kept.
        """
        weight = self._parameters.get("weight")
        if weight is None:
            if self._original is None:
                raise RuntimeError(
                    "The 16-bit weights of this pipeline were dropped (keep='none'), so it cannot run stock precision; "
                    "use a quantized policy, or load it again and attach with keep='cpu'."
                )
            weight = self._original.detach().to(device=self.like.device, dtype=self.like.dtype, non_blocking=True)
        return F.linear(x, weight, self.bias)


def hold(layer: nn.Linear, packed: PackedWeight) -> None:
    """Keep the tensors of a packed weight as buffers of `layer`, so that they move and are saved with it."""
    for name in FIELDS:
        layer.register_buffer(name, getattr(packed, name))


def held(layer: nn.Linear, shape: tuple[int, int], hadamard: int) -> PackedWeight:
    """The packed weight of this shape (N, K) and rotation that `layer` holds."""
    return PackedWeight(*(getattr(layer, name) for name in FIELDS), shape, hadamard)


def stand_in(layer: nn.Linear) -> torch.Tensor:
    """A weight (N, K) of zeros in the dtype and on the device of the buffer `like`, which takes no memory: for code
    that asks a linear for its weight's shape, dtype or device only."""
    return layer.like.new_zeros(()).expand(layer.out_features, layer.in_features)
