"""Every Triton kernel, launched in guarded memory under the interpreter; test_guarded.py runs this in processes of its own.

`faults`: kernels with a fault, to see that each is caught. `kernels`: all of kernels/, on shapes off every tile, beside
both forbidden pages. `model`: a small fused CogVideoX with alarms and skipped blocks.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from kernels import hadamard_block, linear_w4a4_triton, pack_weight, target, triton_quantize, unpack_triton
from kernels.gate_residual_triton import gate_residual_triton
from kernels.gelu_quantize_triton import gelu_quantize_triton
from kernels.linear_w4a8_triton import linear_w4a8_triton
from kernels.linear_w4a16_triton import linear_w4a16_triton
from kernels.norm_modulate import Stream
from kernels.norm_modulate_triton import norm_modulate_triton
from kernels.outlier_predicate_triton import outlier_predicate_triton
from kernels.qk_norm_rope_triton import qk_norm_rope_triton
from kernels.quantize_int8 import quantize_int8_torch
from kernels.quantize_nvfp4 import quantize_nvfp4_torch
from kernels.quantize_triton import quantize_int8_triton, quantize_nvfp4_triton
from kernels.residual_triton import apply_delta_triton, residual_delta_triton
from kernels.scaled_matmul_triton import Tiles, scaled_matmul
from kernels.workspace import Workspace
from tests.kernels.guarded import SIDES, OutOfPlace, guarded_launches, quick_interpreter

BF16, F32 = torch.bfloat16, torch.float32
# Inline assembly, and reductions of pairs, have stand-ins in the interpreter that touch no memory either.
NOT_INTERPRETED = {"_pair_codes", "_combine_sums", "_combine_max_sum"}
# A row that fills its chunks to the last channel, one that does not, and one that is not even whole blocks of 16.
WIDTHS = (256, 544, 40)


def draw(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def strided(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    """Contiguous channels, with gaps between rows and between samples."""
    *batch, rows, width = shape
    return draw(*batch, rows + 2, width + 16, dtype=dtype, seed=seed)[..., 1:-1, 8:-8]


def quantizers():
    for width, dtype in zip(WIDTHS, (BF16, F32, F32)):
        x, block = strided(3, width, dtype=dtype), hadamard_block(width)
        yield quantize_int8_triton(x, block)
        for four_over_six in (False, True):
            yield quantize_nvfp4_triton(x, block, four_over_six)


def packed_rows():
    # As on a card of compute capability 8.9 or newer; 640 channels do not fill their chunks.
    card = target.Target("cuda", (8, 9), True, False, True, True, "")
    with mock.patch.object(target, "probe", lambda device: card):
        for width in (256, 640):
            yield quantize_int8_triton(strided(3, width, dtype=BF16), 128)
            yield quantize_nvfp4_triton(strided(3, width, dtype=BF16), 128)
        yield gelu_quantize_triton(strided(2, 2, 640, dtype=BF16), "nvfp4", 128)


def several_tokens_a_program():
    # As for many rows: the last program has fewer tokens than the others.
    for op, quantize in list(triton_quantize.LAUNCHES):
        triton_quantize.LAUNCHES[op, quantize] = triton_quantize.Launch(24, 2, 1)
    before, triton_quantize.MANY_ROWS = triton_quantize.MANY_ROWS, 0
    yield quantize_nvfp4_triton(strided(3, 40), 1)
    yield gelu_quantize_triton(strided(3, 1, 40), "int8", 1)
    for streams in ((1, 3), (3, 0), (0, 1)):
        yield norm_modulate_triton([Stream(strided(2, rows, 40)) for rows in streams], quantize="int8")
    triton_quantize.MANY_ROWS = before


def norms():
    for width, dtype in zip(WIDTHS, (BF16, F32, F32)):
        parts = draw(2, 6 * width, dtype=dtype, seed=1).chunk(6, dim=1)
        streams = [Stream(strided(2, 1, width, dtype=dtype), *parts[:2]), Stream(strided(2, 2, width, dtype=dtype), *parts[3:5])]
        affine = draw(width, dtype=dtype, seed=2), draw(width, dtype=dtype, seed=3)
        for quantize in (None, "int8", "nvfp4"):
            yield norm_modulate_triton(streams, *affine, quantize=quantize, hadamard=hadamard_block(width) if quantize else 1)
        yield norm_modulate_triton([streams[0], Stream(streams[1].x, None, parts[4]), Stream(streams[1].x)])
    # Beyond one program of the modulation.
    yield norm_modulate_triton([Stream(draw(1, 1, 1040, dtype=BF16), *draw(1, 2080, dtype=BF16).chunk(2, dim=1))])


def activations():
    for width, dtype in zip(WIDTHS, (BF16, F32, F32)):
        for quantize in (None, "int8", "nvfp4"):
            yield gelu_quantize_triton(strided(2, 2, width, dtype=dtype), quantize, hadamard_block(width) if quantize else 1)


def residuals():
    for width, dtype in zip(WIDTHS, (F32, BF16, BF16)):
        x, y = (strided(2, 3, width, dtype=dtype, seed=seed) for seed in (0, 1))
        gate = draw(2, 6 * width, dtype=dtype).chunk(6, dim=1)[2]
        yield gate_residual_triton(x, y)
        out = draw(2, 3, width, dtype=dtype)
        yield gate_residual_triton(out, y, gate, out)
        for format in ("int8", "fp8", "bf16"):
            cached, stats = residual_delta_triton(x, y, None, format)
            yield cached, stats, residual_delta_triton(x, y + 1, cached, format), apply_delta_triton(x, cached)


def heads():
    for norm, count, width in (("layer", 6, 16), ("layer", 3, 64), ("rms", 3, 16), ("rms", 4, 64)):
        size = width if norm == "layer" else count * width
        for affine, turned in ((True, True), (False, False)):
            joint = draw(2, 3, 3 * count * width, dtype=BF16 if affine else F32)
            q, k, _ = joint.chunk(3, dim=-1)
            weights = [draw(size, dtype=joint.dtype, seed=seed) if affine else None for seed in range(4)]
            if norm == "rms":
                weights[1] = weights[3] = None
            angles = [draw(2, width, seed=seed) if turned else None for seed in (1, 2)]
            qk_norm_rope_triton(q, k, count, *weights, norm, 1e-6, *angles, 1)
            yield joint


def predicates():
    x = draw(6, 40)
    yield outlier_predicate_triton(x.abs().amax(-1), x.abs().sum(-1), 2, 40, 3.0)


def products():
    verdict = torch.ones(1, dtype=torch.int32)
    forms = [(32, 16, 32, False, False), (16, 32, 32, False, True), (16, 16, 32, True, True), (32, 32, 64, True, False)]
    # 48 is not whole tiles of K, 36 not the accelerator's 16 bytes.
    for rows, columns, inner in ((33, 19, 48), (1, 16, 64), (5, 33, 36)):
        scales = draw(rows).abs(), draw(columns).abs().view(torch.int32)
        for m, n, k, tma, persistent in forms:
            if tma and inner % 16:
                continue
            tiles = Tiles(m, n, k, 4, 2, tma, persistent)
            a, b = (draw(size, inner, seed=size).mul(20).to(torch.int8) for size in (rows, columns))
            yield scaled_matmul(a, b, *scales, draw(columns), torch.empty(rows, columns), None, tiles)
            out = torch.zeros(rows, columns, dtype=BF16)
            yield scaled_matmul(a.to(BF16), b.to(BF16), None, None, None, out, (verdict, rows % 2), tiles)


def layers():
    for size, columns in ((40, 20), (1056, 3)):
        packed, x, workspace = pack_weight(draw(columns, size)), draw(5, size), Workspace()
        act8, act4 = quantize_int8_torch(x, packed.hadamard), quantize_nvfp4_torch(x, packed.hadamard)
        for bias in (draw(columns, dtype=BF16), None):
            yield linear_w4a8_triton(act8, packed, bias, BF16, workspace)
            yield linear_w4a4_triton.linear_w4a4_triton(act4, packed, bias, F32, workspace)
            yield linear_w4a16_triton(x, packed, bias, workspace)
            # Blackwell's product: its numbers mean nothing here, because the interpreter reads block scales as E8M0.
            native = torch.empty(5, columns)
            linear_w4a4_triton._native(act4, packed, bias, native, None)
        for dtype in (F32, BF16):
            yield unpack_triton.dequantize_weight_triton(packed, dtype), unpack_triton.unpack_weight_triton(packed, dtype)


CASES = (quantizers, packed_rows, several_tokens_a_program, norms, activations, residuals, heads, predicates, products, layers)


def tensors(found) -> list[torch.Tensor]:
    """All tensors in nested tuples, copied: a buffer may be used again."""
    if isinstance(found, torch.Tensor):
        return [found.clone()]
    return [part for each in found for part in tensors(each)] if isinstance(found, tuple) else []


def own_functions() -> set[str]:
    """The names of all jitted functions that kernels/ defines."""
    names = set()
    for path in Path(target.__file__).parent.glob("*triton*.py"):
        module = importlib.import_module(f"kernels.{path.stem}")
        found = [value for value in vars(module).values() if isinstance(value, interpreter.InterpretedFunction)]
        names |= {function.fn.__name__ for function in found if function.fn.__module__ == module.__name__}
    return names


def check_kernels() -> None:
    with quick_interpreter() as ran:
        for case in CASES:
            results = []
            for side in SIDES.values():
                with guarded_launches(side, say):
                    results.append([part for found in case() for part in tensors(found)])
            for one, other in zip(*results):
                same = one.view(torch.uint8) == other.view(torch.uint8) if one.numel() else torch.ones(1)
                assert one.shape == other.shape and bool(same.all()), (
                    f"{case.__name__}: results differ with what lies around the tensors, or was in the outputs before."
                )
    forgotten = own_functions() - ran - NOT_INTERPRETED
    assert not forgotten, f"no case runs {sorted(forgotten)}"
    print(f"every function ran: {len(ran)}")


def check_model() -> None:
    from engine import fused
    from engine.attach import attach
    from engine.policy import PRESETS
    from engine.run import record
    from tests import pipelines

    applied, applies = [], fused.applies
    fused.applies = lambda *arguments: applied.append(applies(*arguments)) or applied[-1]
    pipe = pipelines.cogvideox(layers=1, heads=1, head_width=16, dtype=BF16)
    attach(pipe, adaln="stock")
    card = target.Target("cpu", None, True, False, True, True, "")
    target.probe = lambda device: card
    policy = replace(PRESETS["sixbit"], tdc_threshold=9.0, warmup_steps=0, protect_last=0, outlier_threshold=3.7)
    with ExitStack() as stack:
        stack.enter_context(quick_interpreter())
        stack.enter_context(guarded_launches(SIDES["end"], say))

        def turn(step):
            # Steps 0 and 1 compute the same: one beside each page. The innermost guard is the one that holds.
            if step.step == 0:
                stack.enter_context(guarded_launches(SIDES["start"], say))

        run = stack.enter_context(record(pipe, policy, on_step=turn))
        latents = pipelines.latents(pipe, num_inference_steps=3, max_sequence_length=4)
    layers, blocks = run.trace.layers, run.trace.blocks
    assert latents.isfinite().all() and applied == [True, True]
    assert {"int8", "w4a16", "skipped"} == set(layers["precision"]) and list(blocks["skipped"]) == [False, False, True]


def say(words: str) -> None:
    print("launch", words, file=sys.stderr)


@triton.jit
def _reads_past_the_end(x, y, size, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(y + lanes, tl.load(x + lanes), mask=lanes < size)


@triton.jit
def _reads_before_the_start(x, y, size, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(y + lanes, tl.load(x + lanes - 1, mask=lanes < size), mask=lanes < size)


@triton.jit
def _writes_past_the_end(x, y, size, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(y + lanes, tl.load(x + lanes, mask=lanes < size, other=0))


@triton.jit
def _writes_into_gaps(x, y, size, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    # y has one column of four: its rows lie at 0, 4, 8.
    tl.store(y + lanes, tl.load(x + lanes, mask=lanes < size, other=0), mask=lanes < size)


@triton.jit
def _reads_what_lies_in_gaps(x, y, size, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(x + lanes, tl.load(y + lanes, mask=lanes < size, other=0), mask=lanes < size)


def check_faults() -> None:
    """Prints, for each faulty kernel and side: killed by signal N, out of place, or fine and what it computed."""
    faults = (_reads_past_the_end, _reads_before_the_start, _writes_past_the_end, _writes_into_gaps, _reads_what_lies_in_gaps)
    for kernel in faults:
        for name, side in SIDES.items():
            reader, writer = os.pipe()
            child = os.fork()
            if not child:
                os.write(writer, _outcome(kernel, side).encode())
                os._exit(0)
            os.close(writer)
            _, status = os.waitpid(child, 0)
            said = os.read(reader, 1000).decode()
            os.close(reader)
            outcome = f"killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else said
            print(f"{kernel.fn.__name__.strip('_')} {name}: {outcome}")


def _outcome(kernel, side) -> str:
    x, y = torch.ones(9, dtype=torch.int32), torch.zeros(3, 4, dtype=torch.int32)[:, :1]
    if kernel in (_writes_past_the_end, _reads_past_the_end, _reads_before_the_start):
        y = torch.zeros(9, dtype=torch.int32)
    try:
        with guarded_launches(side, say):
            kernel[(1,)](x, y, 9, BLOCK=16)
    except OutOfPlace:
        return "out of place"
    return f"fine, {x.tolist()}"


if __name__ == "__main__":
    faulthandler.enable()
    torch.set_num_threads(1)
    {"faults": check_faults, "kernels": check_kernels, "model": check_model}[sys.argv[1]]()
