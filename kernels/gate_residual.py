"""The gated residual: x + gate · update, one read of each and one write."""

from __future__ import annotations

import torch

from kernels import target


def gate_residual(
    x: torch.Tensor,
    update: torch.Tensor,
    gate: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """x + gate · update, computed in float32 and rounded once to x's dtype.

    x, update: (batch, tokens, C); `update` may be a strided slice, such as the video tokens of
    the joint attention's output. gate: (batch, C), or None for 1.
    out: where to write, of x's shape and contiguous; `out=x` works in place. Never write into the
    input of a block whose delta is still to be taken.

    Raises ValueError if the shapes do not fit together.
    """
    if x.shape != update.shape or x.dim() != 3:
        raise ValueError(
            "gate_residual needs x and update of one shape (batch, tokens, C), but they are "
            f"{tuple(x.shape)} and {tuple(update.shape)}."
        )
    if gate is not None and tuple(gate.shape) != (x.shape[0], x.shape[2]):
        raise ValueError(
            f"gate must have shape {(x.shape[0], x.shape[2])}, but it has {tuple(gate.shape)}."
        )
    if out is not None and (out.shape != x.shape or not out.is_contiguous()):
        raise ValueError(f"out must be contiguous with shape {tuple(x.shape)}.")
    if target.probe(x.device).triton:
        from kernels.gate_residual_triton import gate_residual_triton as twin
    else:
        twin = gate_residual_torch
    return twin(x, update, gate, out)


def gate_residual_torch(x, update, gate=None, out=None):
    """`gate_residual` in plain PyTorch: the definition, and the path without Triton."""
    total = update.float() if gate is None else update.float() * gate.float()[:, None]
    total = (x.float() + total).to(x.dtype)
    return total if out is None else out.copy_(total)
