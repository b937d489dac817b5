"""The signals of the method, computed where the tensors are and read once per step.

Definitions (6Bit-Diffusion, arXiv 2603.18742; where the paper is silent the rule is ours):
Γ = ‖Y−X‖₁ / ‖X‖₁ over all residual streams of a block together; c = ‖Δ−Δ_prev‖₁ / ‖Δ_prev‖₁
per stream; r = max|X| / mean|X| of a layer's input before the rotation. The largest sample
speaks for the batch, and for c the largest stream too.

Every function returns a tensor on the device of its input and waits for nothing. `Gather` moves
all of a step's numbers to the host in one transfer.
"""

from __future__ import annotations

from typing import Sequence

import torch

from kernels import PackedWeight, cpu_fused, outlier_ratio, quantized_linear, target, token_stats
from kernels.residual import residual_delta

# A stream of zeros has no relative change; a floor keeps the ratio a finite, huge number.
_FLOOR = 1e-20


class Gather:
    """Small tensors of one step, read together: one transfer, one wait."""

    def __init__(self):
        self._keys, self._parts = [], []

    def add(self, key, values: torch.Tensor) -> None:
        """Remember `values` (any shape, floating) under a hashable key."""
        self._keys.append((key, values.numel()))
        self._parts.append(values.detach().reshape(-1).float())

    def read(self) -> dict:
        """Key -> list of floats for all that was added; waits for the device."""
        if not self._parts:
            return {}
        device = self._parts[-1].device
        flat = torch.cat([part.to(device) for part in self._parts]).tolist()
        found, start = {}, 0
        for key, count in self._keys:
            found[key] = flat[start : start + count]
            start += count
        return found


def stream_change(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Sums behind Γ for one stream: float32 (batch, 2) = [Σ|y−x|, Σ|x|] per sample.

    x, y: (batch, ..., C). Token sums first, then tokens, so that the order is fixed.
    """
    if target.probe(x.device).triton:
        # One read of each; the delta that comes with it costs less than any pass of PyTorch's own.
        return residual_delta(x, y)[1][:, :2]
    if cpu_fused.fits(x, y):
        return cpu_fused.stream_change(x, y)
    x, y = x.float(), y.float()
    # abs and sum as two passes: four times as fast on a CPU as a vector norm along the last axis.
    sums = [values.abs().sum(dim=-1).reshape(len(x), -1).sum(dim=-1) for values in (y - x, x)]
    return torch.stack(sums, dim=-1)


def gamma(stats: Sequence[torch.Tensor]) -> torch.Tensor:
    """Γ of a block, 0-dim float32, from each stream's sums (batch, >= 2) = [Σ|Δ|, Σ|X|, …].

    Not finite exactly where the block's numbers are not finite.
    """
    sums = sum(stream[:, :2] for stream in stats)
    return (sums[:, 0] / sums[:, 1].clamp_min(_FLOOR)).max()


def drift(stats: Sequence[torch.Tensor]) -> torch.Tensor:
    """c of a block, 0-dim float32, from each stream's sums (batch, 4) = [·, ·, Σ|Δ−Δ_prev|, Σ|Δ_prev|].

    The largest over streams and samples; NaN if there was no previous delta.
    """
    return torch.stack([(stream[:, 2] / stream[:, 3].clamp_min(_FLOOR)).max() for stream in stats]).max()


def worst_outlier_ratio(x: torch.Tensor) -> torch.Tensor:
    """r of a layer's input x (batch, ..., K) before the rotation: the worst sample, 0-dim float32."""
    absmax, abssum = token_stats(x)
    return outlier_ratio(absmax, abssum, x.shape[0], x.shape[-1]).max()


def activation_errors(
    x: torch.Tensor, packed: PackedWeight, sizes: Sequence[int], workspace=None
) -> torch.Tensor:
    """e₄ and e₈ of a group, float32 (2,): ‖Q(x)·Ŵ − x·Ŵ‖ / ‖x·Ŵ‖ for Q = NVFP4 and INT8.

    Ŵ is the packed weight on both sides, so that its own error does not hide the choice. Per
    sample and member; the worst of both is reported.
    """
    exact = quantized_linear(x, packed, None, "w4a16", workspace=workspace)
    errors = []
    for precision in ("nvfp4", "int8"):
        difference = quantized_linear(x, packed, None, precision, workspace=workspace).sub_(exact)
        ratios = [
            _sample_norm(part) / _sample_norm(whole).clamp_min(_FLOOR)
            for part, whole in zip(difference.split(list(sizes), dim=-1), exact.split(list(sizes), dim=-1))
        ]
        errors.append(torch.stack(ratios).max())
    return torch.stack(errors)


def worst_block(x: torch.Tensor) -> torch.Tensor:
    """Sixteen neighbouring values of x (…, K), float32 (16,): the block with the largest |x| of all.

    Raw values, before the rotation. Their largest is also their token's largest, so both the
    NVFP4 and the INT8 scale of the token follow from these sixteen numbers. K below 16 is
    filled with zeros.
    """
    flat = x.reshape(-1, x.shape[-1])
    width = flat.shape[-1]
    position = flat.abs().argmax()
    start = torch.clamp((position % width) // 16 * 16, max=max(width - 16, 0))
    columns = start + torch.arange(min(16, width), device=x.device)
    values = flat.index_select(0, (position // width).reshape(1))[0].index_select(0, columns).float()
    return torch.nn.functional.pad(values, (0, 16 - values.numel()))


def _sample_norm(values: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(values.reshape(values.shape[0], -1), dim=-1, dtype=torch.float32)
