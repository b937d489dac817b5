"""Where the time of a step goes: attention, matrix products, quantization, the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

KINDS = ("attention", "gemm", "quantize", "elementwise")

# First match wins, on the lower-case name of a CUDA kernel or, on a CPU, of an operator.
_MARKS = (
    ("attention", ("sdpa", "flash", "fmha", "scaled_dot_product", "attention")),
    # A fused kernel that ends in codes counts as quantization, its LayerNorm or GELU included.
    ("quantize", ("quantize", "norm_modulate", "modulation", "unpack", "outlier", "residual_delta")),
    (
        "gemm",
        (
            "gemm", "nvjet", "cutlass", "cublas", "matmul", "native_kernel", "splitk", "wgmma", "_mm", "addmm", "conv",
            "linear",
        ),
    ),
)  # fmt: skip


class Spent(NamedTuple):
    """One kernel's time. milliseconds: of all its launches together."""

    name: str
    kind: str
    milliseconds: float
    launches: int


def kind_of(name: str) -> str:
    """Which of KINDS a kernel belongs to, by its name."""
    lowered = name.lower()
    return next((kind for kind, marks in _MARKS if any(mark in lowered for mark in marks)), "elementwise")


def profile(work: Callable[[], object], device: torch.device) -> list[Spent]:
    """Run `work` under torch.profiler; every kernel (or CPU operator) it used, the longest first."""
    cuda = device.type == "cuda"
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA if cuda else activity.CPU]) as profiler:
        work()
        if cuda:
            torch.cuda.synchronize(device)
    found = []
    for event in profiler.key_averages():
        microseconds = event.self_device_time_total if cuda else event.self_cpu_time_total
        if microseconds > 0:
            found.append(Spent(event.key, kind_of(event.key), microseconds / 1e3, event.count))
    return sorted(found, key=lambda spent: -spent.milliseconds)


def shares(spent: Iterable[Spent]) -> dict[str, float]:
    """kind + "_share" -> its part of all device time, rounded to a thousandth; empty without any."""
    totals = dict.fromkeys(KINDS, 0.0)
    for one in spent:
        totals[one.kind] += one.milliseconds
    whole = sum(totals.values())
    return {f"{kind}_share": round(part / whole, 3) for kind, part in totals.items()} if whole else {}
