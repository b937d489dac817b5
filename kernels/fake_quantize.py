"""The CPU's fast path: quantize and dequantize in float32 without packing codes.

The values are those of `dequantize(quantize_...(x))`, so a float32 product with the dequantized
weight equals the definition up to the rounding of the sum. The compiled loops of `cpu_loops.py`
do it in one pass where Numba is installed; the twins here are plain PyTorch.
"""

from __future__ import annotations

import threading
from types import ModuleType

import torch

from kernels import target
from kernels.cpu_share import share_rows
from kernels.formats import BLOCK, E2M1_MAX, E4M3_MAX, ROUNDING_MAGIC, SMALLEST_AMAX, decode_e4m3
from kernels.hadamard import check_block, hadamard
from kernels.quantize_int8 import round_int8
from kernels.quantize_nvfp4 import round_nvfp4

_EXPONENT_MASK = 0x7F800000
# The loops work on 32 tokens at a time, and go back to a full 32 at the end.
_LANES = 32
# Working memory of a thread, by width: 32 tokens each.
_WIDTHS = 8
_memory = threading.local()


def fake_quantize_int8(tokens: torch.Tensor, block: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """Float tokens (M, K) -> rotated, rounded to INT8 codes and scaled back, float32 (M, K).

    out: memory that may be used for the result, float32 (M, K), contiguous.
    """
    check_block(tokens.shape[1], block)
    loops = _loops_for(tokens)
    if loops is None:
        return fake_quantize_int8_torch(tokens, block)
    return _share_rows(loops, tokens, block, False, out=out)


def fake_quantize_int8_torch(tokens: torch.Tensor, block: int) -> torch.Tensor:
    """The plain PyTorch twin of `fake_quantize_int8`."""
    values, token_scale = round_int8(hadamard(tokens, block))
    return values.mul_(token_scale[:, None])


def fake_quantize_nvfp4(
    tokens: torch.Tensor, block: int, four_over_six: bool = False, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Float tokens (M, K) -> rotated, rounded to NVFP4 and scaled back, float32 (M, K).

    out: memory that may be used for the result, float32 (M, K), contiguous.
    """
    check_block(tokens.shape[1], block)
    loops = None if four_over_six else _loops_for(tokens)
    if loops is None:
        return fake_quantize_nvfp4_torch(tokens, block, four_over_six)
    return _share_rows(loops, tokens, block, True, out=out)


def fake_quantize_nvfp4_torch(tokens: torch.Tensor, block: int, four_over_six: bool = False) -> torch.Tensor:
    """The plain PyTorch twin of `fake_quantize_nvfp4`."""
    values = hadamard(tokens, block)
    if four_over_six or values.shape[1] % BLOCK:
        rounded, scales, token_scale = round_nvfp4(values, four_over_six)
        worth = decode_e4m3(scales) * token_scale[:, None]
        return (rounded.view(*worth.shape, BLOCK) * worth[:, :, None]).flatten(1)[:, : values.shape[1]]
    blocks = values.view(len(values), values.shape[1] // BLOCK, BLOCK)
    block_max = blocks.abs().amax(-1)
    largest = block_max.amax(-1, keepdim=True)
    to_scale = largest.clamp_min(SMALLEST_AMAX).reciprocal() * E4M3_MAX
    scale = (block_max * to_scale).clamp_(max=E4M3_MAX).to(torch.float8_e4m3fn).to(torch.float32)
    factor = torch.where(scale == 0, torch.zeros_like(scale), (to_scale * E2M1_MAX) / scale)
    # `round_e2m1` in place: the temporaries cost as much as the arithmetic.
    blocks.mul_(factor[:, :, None])
    unit = (blocks.view(torch.int32) & _EXPONENT_MASK).view(torch.float32).clamp_(1.0, 4.0)
    blocks.add_(unit, alpha=ROUNDING_MAGIC).sub_(unit, alpha=ROUNDING_MAGIC).clamp_(-E2M1_MAX, E2M1_MAX)
    scale.mul_(largest * (1.0 / (E2M1_MAX * E4M3_MAX)))
    return blocks.mul_(scale[:, :, None]).flatten(1)


def compile_loops() -> None:
    """Compile the loops now (or read them from the disk cache), so that the first layer need not wait."""
    fake_quantize_int8(torch.ones(_LANES, 128), 128)


def _loops_for(tokens: torch.Tensor) -> ModuleType | None:
    fits = tokens.device.type == "cpu" and tokens.shape[0] >= _LANES and tokens.shape[1] % BLOCK == 0
    return target.compiled("cpu_loops") if fits and tokens.shape[1] else None


def _share_rows(
    loops: ModuleType, tokens: torch.Tensor, block: int, four_bits: bool, out: torch.Tensor | None
) -> torch.Tensor:
    """All tokens through `loops.quantize_rows`, shared among PyTorch's number of threads."""
    tokens = tokens.detach().to(torch.float32).contiguous()
    result = torch.empty_like(tokens) if out is None else out
    arrays = tokens.numpy(), result.numpy()
    count, size = tokens.shape

    def part(start: int, stop: int) -> None:
        loops.quantize_rows(*arrays, block, four_bits, start, stop, _scratch(loops, size))

    share_rows(count, size, part, _LANES)
    return result


def _scratch(loops: ModuleType, size: int):
    """This thread's working memory for tokens of `size` values."""
    held = _memory.__dict__
    if size not in held:
        # The widths of one model are few; those of the model before are let go.
        if len(held) >= _WIDTHS:
            held.clear()
        held[size] = loops.scratch(size)
    return held[size]
