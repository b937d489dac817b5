"""PDR's verdict as one small Triton program: fixed-order sums over each sample's tokens."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.outlier_predicate import OutlierPredicate

_BLOCK = 8192


@triton.jit(do_not_specialize=["batch"])
def _outlier_predicate_kernel(
    absmax, abssum, flag, ratio, batch, tokens, size, threshold, BLOCK: tl.constexpr
):
    lanes = tl.arange(0, BLOCK)
    fires = 0
    for sample in range(0, batch):
        largest = tl.zeros((BLOCK,), tl.float32)
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, tokens, BLOCK):
            inside = start + lanes < tokens
            place = sample * tokens + start + lanes
            largest = tl.maximum(largest, tl.load(absmax + place, mask=inside, other=0.0))
            total += tl.load(abssum + place, mask=inside, other=0.0)
        mean = tl.sum(total, 0) / tokens / size
        # max passes over NaN, the sum does not.
        value = tl.where(mean == 0.0, 1.0, tl.max(largest, 0) / mean)
        tl.store(ratio + sample, value)
        fires = tl.where(value <= threshold, fires, 1)
    tl.store(flag, fires)


def outlier_predicate_triton(absmax, abssum, batch, size, threshold):
    """`outlier_predicate` on a GPU; see there for shapes and meaning."""
    flag = torch.empty(1, dtype=torch.int32, device=absmax.device)
    ratio = torch.empty(batch, dtype=torch.float32, device=absmax.device)
    with torch.cuda.device_of(absmax):
        _outlier_predicate_kernel[(1,)](
            absmax, abssum, flag, ratio, batch, absmax.numel() // batch, size, float(threshold),
            BLOCK=_BLOCK, num_warps=16,
        )
    return OutlierPredicate(flag, ratio)


COMPILE_CASES = [
    (_outlier_predicate_kernel,
     {**dict.fromkeys(("absmax", "abssum"), "*fp32"), "flag": "*i32", "ratio": "*fp32",
      "batch": "i32", "tokens": "i32", "size": "i32", "threshold": "fp32"},
     {"BLOCK": _BLOCK}, {"num_warps": 16}),
]
