"""The residual delta of a transformer block: measure it, keep it small, add it back.

A block turns a residual stream X into Y. Its delta Δ = Y − X is what temporal delta caching
keeps for the next step. One pass over X and Y yields everything the policy and the cache need:
the four sums behind Γ = Σ|Δ| / Σ|X| and the drift c = Σ|Δ − Δ_cached| / Σ|Δ_cached|
(6Bit-Diffusion, arXiv 2603.18742, Eq. 9-11), and the stored form of Δ.

Sums run in a fixed order, over the channels of a token first and then over the tokens of a
sample, and never through atomics: the same seed must give the same decisions.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

import torch

from kernels import cpu_fused, target
from kernels.formats import E4M3_MAX, INT8_MAX, SMALLEST_AMAX

DELTA_FORMATS = ("int8", "fp8", "bf16", "nvfp4")
_CPU_CHUNK = 65536


class CachedDelta(NamedTuple):
    """A stored Δ of one stream.

    codes: int8 (tokens, C) for "int8", uint8 E4M3 bits (tokens, C) for "fp8", bfloat16
        (tokens, C) for "bf16", uint8 (tokens, C/2 padded to whole blocks) for "nvfp4";
        tokens = batch x tokens per sample.
    scale: float32 (tokens,), the step of one token's codes; empty for "bf16".
    format: one of DELTA_FORMATS.
    shape: the stream's shape (batch, ..., C).
    block_scales: uint8 E4M3 bits (tokens, blocks of 16) for "nvfp4", otherwise None.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    format: str
    shape: tuple[int, ...]
    block_scales: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes the stored tensors take."""
        parts = (self.codes, self.scale, self.block_scales)
        return sum(part.numel() * part.element_size() for part in parts if part is not None)

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> "CachedDelta":
        """The same delta with `function` applied to each stored tensor."""
        block_scales = None if self.block_scales is None else function(self.block_scales)
        return self._replace(
            codes=function(self.codes), scale=function(self.scale), block_scales=block_scales
        )

    def to(self, device, non_blocking: bool = False) -> "CachedDelta":
        """The same delta on another device; with `non_blocking`, as `Tensor.to` does it."""
        return self.map(lambda part: part.to(device, non_blocking=non_blocking))


def residual_delta(
    x: torch.Tensor,
    y: torch.Tensor,
    cached: CachedDelta | None = None,
    *,
    format: str = "int8",
) -> tuple[CachedDelta, torch.Tensor]:
    """Δ = y − x in its stored form, and the sums that judge it.

    x, y: (batch, ..., C), same shape and floating dtype; C are the channels of a token.
    cached: the delta of the last computed step, or None.
    format: how the new delta is stored, one of DELTA_FORMATS.

    Returns (delta, stats): stats float32 (batch, 4) = [Σ|Δ|, Σ|x|, Σ|Δ − cached|, Σ|cached|]
    per sample, of the exact Δ against the cached one as it would be applied. Without `cached`
    the last two are NaN: they were never observed. A non-finite token gives non-finite stats
    and a NaN delta, never a silent zero.

    Raises ValueError for an unknown format, or shapes that do not fit together.
    """
    _check(x, y, cached, format)
    formats = {format} if cached is None else {format, cached.format}
    if _has_kernel(x.device, formats):
        from kernels.residual_triton import residual_delta_triton

        return residual_delta_triton(x, y, cached, format)
    if formats == {"int8"} and cpu_fused.fits(x, y):
        return residual_delta_compiled(x, y, cached)
    return residual_delta_torch(x, y, cached, format=format)


def apply_delta(x: torch.Tensor, cached: CachedDelta) -> torch.Tensor:
    """x + Δ_cached in one pass: (batch, ..., C) in x.dtype, computed in float32.

    Raises ValueError if `cached` was stored for another shape.
    """
    if tuple(x.shape) != tuple(cached.shape):
        raise ValueError(
            f"A cached delta of shape {tuple(cached.shape)} cannot be added to a stream of shape "
            f"{tuple(x.shape)}; drop the cache when batch or size change."
        )
    if _has_kernel(x.device, {cached.format}):
        from kernels.residual_triton import apply_delta_triton

        return apply_delta_triton(x, cached)
    if cached.format == "int8" and cpu_fused.fits(x):
        return cpu_fused.add_delta(x.detach(), cached.codes, cached.scale)
    return apply_delta_torch(x, cached)


def extrapolate_delta(x: torch.Tensor, newest: CachedDelta, older: CachedDelta, weight: float) -> torch.Tensor:
    """x + Δ₁ + weight·(Δ₁ − Δ₂): (batch, ..., C) in x.dtype, computed in float32.

    newest, older: Δ₁ and Δ₂. Raises ValueError if either was stored for another shape.
    """
    if tuple(older.shape) != tuple(newest.shape):
        raise ValueError(f"Two deltas of one stream have one shape, got {tuple(newest.shape)} and {tuple(older.shape)}.")
    ahead = dequantize_delta(newest).mul_(1.0 + weight).sub_(dequantize_delta(older), alpha=weight)
    return ahead.add_(x.reshape(-1, x.shape[-1])).to(x.dtype).reshape(x.shape)


def residual_delta_compiled(x, y, cached=None):
    """`residual_delta` in INT8 on a CPU, compiled: X and Y are read once, where PyTorch needs about fifteen passes."""
    old = None if cached is None else (cached.codes, cached.scale)
    codes, scale, sums = cpu_fused.stream_delta(x, y, old)
    stats = sums.reshape(4, x.shape[0], -1).sum(dim=-1).T.contiguous()
    return CachedDelta(codes, scale, "int8", tuple(x.shape)), stats


def residual_delta_torch(x, y, cached=None, *, format="int8"):
    """`residual_delta` in plain PyTorch: the definition, and the path without Triton."""
    batch, channels = x.shape[0], x.shape[-1]
    x_rows, y_rows = x.reshape(-1, channels), y.reshape(-1, channels)
    tokens = x_rows.shape[0]
    sums = x.new_full((4, tokens), float("nan"), dtype=torch.float32)
    parts = []
    # Chunks that stay in a core's cache; a token's own sums do not depend on the cut.
    chunk = max(1, _CPU_CHUNK // channels) if x.device.type == "cpu" else max(tokens, 1)
    if format == "nvfp4":
        chunk = max(tokens, 1)
    for start in range(0, tokens, chunk):
        part = slice(start, start + chunk)
        rows = x_rows[part].float()
        delta = y_rows[part].float() - rows
        # abs and sum as two vectorised passes: the CPU's vector_norm is a scalar loop.
        magnitude = rows.abs()
        torch.sum(magnitude, dim=-1, out=sums[1, part])
        if cached is not None:
            previous = dequantize_delta(cached, part)
            torch.sum(torch.abs(previous, out=magnitude), dim=-1, out=sums[3, part])
            torch.sum(previous.sub_(delta).abs_(), dim=-1, out=sums[2, part])
        torch.sum(torch.abs(delta, out=magnitude), dim=-1, out=sums[0, part])
        parts.append(_store(delta, magnitude.amax(dim=-1), format, tuple(x.shape)))
    stats = sums.reshape(4, batch, -1).sum(dim=-1).T.contiguous()
    return _join(parts), stats


def apply_delta_torch(x, cached):
    """`apply_delta` in plain PyTorch."""
    rows = x.reshape(-1, x.shape[-1])
    if cached.format == "int8":
        sums = torch.addcmul(rows.float(), cached.codes.float(), cached.scale[:, None])
    else:
        sums = dequantize_delta(cached).add_(rows)
    return sums.to(x.dtype).reshape(x.shape)


def dequantize_delta(cached: CachedDelta, part: slice = slice(None)) -> torch.Tensor:
    """The delta as it is applied, for all tokens or a slice of them: a fresh float32 (tokens, C)."""
    if cached.format == "bf16":
        return cached.codes[part].to(torch.float32, copy=True)
    if cached.format == "nvfp4":
        from kernels.activations import dequantize

        values = dequantize(_as_activation(cached), torch.float32)
        return values.reshape(-1, cached.shape[-1])[part]
    codes = cached.codes[part]
    if cached.format == "fp8":
        codes = codes.view(torch.float8_e4m3fn)
    return codes.float().mul_(cached.scale[part, None])


def _store(
    delta: torch.Tensor, absmax: torch.Tensor, format: str, shape: tuple[int, ...]
) -> CachedDelta:
    if format == "bf16":
        return CachedDelta(delta.to(torch.bfloat16), delta.new_empty(0), format, shape)
    if format == "nvfp4":
        from kernels.quantize_nvfp4 import quantize_nvfp4

        packed = quantize_nvfp4(delta, 1)
        return CachedDelta(packed.codes, packed.token_scale, format, shape, packed.scales)
    top = float(INT8_MAX) if format == "int8" else E4M3_MAX
    levels = delta.mul_((top / absmax.clamp_min(SMALLEST_AMAX))[:, None])
    # A multiplication by the reciprocal: CUDA and CPU divide by a constant differently. A token
    # with NaN or Inf keeps a NaN scale, so that what is read back is no number either.
    scale = absmax.mul_(1.0 / top)
    scale.masked_fill_(scale.isinf(), float("nan"))
    if format == "int8":
        codes = levels.round_().to(torch.int8)
    else:
        codes = levels.to(torch.float8_e4m3fn).view(torch.uint8)
    return CachedDelta(codes, scale, format, shape)


def _join(parts: list[CachedDelta]) -> CachedDelta:
    if len(parts) == 1:
        return parts[0]
    codes = torch.cat([part.codes for part in parts])
    return parts[0]._replace(codes=codes, scale=torch.cat([part.scale for part in parts]))


def _as_activation(cached: CachedDelta):
    from kernels.activations import Nvfp4Activation

    empty = cached.scale.new_empty(0)
    return Nvfp4Activation(
        cached.codes, cached.block_scales, cached.scale, empty, empty, cached.shape
    )


def _has_kernel(device: torch.device, formats: set[str]) -> bool:
    # Nibble packing is the quantizer's own kernel, and Triton has E4M3 from Ada on.
    here = target.probe(device)
    if not here.triton or "nvfp4" in formats:
        return False
    return "fp8" not in formats or here.capability is None or here.capability >= (8, 9)


def _check(x, y, cached, format) -> None:
    if format not in DELTA_FORMATS:
        raise ValueError(
            f"The delta format must be one of {', '.join(DELTA_FORMATS)}, but it is {format!r}."
        )
    if x.shape != y.shape or x.dim() < 2 or x.numel() == 0:
        raise ValueError(
            "A block's input and output must have one shape (batch, ..., channels), none of them 0, but they are "
            f"{tuple(x.shape)} and {tuple(y.shape)}."
        )
    if cached is not None and tuple(cached.shape) != tuple(x.shape):
        raise ValueError(
            f"The cached delta was stored for shape {tuple(cached.shape)}, but the stream is "
            f"{tuple(x.shape)} now; drop the cache when batch or size change."
        )
