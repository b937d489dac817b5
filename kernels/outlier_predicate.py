"""PDR's question on the device: is this layer group's input outlier-heavy?

The verdict of purified delta refresh (6Bit-Diffusion, Eq. 12) is of the moment. Asked on the
host it would stall every block; here it stays on the device as one int32 that the products read:
both routes are launched, and the one that is not meant returns at once
(`when=(predicate, 1)` in `kernels.scaled_matmul_triton`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels import target
from kernels.activations import outlier_ratio


class OutlierPredicate(NamedTuple):
    """flag: int32 (1,), 1 where the batch's worst sample exceeds the threshold, or is NaN.
    ratio: float32 (batch,), each sample's max|X| / mean|X|."""

    flag: torch.Tensor
    ratio: torch.Tensor


def outlier_predicate(
    absmax: torch.Tensor, abssum: torch.Tensor, batch: int, size: int, threshold: float
) -> OutlierPredicate:
    """Judge a quantized activation by the statistics that came with it.

    absmax, abssum: float32 (batch·tokens,), before the rotation; size: K.
    A batch decides together, its worst sample speaking for it; NaN counts as an outlier, so that
    it reaches the 16-bit route and is reported there. Raises ValueError as `outlier_ratio` does.
    """
    if batch < 1 or absmax.numel() % batch:
        raise ValueError(f"{absmax.numel()} tokens do not divide into a batch of {batch}.")
    if target.probe(absmax.device).triton:
        from kernels.outlier_predicate_triton import outlier_predicate_triton as twin
    else:
        twin = outlier_predicate_torch
    return twin(absmax, abssum, batch, size, threshold)


def outlier_predicate_torch(absmax, abssum, batch, size, threshold):
    """`outlier_predicate` in plain PyTorch: the definition, and the path without Triton."""
    ratio = outlier_ratio(absmax, abssum, batch, size)
    fires = ~(ratio <= threshold)
    return OutlierPredicate(fires.any().to(torch.int32).reshape(1), ratio)
