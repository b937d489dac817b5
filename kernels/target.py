"""The one place that asks about hardware.

Everything else takes a `Target` and never looks at a device itself, so a test can force another
machine's branch by patching `kernels.target.probe`. Nothing runs at import. SIXBIT_TRITON=0 in the
environment keeps a GPU on the PyTorch path, to tell a kernel's fault from a model's.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import platform
from types import ModuleType
from typing import NamedTuple

import torch


class Target(NamedTuple):
    """What one device can do.

    device_type: "cpu", "cuda", ...
    capability: CUDA compute capability, None elsewhere.
    triton: the Triton kernels can run here.
    native_fp4: tensor cores multiply NVFP4 directly (Blackwell).
    int8_mm: a fast INT8 matrix product exists (CUDA; on a CPU, VNNI).
    native_bf16: bfloat16 products are not emulated.
    reason: one sentence that says which path is taken and why.
    compiled_loops: Numba can compile the CPU loops.
    """

    device_type: str
    capability: tuple[int, int] | None
    triton: bool
    native_fp4: bool
    int8_mm: bool
    native_bf16: bool
    reason: str
    compiled_loops: bool = False


def probe(device: torch.device | str) -> Target:
    """The target behind a device; asked once per device and process."""
    device = torch.device(device)
    if device.type == "cuda":
        return _probe_cuda(torch.cuda.current_device() if device.index is None else device.index)
    return _probe_other(device.type)


def compiled(name: str) -> ModuleType | None:
    """The loops that Numba compiles in the file `name` of this package; None where PyTorch must do instead."""
    return _imported(name) if probe("cpu").compiled_loops else None


@functools.cache
def _imported(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"kernels.{name}")
    except (ImportError, RuntimeError):
        # A Numba that does not fit this NumPy, or no folder in which to cache.
        return None


def interpreting() -> bool:
    """True when Triton kernels run in its interpreter, on CPU tensors (tests)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@functools.cache
def _probe_cuda(index: int) -> Target:
    capability = torch.cuda.get_device_capability(index)
    name = f"compute capability {capability[0]}.{capability[1]}"
    found = importlib.util.find_spec("triton") is not None
    wanted = os.environ.get("SIXBIT_TRITON", "1") != "0"
    usable = found and wanted and capability >= (8, 0) and torch.version.hip is None
    native_fp4 = usable and capability >= (10, 0)
    if not found:
        wheel = "triton-windows" if platform.system() == "Windows" else "triton"
        reason = f"Triton is not installed, so plain PyTorch runs everything: install {wheel} for the fast kernels."
    elif not wanted:
        reason = "Triton is switched off by SIXBIT_TRITON=0, so plain PyTorch runs everything."
    elif not usable:
        reason = f"The Triton kernels need an NVIDIA GPU of compute capability 8.0 or newer and this is {name}: plain PyTorch runs everything."
    elif native_fp4:
        reason = f"Triton kernels with native NVFP4 tensor cores ({name})."
    else:
        reason = f"Triton kernels; NVFP4 arithmetic is simulated exactly, because {name} has no FP4 tensor cores."
    return Target("cuda", capability, usable, native_fp4, True, capability >= (8, 0), reason)


@functools.cache
def _probe_other(device_type: str) -> Target:
    if device_type != "cpu":
        reason = f"There are no kernels for the device type {device_type}: plain PyTorch runs everything."
        return Target(device_type, None, False, False, False, False, reason)
    vnni = _cpu_has("_is_vnni_supported", "_is_avx512_vnni_supported")
    bf16 = _cpu_has("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    loops = importlib.util.find_spec("numba") is not None
    reason = "A CPU multiplies by PyTorch: 8 bits take about the time of bfloat16, 4 bits are simulated."
    if not loops:
        reason += " Install numba to make the quantizers several times faster."
    return Target("cpu", None, False, False, vnni, bf16, reason, loops)


def _cpu_has(*names: str) -> bool:
    # torch renames these between versions; a name that is gone counts as "no".
    questions = (getattr(torch.cpu, name, None) for name in names)
    return any(bool(question()) for question in questions if question is not None)
