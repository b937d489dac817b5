"""The first use of a kernel compiles it, which takes seconds: here it happens at a moment that can be shown.

Later processes read the compilers' caches on disk. There is nothing to tune: launch configurations
follow rules, so a kernel is compiled once for a size, not once for a candidate. Which kernels a run
launches follows from the block it is for (`Block`); tests/engine/test_first_use.py holds the two together.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import Callable, Iterable, NamedTuple

import torch

from kernels import cpu_fused, target
from kernels.gate_residual import gate_residual
from kernels.gelu_quantize import gelu_quantize
from kernels.linear import PRECISIONS, quantized_linear
from kernels.norm_modulate import QUANTIZED, Stream, norm_modulate
from kernels.outlier_predicate import outlier_predicate
from kernels.qk_norm_rope import qk_norm_rope
from kernels.quantize_int8 import quantize_int8
from kernels.quantize_nvfp4 import quantize_nvfp4
from kernels.residual import apply_delta, residual_delta
from kernels.weights import PackedWeight

# Whether a length is a multiple of this changes the binary; beyond _LONGEST nothing else about it does.
_MULTIPLE, _LONGEST = 16, 4096


class Use(NamedTuple):
    """A packed weight and how its products will be asked for, which is what a kernel is compiled for.

    biased: whether a bias is added. static: always with 16-bit activations. made_by: what a fused block makes the
    input with, "norm" (LayerNorm and modulation of all streams) or "gelu"; None where it is quantized as it comes.
    """

    packed: PackedWeight
    biased: bool = False
    static: bool = False
    made_by: str | None = None


class Block(NamedTuple):
    """The calls of the block that the weights belong to.

    streams: tokens of each residual stream of a sample, in the order in which a fused block joins them.
    samples: in a call. strips: numbers of tokens that a fused block multiplies at a time, beside all of a sample.
    channels: of the streams, 0 where no stream is measured, kept or skipped. heads: of the attention of a fused
    block, which takes a sample at a time and lets verdicts on the device choose between products; 0 for a block
    that calls its layers one by one. rope: whether a fused block rotates queries and keys.
    """

    streams: tuple[int, ...] = (_LONGEST,)
    samples: int = 1
    strips: tuple[int, ...] = ()
    channels: int = 0
    heads: int = 0
    rope: bool = False


def warm_up(
    uses: Iterable[Use],
    dtype: torch.dtype,
    progress: Callable[[int, int], None] | None = None,
    block: Block | None = None,
) -> str:
    """Compile now what the first calls with these weights would compile, on the weights' device.

    uses: of weights on one device; equal ones of a size are compiled once. dtype: of the inputs to come; block: the
    block that calls, so that all its kernels are compiled too. Calls of other lengths find most of them compiled.
    progress: called as progress(done, total) after each size.
    Returns the target's sentence about the path taken; without weights it does nothing.
    """
    sizes = {(*use.packed.shape, use.packed.hadamard, *use[1:]): use for use in uses}
    if not sizes:
        return "There are no weights to compile for."
    device = next(iter(sizes.values())).packed.codes.device
    answer = target.probe(device)
    if answer.triton:
        block = block or Block()
        with torch.no_grad():
            work = [partial(_layer, use, block, dtype) for use in sizes.values()]
            if block.channels:
                work.append(partial(_streams, block, dtype, device))
            for done, compile_one in enumerate(work, start=1):
                compile_one()
                if progress is not None:
                    progress(done, len(work))
    elif answer.compiled_loops:
        compile_for_cpu(dtype)
        if progress is not None:
            progress(1, 1)
    return answer.reason


def compile_for_cpu(dtype: torch.dtype | None = None) -> None:
    """Compile the CPU's loops, or read them from the disk cache; a second caller waits for the first and finds them.

    dtype: of the model, None for what a CPU takes by default."""
    if dtype is None:
        dtype = torch.bfloat16 if target.probe("cpu").native_bf16 else torch.float32
    cpu_fused.compile_rows(dtype)


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


def _layer(use: Use, block: Block, dtype: torch.dtype) -> None:
    """All products of a layer, and what makes their inputs."""
    packed, total = use.packed, sum(block.streams)
    bias = packed.codes.new_zeros(packed.shape[0], dtype=dtype) if use.biased else None
    # A static layer only unpacks its weight by a kernel of ours.
    for rows in (1,) if use.static else _lengths(total * block.samples, total, *block.strips):
        x = packed.codes.new_zeros(1, rows, packed.shape[1], dtype=dtype)
        for precision in ("w4a16",) if use.static else PRECISIONS:
            quantized_linear(x, packed, bias, precision)
            if use.biased and not use.static:
                # A probe compares products without their bias.
                quantized_linear(x, packed, None, precision)
    if block.heads and not use.static:
        for rows in _lengths(total, *block.strips):
            _judged(packed, bias, rows, dtype)
        # The verdict is on all tokens of a call.
        tokens = packed.codes.new_zeros(block.samples * total, dtype=torch.float32)
        outlier_predicate(tokens, tokens.clone(), block.samples, packed.shape[1], 1.0)
    for quantize in QUANTIZED:
        if use.made_by == "norm":
            _normed(packed, block, dtype, quantize)
        elif use.made_by == "gelu":
            for rows in _lengths(total, *block.strips):
                x = packed.codes.new_zeros(1, rows, packed.shape[1], dtype=dtype)
                gelu_quantize(x, quantize=quantize, hadamard=packed.hadamard)


def _judged(packed: PackedWeight, bias: torch.Tensor | None, rows: int, dtype: torch.dtype) -> None:
    """The products that a verdict on the device may stop."""
    from kernels.linear_w4a4_triton import linear_w4a4_triton
    from kernels.linear_w4a8_triton import linear_w4a8_triton
    from kernels.linear_w4a16_triton import linear_w4a16_triton

    x = packed.codes.new_zeros(rows, packed.shape[1], dtype=dtype)
    out = packed.codes.new_zeros(rows, packed.shape[0], dtype=dtype)
    when = packed.codes.new_zeros(1, dtype=torch.int32), 0
    linear_w4a8_triton(quantize_int8(x, packed.hadamard), packed, bias, dtype, when=when, out=out)
    linear_w4a4_triton(quantize_nvfp4(x, packed.hadamard), packed, bias, dtype, when=when, out=out)
    linear_w4a16_triton(x, packed, bias, when=when, out=out)


def _normed(packed: PackedWeight, block: Block, dtype: torch.dtype, quantize: str | None) -> None:
    channels = packed.shape[1]
    affine = packed.codes.new_zeros(channels, dtype=dtype)
    # Shift, scale and gate of each stream lie side by side, as AdaLN makes them.
    modulation = packed.codes.new_zeros(1, 6 * channels, dtype=dtype).chunk(6, dim=1)
    streams = [
        Stream(packed.codes.new_zeros(1, tokens, channels, dtype=dtype), *modulation[:2])
        for tokens in _representatives(block.streams)
    ]
    norm_modulate(streams, affine, affine, quantize=quantize, hadamard=packed.hadamard)


def _streams(block: Block, dtype: torch.dtype, device: torch.device) -> None:
    """What is done to the residual streams: measured, kept and skipped; in a fused block also queries, keys and gates."""
    for tokens in _representatives(block.streams):
        for samples in {1, block.samples}:
            x = torch.zeros(samples, tokens, block.channels, dtype=dtype, device=device)
            cached, _ = residual_delta(x, x)
            residual_delta(x, x, cached)
            apply_delta(x, cached)
        if block.heads:
            gate = torch.zeros(1, 6 * block.channels, dtype=dtype, device=device).chunk(6, dim=1)[2]
            gate_residual(x[:1], x[:1].clone(), gate, out=x[:1])
    if block.heads:
        first, total = block.streams[0], sum(block.streams)
        width = block.channels // block.heads
        q, k, _ = torch.zeros(1, total, 3 * block.channels, dtype=dtype, device=device).chunk(3, dim=-1)
        affine = torch.zeros(width, dtype=dtype, device=device)
        angles = torch.zeros(total - first, width, device=device)
        rope = (angles, angles) if block.rope else None
        qk_norm_rope(q, k, block.heads, affine, affine, affine, affine, rope=rope, first=first)


def _lengths(*rows: int) -> list[int]:
    """Numbers of rows that stand for these in every binary; long ones also come in slices of whole multiples."""
    found = set(_representatives(rows))
    return sorted(found | ({_LONGEST} if max(rows) > _LONGEST else set()))


def _representatives(lengths: Iterable[int]) -> list[int]:
    # Less memory than at full length.
    return [length if length <= _LONGEST else _LONGEST + length % _MULTIPLE for length in lengths]
