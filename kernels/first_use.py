"""The first use of a kernel compiles it, which takes seconds: here it happens at a moment that can be shown.

Later processes read the compilers' caches on disk. There is nothing to tune: launch configurations
follow rules, so a kernel is compiled once for a size, not once for a candidate.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Callable, Iterable, NamedTuple

import torch

from kernels import target
from kernels.fake_quantize import compile_loops
from kernels.gelu_quantize import gelu_quantize
from kernels.linear import PRECISIONS, quantized_linear
from kernels.norm_modulate import Stream, norm_modulate
from kernels.residual import residual_delta
from kernels.weights import PackedWeight


class Use(NamedTuple):
    """A packed weight and how its products will be asked for, which is what a kernel is compiled for.

    biased: whether a bias is added. static: always with 16-bit activations. made_by: what a fused block makes the
    input with, "norm" (LayerNorm and modulation of two streams) or "gelu"; None where it is quantized as it comes.
    """

    packed: PackedWeight
    biased: bool = False
    static: bool = False
    made_by: str | None = None


def warm_up(
    uses: Iterable[Use],
    dtype: torch.dtype,
    progress: Callable[[int, int], None] | None = None,
    tokens: int = 4096,
) -> str:
    """Compile now what the first calls with these weights would compile, on the weights' device.

    uses: of weights on one device; equal ones of a size are compiled once. dtype: of the inputs to come; tokens: about
    how many rows they will have. progress: called as progress(done, total) after each size.
    Returns the target's sentence about the path taken; without weights it does nothing.
    """
    sizes = {(*use.packed.shape, use.packed.hadamard, *use[1:]): use for use in uses}
    if not sizes:
        return "There are no weights to compile for."
    device = next(iter(sizes.values())).packed.codes.device
    answer = target.probe(device)
    if answer.triton:
        for done, use in enumerate(sizes.values(), start=1):
            _run(use, torch.zeros(1, tokens, use.packed.shape[1], dtype=dtype, device=device))
            if progress is not None:
                progress(done, len(sizes))
    elif answer.compiled_loops:
        compile_for_cpu()
        if progress is not None:
            progress(1, 1)
    return answer.reason


def compile_for_cpu() -> None:
    """Compile the CPU's loops, or read them from the disk cache; a second caller waits for the first and finds them."""
    compile_loops()
    stream = torch.ones(1, 1, 16)
    residual_delta(stream, stream)


def compile_beside(device: torch.device | str) -> threading.Thread | None:
    """Begin `compile_for_cpu` on a thread of its own, while this one imports libraries or reads a model.

    About half of the work is the compiler's own and needs no lock of Python's. Whatever goes wrong there goes wrong
    again, and is told, where the loops are needed. Returns None where this device needs no loops.
    """
    answer = target.probe(device)
    if answer.triton or not answer.compiled_loops:
        return None

    def work() -> None:
        with contextlib.suppress(Exception):
            compile_for_cpu()

    thread = threading.Thread(target=work, name="compile-loops")
    thread.start()
    return thread


def _run(use: Use, x: torch.Tensor) -> None:
    packed = use.packed
    bias = x.new_zeros(packed.shape[0]) if use.biased else None
    for precision in ("w4a16",) if use.static else PRECISIONS:
        quantized_linear(x, packed, bias, precision)
    modulation, affine = x[:, 0], x.new_zeros(x.shape[-1])
    for quantize in ("int8", "nvfp4"):
        if use.made_by == "norm":
            streams = [Stream(x, modulation, modulation)] * 2
            norm_modulate(streams, affine, affine, quantize=quantize, hadamard=packed.hadamard)
        elif use.made_by == "gelu":
            gelu_quantize(x, quantize=quantize, hadamard=packed.hadamard)
