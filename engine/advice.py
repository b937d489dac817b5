"""What the hardware says about precision: which preset a card should use, and a word where another was chosen.

NVFP4 activations are multiplied natively from compute capability 10.0 (Blackwell) on. Before, the same numbers are
simulated with 16-bit products, so 4 bits cost quality and buy no time: INT8 everywhere is faster and more accurate.
Measured on an H200 at CogVideoX-5B's size (assets/benchmarks/cogvideox-5b.csv): a step takes 1.40 s in 4 bits and
1.18 s in 8, and 0.81 s (`sixbit`) against 0.74 s (`int8_tdc`) with 38 % of the blocks skipped; the error of one whole
forward is .172 and .140, of which the packed weights make .138. On a CPU precision changes no speed.
"""

from __future__ import annotations

from engine.notice import Notice, notice
from engine.settings import Policy

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
    return [notice(
        "simulated_fp4", "This card has no FP4 tensor cores, so NVFP4 is simulated at 16-bit speed: the preset {better} is "
        "faster and more accurate here (0.74 s instead of 0.81 s a step of CogVideoX-5B on an H200). What is shown is "
        "what a Blackwell card would choose.", better=ELSEWHERE)]
