"""The end that every fused kernel shares: a token in registers → rotated, quantized, stored.

The policy's outlier ratio comes from the same read: max|y| and Σ|y| of the token before the
rotation are stored beside the codes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.activations import Int8Activation, Nvfp4Activation
from kernels.formats import BLOCK
from kernels.triton_hadamard import hadamard_groups, hadamard_norm
from kernels.triton_nvfp4 import nvfp4_chunk, to_block_scale
from kernels.triton_nvfp4 import token_scale as nvfp4_token_scale
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


@triton.jit
def rotate_row(
    row, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, HADAMARD: tl.constexpr, SPLIT: tl.constexpr
):
    """A token's chunks after the block Hadamard transform, times √HADAMARD."""
    rotated = ()
    for i in tl.static_range(CHUNKS):
        z = hadamard_groups(row[i], WIDTH // HADAMARD, HADAMARD, SPLIT)
        rotated = rotated + (tl.reshape(z, (WIDTH,)),)
    return rotated


@triton.jit
def store_row(
    y, row, codes, scales, token_scale, absmax, abssum,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, KIND: tl.constexpr,
    HADAMARD: tl.constexpr, SPLIT: tl.constexpr, FOUR_OVER_SIX: tl.constexpr,
):
    """Quantize and store the token y, CHUNKS of float32 (WIDTH,), zero beyond CHANNELS.

    row: its place in the outputs. KIND 0 stores y itself into `codes`, in that tensor's dtype;
    1 stores INT8; 2 stores NVFP4.
    """
    wide = row.to(tl.int64)
    if KIND == 0:
        for i in tl.static_range(CHUNKS):
            store_chunk(codes + wide * CHANNELS, y[i], i, CHANNELS, WIDTH)
    else:
        largest_in, sum_in = row_max_and_sum(y, CHUNKS)
        tl.store(absmax + row, tl.where(sum_in == sum_in, largest_in, float("nan")))
        tl.store(abssum + row, sum_in)
        z = y
        if HADAMARD > 1:
            z = rotate_row(y, WIDTH, CHUNKS, HADAMARD, SPLIT)
        largest = row_max(z, CHUNKS)
        norm = hadamard_norm(HADAMARD)
        if KIND == 1:
            step, inverse = token_step(largest, sum_in, 127.0)
            tl.store(token_scale + row, step * norm)
            for i in tl.static_range(CHUNKS):
                store_chunk(codes + wide * CHANNELS, round_to_int8(z[i] * inverse), i, CHANNELS, WIDTH)
        else:
            PADDED: tl.constexpr = (CHANNELS + 15) // 16 * 16
            step = nvfp4_token_scale(largest, FOUR_OVER_SIX) * norm
            tl.store(token_scale + row, tl.where(is_finite(sum_in), step, float("nan")))
            to_scale = to_block_scale(largest, FOUR_OVER_SIX)
            for i in tl.static_range(CHUNKS):
                packed, bits = nvfp4_chunk(z[i], to_scale, WIDTH, FOUR_OVER_SIX)
                store_chunk(codes + wide * (PADDED // 2), packed, i, PADDED // 2, WIDTH // 2)
                store_chunk(scales + wide * (PADDED // 16), bits, i, PADDED // 16, WIDTH // 16)


class RowOutput:
    """Fresh output tensors of `store_row` and its launch constants, for `rows` tokens."""

    def __init__(self, shape, dtype, device, quantize, hadamard, four_over_six):
        channels = shape[-1]
        rows = 1
        for size in shape[:-1]:
            rows *= size
        padded = -(-channels // BLOCK) * BLOCK
        kind = _KIND[quantize]
        self.shape, self.quantize, self.rows = tuple(shape), quantize, rows
        stats = torch.empty((3, rows if kind else 1), dtype=torch.float32, device=device)
        self.token_scale, self.absmax, self.abssum = stats.unbind(0)
        if kind == NVFP4:
            self.codes = torch.empty((rows, padded // 2), dtype=torch.uint8, device=device)
            self.scales = torch.empty((rows, padded // 16), dtype=torch.uint8, device=device)
        else:
            stored = torch.int8 if kind == INT8 else dtype
            self.codes = torch.empty((rows, channels), dtype=stored, device=device)
            self.scales = self.codes
        self.constants = {
            **row_shape(channels),
            "KIND": kind,
            "HADAMARD": hadamard,
            # bfloat16 inputs lose nothing that matters; finer ones get the second product.
            "SPLIT": dtype != torch.bfloat16,
            "FOUR_OVER_SIX": four_over_six,
        }

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
STORE_INT8 = {"KIND": INT8, "HADAMARD": 128, "SPLIT": False, "FOUR_OVER_SIX": False}
STORE_NVFP4 = {**STORE_INT8, "KIND": NVFP4, "FOUR_OVER_SIX": True}
STORE_PLAIN = {**STORE_INT8, "KIND": PLAIN, "HADAMARD": 1}
