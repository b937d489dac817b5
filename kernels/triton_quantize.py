"""The end that every fused kernel shares: a token in registers → rotated, quantized, stored.

The policy's outlier ratio comes from the same read: max|y| and Σ|y| of the token before the
rotation are stored beside the codes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels import target
from kernels.activations import Int8Activation, Nvfp4Activation
from kernels.formats import BLOCK
from kernels.triton_hadamard import hadamard_128, hadamard_groups, hadamard_norm
from kernels.triton_nvfp4 import block_maxima, nvfp4_chunk, to_block_scale
from kernels.triton_nvfp4 import token_scale as nvfp4_token_scale
from kernels.triton_packed import packed_stats, store_packed_row
from kernels.triton_rows import (
    is_finite,
    round_to_int8,
    row_max,
    row_max_and_sum,
    row_shape,
    store_chunk,
    token_step,
)

PLAIN, INT8, NVFP4 = 0, 1, 2
_KIND = {None: PLAIN, "int8": INT8, "nvfp4": NVFP4}


class Launch(NamedTuple):
    """How a row kernel runs: values of a token that a thread holds, tokens a program takes in turn
    (`norm_modulate`: at once), stages of that loop, and the most registers a thread may take (0: what
    the compiler likes), for more programs at a time; whether it starts before the kernel that prepares
    its modulation has ended.

    Many values mean few instructions (a reduction costs a thread the same for one value as for
    ninety) but few warps to hide what each waits for. Several tokens share what a program sets up:
    the rotation's matrices, the modulation. With stages the next tokens are fetched meanwhile.
    """

    values: int
    tokens: int
    stages: int
    registers: int = 0
    early: bool = False


# The fastest on an H200 at CogVideoX's sizes (`python -m kernels.bench --explore`).
LAUNCHES = {
    ("quantize", "int8"): Launch(96, 1, 1, registers=128),
    ("quantize", "nvfp4"): Launch(96, 1, 1, registers=128),
    ("norm_modulate", "int8"): Launch(96, 1, 1, registers=128, early=True),
    ("norm_modulate", "nvfp4"): Launch(96, 1, 1, registers=128, early=True),
    ("gelu_quantize", "int8"): Launch(48, 1, 1, registers=64),
    ("gelu_quantize", "nvfp4"): Launch(96, 1, 1),
}
# Below this a program takes one token, so that every multiprocessor has one.
MANY_ROWS = 4096
# A multiprocessor has room for three such programs, and for two from 88 on, which the compiler likes to take.
_EIGHT_WARPS_REGISTERS = 80


@triton.jit
def rotate_row(
    row, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, HADAMARD: tl.constexpr, SPLIT: tl.constexpr
):
    """A token's chunks after the block Hadamard transform, times √HADAMARD."""
    rotated = ()
    for i in tl.static_range(CHUNKS):
        if HADAMARD == 128 and not SPLIT:
            z = hadamard_128(row[i], WIDTH)
        else:
            z = tl.reshape(hadamard_groups(row[i], WIDTH // HADAMARD, HADAMARD, SPLIT), (WIDTH,))
        rotated = rotated + (z,)
    return rotated


@triton.jit
def store_row(
    y, row, codes, scales, token_scale, absmax, abssum,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, KIND: tl.constexpr,
    HADAMARD: tl.constexpr, SPLIT: tl.constexpr, FOUR_OVER_SIX: tl.constexpr, FAST: tl.constexpr,
    UNIT: tl.constexpr = 1.0,
):
    """Quantize and store the token y, CHUNKS of float32 (WIDTH,), zero beyond CHANNELS.

    row: its place in the outputs. KIND 0 stores y itself into `codes`, in that tensor's dtype;
    1 stores INT8; 2 stores NVFP4. Where `triton_packed` does it, y may be
    bfloat16, and stands for UNIT times itself.
    """
    PACKED: tl.constexpr = KIND != 0 and HADAMARD == 128 and FAST and not SPLIT and not FOUR_OVER_SIX
    wide = row.to(tl.int64)
    if PACKED:
        halves = y
        if y[0].dtype == tl.bfloat16:
            largest_in, sum_in = packed_stats(y, WIDTH, CHUNKS)
        else:
            largest_in, sum_in = row_max_and_sum(y, CHUNKS)
            halves = ()
            for i in tl.static_range(CHUNKS):
                halves = halves + (y[i].to(tl.bfloat16),)
        store_packed_row(
            halves, largest_in, sum_in, row, codes, scales, token_scale, absmax, abssum,
            CHANNELS, WIDTH, CHUNKS, KIND == 1, UNIT,
        )
    elif KIND == 0:
        for i in tl.static_range(CHUNKS):
            store_chunk(codes + wide * CHANNELS, y[i], i, CHANNELS, WIDTH)
    else:
        largest_in, sum_in = row_max_and_sum(y, CHUNKS)
        tl.store(absmax + row, tl.where(sum_in == sum_in, largest_in, float("nan")))
        tl.store(abssum + row, sum_in)
        z = y
        if HADAMARD > 1:
            z = rotate_row(y, WIDTH, CHUNKS, HADAMARD, SPLIT)
        norm = hadamard_norm(HADAMARD)
        if KIND == 1:
            largest = row_max(z, CHUNKS)
            step, inverse = token_step(largest, sum_in, 127.0)
            tl.store(token_scale + row, step * norm)
            for i in tl.static_range(CHUNKS):
                store_chunk(codes + wide * CHANNELS, round_to_int8(z[i] * inverse), i, CHANNELS, WIDTH)
        else:
            PADDED: tl.constexpr = (CHANNELS + 15) // 16 * 16
            peaks = ()
            for i in tl.static_range(CHUNKS):
                peaks = peaks + (block_maxima(z[i], WIDTH),)
            if HADAMARD == 128 and not SPLIT:
                largest = row_max(peaks, CHUNKS)
            else:
                # After `hadamard_groups` the lanes beside a block's may not be neighbours: see `hadamard_128`.
                largest = row_max(z, CHUNKS)
            step = nvfp4_token_scale(largest, FOUR_OVER_SIX) * norm
            tl.store(token_scale + row, tl.where(is_finite(sum_in), step, float("nan")))
            to_scale = to_block_scale(largest, FOUR_OVER_SIX)
            for i in tl.static_range(CHUNKS):
                packed, bits = nvfp4_chunk(z[i], peaks[i], to_scale, WIDTH, FOUR_OVER_SIX, FAST)
                store_chunk(codes + wide * (PADDED // 2), packed, i, PADDED // 2, WIDTH // 2)
                store_chunk(scales + wide * (PADDED // 16), bits, i, PADDED // 16, WIDTH // 16)


def launch_shape(op: str, channels: int, rows: int, quantize: str | None) -> dict[str, int]:
    """Launch constants of an op's row kernel: `row_shape`, TOKENS a program and num_stages."""
    if quantize is None:
        return {**row_shape(channels), "TOKENS": 1, "num_stages": 1}
    values, tokens, stages, registers, _ = LAUNCHES[op, quantize]
    if rows < MANY_ROWS:
        tokens, stages = 1, 1
    shape = row_shape(channels, values)
    if shape["num_warps"] == 8 and not registers:
        registers = _EIGHT_WARPS_REGISTERS
    limit = {"maxnreg": registers} if registers else {}
    return {**shape, "TOKENS": tokens, "num_stages": stages, **limit}


class RowOutput:
    """Fresh output tensors of `store_row` and its launch constants, for `rows` tokens.

    op: the kernel that calls, by its name in the table of launches.
    """

    def __init__(self, op, shape, dtype, device, quantize, hadamard, four_over_six):
        channels = shape[-1]
        rows = 1
        for size in shape[:-1]:
            rows *= size
        padded = -(-channels // BLOCK) * BLOCK
        kind = _KIND[quantize]
        self.early = quantize is not None and LAUNCHES[op, quantize].early
        self.shape, self.quantize, self.rows = tuple(shape), quantize, rows
        # Each begins at an aligned address, whatever the rows are: one kernel for all of them.
        stats = torch.empty((3, -(-rows // 4) * 4 if kind else 4), dtype=torch.float32, device=device)
        self.token_scale, self.absmax, self.abssum = stats[:, : rows if kind else 1].unbind(0)
        if kind == NVFP4:
            self.codes = torch.empty((rows, padded // 2), dtype=torch.uint8, device=device)
            self.scales = torch.empty((rows, padded // 16), dtype=torch.uint8, device=device)
        else:
            stored = torch.int8 if kind == INT8 else dtype
            self.codes = torch.empty((rows, channels), dtype=stored, device=device)
            self.scales = self.codes
        self.constants = {
            **launch_shape(op, channels, rows, quantize),
            "KIND": kind,
            "HADAMARD": hadamard,
            # bfloat16 inputs lose nothing that matters; finer ones get the second product.
            "SPLIT": dtype != torch.bfloat16,
            "FOUR_OVER_SIX": four_over_six,
            "FAST": (target.probe(device).capability or (0, 0)) >= (8, 9),
        }

    @property
    def grid(self) -> tuple[int]:
        """Programs, for a kernel that walks all rows."""
        return (triton.cdiv(self.rows, self.constants["TOKENS"]),)

    @property
    def pointers(self) -> tuple[torch.Tensor, ...]:
        """In the order `store_row` takes them."""
        return self.codes, self.scales, self.token_scale, self.absmax, self.abssum

    def result(self):
        """The plain tensor, Int8Activation or Nvfp4Activation of the outputs' shape."""
        if self.quantize is None:
            return self.codes.view(self.shape)
        if self.quantize == "int8":
            return Int8Activation(self.codes, self.token_scale, self.absmax, self.abssum, self.shape)
        return Nvfp4Activation(
            self.codes, self.scales, self.token_scale, self.absmax, self.abssum, self.shape
        )


STORE_TYPES = {
    "codes": "*i8", "scales": "*u8", "token_scale": "*fp32", "absmax": "*fp32", "abssum": "*fp32"
}
STORE_INT8 = {"KIND": INT8, "HADAMARD": 128, "SPLIT": False, "FOUR_OVER_SIX": False, "FAST": False}
STORE_NVFP4 = {**STORE_INT8, "KIND": NVFP4, "FOUR_OVER_SIX": True}
# Compute capability 8.9 and newer.
STORE_INT8_FAST = {**STORE_INT8, "FAST": True}
STORE_NVFP4_FAST = {**STORE_NVFP4, "FOUR_OVER_SIX": False, "FAST": True}
STORE_PLAIN = {**STORE_INT8, "KIND": PLAIN, "HADAMARD": 1}
