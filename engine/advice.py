"""What the hardware says about precision: which preset a card should use, and a word where another was chosen.

NVFP4 activations are multiplied natively from compute capability 10.0 (Blackwell) on. Before, the same numbers are
simulated with 16-bit products, so 4 bits cost quality and buy no time: INT8 everywhere is faster and more accurate.
Measured on an H200 at CogVideoX-5B's size (assets/benchmarks/cogvideox-5b.csv, from which the sentence takes its
seconds): a step takes longer in 4 bits (`w4a4`) than in 8 (`w4a8`), and longer in `sixbit` than in `int8_tdc` with the
same blocks skipped; the error of one whole forward is larger in 4 bits too. On a CPU precision changes no speed.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path

from engine.notice import Notice, notice
from engine.settings import Policy

MEASURED = Path(__file__).parents[1] / "assets" / "benchmarks" / "cogvideox-5b.csv"
NATIVE, ELSEWHERE = "sixbit", "int8_tdc"


def preset_for(device) -> str:
    """The name of the preset that suits `device` (a torch device or its name) best."""
    from kernels import target

    return NATIVE if target.probe(device).native_fp4 else ELSEWHERE


def about(policy: Policy, device) -> list[Notice]:
    """A sentence where `policy` takes 4-bit activations on a GPU that only simulates them; otherwise nothing."""
    from kernels import target

    here = target.probe(device)
    if here.device_type != "cuda" or here.native_fp4 or policy.precision not in ("dynamic", "nvfp4"):
        return []
    return [
        notice(
            "simulated_fp4",
            "This card has no FP4 tensor cores, so NVFP4 is simulated at 16-bit speed: the preset {better} is "
            "faster and more accurate here ({fast} s instead of {slow} s a step of CogVideoX-5B on an H200). What is "
            "shown is what a Blackwell card would choose.",
            better=ELSEWHERE,
            fast=f"{measured_seconds(ELSEWHERE):.2f}",
            slow=f"{measured_seconds(NATIVE):.2f}",
        )
    ]


@functools.lru_cache(maxsize=None)
def measured_seconds(method: str) -> float:
    """Seconds per denoising step of a method of the table of benchmarks, with its skipped share."""
    with open(MEASURED, encoding="utf-8", newline="") as table:
        return next(float(row["seconds_per_step"]) for row in csv.DictReader(table) if row["method"] == method)
