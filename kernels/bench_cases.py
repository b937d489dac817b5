"""What `kernels.bench` measures: operations at the shapes of CogVideoX-5B and Wan 14B.

CogVideoX-5B: 49 frames of 480 x 720, guidance in one batch: 2 x (226 text + 17,550 video) tokens
of 3,072 channels. Wan 14B: 81 frames of 480 x 832: 32,760 tokens of 5,120 channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Iterator

import torch
import torch.nn.functional as F

from kernels import (
    PackedWeight,
    Workspace,
    dequantize_weight,
    hadamard,
    hadamard_block,
    pack_weight,
    quantize_int8,
    quantize_nvfp4,
    quantized_linear,
)
from kernels.activations import Int8Activation, nvfp4_values
from kernels.gate_residual import gate_residual
from kernels.gelu_quantize import gelu_quantize
from kernels.norm_modulate import Stream, norm_modulate
from kernels.outlier_predicate import outlier_predicate
from kernels.qk_norm_rope import qk_norm_rope
from kernels.residual import apply_delta, dequantize_delta, residual_delta

_CHECKED = 96
_SMALL = 1 << 21


@dataclass(frozen=True)
class Case:
    """One operation at one shape: ours, the alternatives, the work it must do, its error."""

    op: str
    shape: str
    ours: Callable[[], object]
    baselines: dict[str, Callable[[], object]]
    error: Callable[[], float]
    ceiling: str = "copy"
    bytes: int = 0
    flops: int = 0


@dataclass(frozen=True)
class Shape:
    """A model's sizes: batch, leading text tokens, other tokens, heads, head width, FFN width."""

    name: str
    batch: int
    text: int
    video: int
    heads: int
    head: int
    ffn: int

    @property
    def channels(self) -> int:
        return self.heads * self.head

    @property
    def tokens(self) -> int:
        return self.text + self.video


COGVIDEOX = Shape("CogVideoX-5B", 2, 226, 17550, 48, 64, 12288)
WAN = Shape("Wan-14B", 1, 0, 32760, 40, 128, 13824)
# Off every tile; the second takes RMS norms over all heads, like Wan.
TINY = Shape("tiny", 2, 3, 37, 6, 64, 544)
TINY_RMS = Shape("tiny, RMS norms", 1, 0, 37, 3, 128, 544)


def cases(device: str, tiny: bool = False, compiled: bool = False, only: str = "") -> Iterator[Case]:
    """All cases, built one at a time so that their tensors can go again."""
    models = (TINY,) if tiny else (COGVIDEOX, WAN)
    for model in models:
        for name, make in MAKERS.items():
            if only in name:
                yield from make(model, device, compiled)
    if tiny and only in "qk_norm_rope":
        yield from _qk(TINY_RMS, device, compiled)


def eight_bit_products(a: torch.Tensor, b: torch.Tensor) -> dict[str, Callable]:
    """Library products of (M, K) and (N, K) in INT8 and FP8, those that run on this device."""
    found = {}
    left, right = (part.float().mul(20).round().clamp(-127, 127).to(torch.int8) for part in (a, b))
    runs = {"torch._int_mm": lambda: torch._int_mm(left, right.T)}
    if a.device.type == "cuda" and torch.cuda.get_device_capability() >= (8, 9):
        left8, right8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        scales = torch.ones(len(a), 1, device=a.device), torch.ones(1, len(b), device=a.device)
        runs["FP8 rowwise _scaled_mm"] = lambda: torch._scaled_mm(
            left8, right8.T, scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16
        )
    for name, run in runs.items():
        try:
            run()
        except RuntimeError as problem:
            print(f"{name} does not run here: {str(problem).splitlines()[0][:90]}")
        else:
            found[name] = run
    return found


def _draw(device, *shape, scale=1.0):
    return torch.randn(shape, device=device).mul_(scale).to(torch.bfloat16)


def as_float64(*parts: torch.Tensor) -> list[torch.Tensor]:
    """As float64; on the CPU if all are small: a memory checker then watches our kernels and little else."""
    small = max(part.numel() for part in parts) < _SMALL
    return [(part.cpu() if small else part).double() for part in parts]


def values_of(act, block: int) -> torch.Tensor:
    """The first tokens' values as float64, on their own axes."""
    codes, scale = act.codes[:_CHECKED].cpu(), act.token_scale[:_CHECKED, None].cpu()
    values = codes.float() if isinstance(act, Int8Activation) else nvfp4_values(codes, act.scales[:_CHECKED].cpu())
    return hadamard(values[:, : act.shape[-1]].double() * scale.double(), block)


def relative_error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return ((ours.to(exact.device).double() - exact).norm() / exact.norm()).item()


def _with_compiled(baselines: dict, compiled: bool) -> dict:
    if compiled:
        name, run = next(iter(baselines.items()))
        baselines[f"torch.compile: {name}"] = torch.compile(run)
    return baselines


def _norm_modulate(model: Shape, device, compiled):
    batch, width = model.batch, model.channels
    video = _draw(device, batch, model.video, width)
    text = _draw(device, batch, model.text, width) if model.text else None
    weight, bias = _draw(device, width), _draw(device, width)
    shift, scale = _draw(device, batch, width, scale=0.1), _draw(device, batch, width, scale=0.1)
    streams = [Stream(part, shift, scale) for part in (text, video) if part is not None]

    def stock():
        parts = [
            F.layer_norm(part.x, (width,), weight, bias) * (1 + scale)[:, None] + shift[:, None]
            for part in streams
        ]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    first, *affine, gain, offset = as_float64(streams[0].x[0, :_CHECKED], weight, bias, scale[0], shift[0])
    exact = F.layer_norm(first, (width,), *affine) * (1 + gain) + offset
    rows, block = batch * model.tokens, hadamard_block(width)
    for name, size in (("int8", 1.0), ("nvfp4", 0.5625)):

        def ours(name=name):
            return norm_modulate(streams, weight, bias, quantize=name, hadamard=block)

        yield Case(
            f"LayerNorm+modulate+Hadamard+{name}", f"{rows} x {width}", ours,
            _with_compiled({"LayerNorm, modulate, cat (16-bit)": stock}, compiled and name == "int8"),
            lambda ours=ours: relative_error(values_of(ours(), block)[: len(exact)], exact),
            bytes=int(rows * width * (2 + size)),
        )


def _gelu(model: Shape, device, compiled):
    x, rows, block = _draw(device, model.batch, model.tokens, model.ffn), model.batch * model.tokens, hadamard_block(model.ffn)
    exact = F.gelu(*as_float64(x.flatten(0, 1)[:_CHECKED]), approximate="tanh")
    for name, size in (("int8", 1.0), ("nvfp4", 0.5625)):

        def ours(name=name):
            return gelu_quantize(x, quantize=name, hadamard=block)

        yield Case(
            f"GELU+Hadamard+{name}", f"{rows} x {model.ffn}", ours,
            {"GELU (16-bit)": lambda: F.gelu(x, approximate="tanh")},
            lambda ours=ours: relative_error(values_of(ours(), block), exact),
            bytes=int(rows * model.ffn * (2 + size)),
        )


def _quantizers(model: Shape, device, compiled):
    x = _draw(device, model.batch * model.tokens, model.channels)
    block, (exact,) = hadamard_block(model.channels), as_float64(x[:_CHECKED])

    def stock():
        scale = x.abs().amax(dim=-1, keepdim=True) / 127
        return (x / scale).round().to(torch.int8)

    for name, quantize, size in (("int8", quantize_int8, 1.0), ("nvfp4", quantize_nvfp4, 0.5625)):

        def ours(quantize=quantize):
            return quantize(x, block)

        yield Case(
            f"Hadamard+{name}", f"{x.shape[0]} x {x.shape[1]}", ours,
            {"int8 per token, no rotation (eager)": stock},
            lambda ours=ours: relative_error(values_of(ours(), block), exact),
            bytes=int(x.numel() * (2 + size)),
        )


def _gate(model: Shape, device, compiled):
    x, joint = (_draw(device, model.batch, size, model.channels) for size in (model.video, model.tokens))
    update, gate = joint[:, model.text :], _draw(device, model.batch, model.channels)
    base, factor, addend = as_float64(x[0, :_CHECKED], gate[0], update[0, :_CHECKED])
    exact = base + factor * addend
    yield Case(
        "gate x update + residual", f"{model.batch * model.video} x {model.channels}",
        lambda: gate_residual(x, update, gate),
        _with_compiled({"eager": lambda: x + gate[:, None] * update}, compiled),
        lambda: relative_error(gate_residual(x, update, gate)[0, :_CHECKED], exact),
        bytes=3 * x.nbytes,
    )


def _qk(model: Shape, device, compiled):
    heads, head, width = model.heads, model.head, model.channels
    joint = _draw(device, model.batch, model.tokens, 3 * width)
    angles = torch.randn(model.video, head // 2, device=device).repeat_interleave(2, dim=1)
    cos, sin = angles.cos(), angles.sin()
    per_head = model.text > 0
    weight, bias = _draw(device, head if per_head else width), _draw(device, head if per_head else width)

    def ours(target=joint):
        q, k, _ = target.chunk(3, dim=-1)
        affine = (weight, bias, weight, bias) if per_head else (weight, None, weight, None)
        qk_norm_rope(q, k, heads, *affine, norm="layer" if per_head else "rms", rope=(cos, sin), first=model.text)
        return q

    def turn(x):
        even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        return (x.float() * cos + torch.stack([-odd, even], dim=-1).flatten(-2) * sin).to(x.dtype)

    def normed(x):
        if per_head:
            return F.layer_norm(x.unflatten(-1, (heads, head)).transpose(1, 2), (head,), weight, bias, 1e-6)
        return F.rms_norm(x, (width,), weight, 1e-6).unflatten(-1, (heads, head)).transpose(1, 2)

    def stock(target=joint):
        out = []
        for x in target.chunk(3, dim=-1)[:2]:
            x = normed(x)
            x[:, :, model.text :] = turn(x[:, :, model.text :])
            out.append(x)
        return out

    def error():
        part = joint[:1].clone()
        exact, *affine, exact_cos, exact_sin = as_float64(part.chunk(3, dim=-1)[0], weight, bias, cos, sin)
        if per_head:
            exact = F.layer_norm(exact.unflatten(-1, (heads, head)), (head,), *affine, 1e-6)
        else:
            exact = F.rms_norm(exact, (width,), affine[0], 1e-6).unflatten(-1, (heads, head))
        even, odd = exact[:, model.text :].unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack([-odd, even], dim=-1).flatten(-2) * exact_sin[:, None]
        turned = exact[:, model.text :] * exact_cos[:, None] + turned
        exact = torch.cat([exact[:, : model.text], turned], dim=1).flatten(-2)
        return relative_error(ours(part), exact)

    mean_error = error()
    yield Case(
        "q, k norm + RoPE in place", f"2 x {model.batch * model.tokens} x {width}", ours,
        {"norm, RoPE of q and k (eager)": stock}, lambda: mean_error,
        bytes=4 * 2 * model.batch * model.tokens * width,
    )


def _delta(model: Shape, device, compiled):
    shape = model.batch, model.video, model.channels
    x = _draw(device, *shape)
    y = x + _draw(device, *shape, scale=0.1)
    cached, _ = residual_delta(x, x + _draw(device, *shape, scale=0.1))
    plain = y - x
    label = f"{model.batch * model.video} x {model.channels}"

    def measured():
        delta = y - x
        sums = delta.abs().sum(), x.abs().sum(), (delta - plain).abs().sum(), plain.abs().sum()
        return delta, sums

    before, after, moved = as_float64(x[0, :_CHECKED], y[0, :_CHECKED], dequantize_delta(cached, slice(0, _CHECKED)))
    exact = after - before
    yield Case(
        "delta, 4 sums, int8 cache", label, lambda: residual_delta(x, y, cached),
        _with_compiled({"delta and sums (eager, 16-bit)": measured}, compiled),
        lambda: relative_error(dequantize_delta(residual_delta(x, y)[0], slice(0, _CHECKED))[: len(exact)], exact),
        bytes=x.numel() * (2 + 2 + 1 + 1),
    )
    applied = before + moved[: len(exact)]
    yield Case(
        "x + int8 delta", label, lambda: apply_delta(x, cached), {"x + delta (16-bit)": lambda: x + plain},
        lambda: relative_error(apply_delta(x, cached)[0, :_CHECKED], applied), bytes=x.numel() * 5,
    )


def _predicate(model: Shape, device, compiled):
    rows = model.batch * model.tokens
    absmax, abssum = torch.rand(rows, device=device) + 3, torch.rand(rows, device=device) * model.channels
    largest, total = (part.view(model.batch, -1) for part in as_float64(absmax, abssum))
    exact = largest.amax(1) / (total.mean(1) / model.channels)
    arguments = absmax, abssum, model.batch, model.channels, 25.0
    yield Case(
        "PDR verdict on the device", f"{rows} tokens", lambda: outlier_predicate(*arguments), {},
        lambda: relative_error(outlier_predicate(*arguments).ratio, exact), bytes=8 * rows,
    )


def _products(model: Shape, device, compiled):
    width, ffn, workspace = model.channels, model.ffn, Workspace()
    sizes = {"up": (width, ffn), "qkv": (width, 3 * width), "out": (width, width), "down": (ffn, width)}
    for name, size in sizes.items():
        yield from _product(name, model.batch * model.tokens, *size, device, workspace)


def _packed(weight: torch.Tensor) -> PackedWeight:
    small = weight.numel() < _SMALL
    packed = pack_weight(weight.cpu() if small else weight, search=False)
    return PackedWeight(*(part.to(weight.device) for part in packed[:4]), *packed[4:])


def _product(name, rows, inner, columns, device, workspace):
    x = _draw(device, rows, inner)
    weight, bias = _draw(device, columns, inner, scale=0.02), _draw(device, columns, scale=0.1)
    packed = _packed(weight)
    tokens, matrix, offset = as_float64(x[:_CHECKED], dequantize_weight(packed, torch.float32), bias)
    exact = tokens @ matrix.T + offset
    label, flops = f"{name} {rows} x {inner} x {columns}", 2 * rows * inner * columns
    bf16 = {"cuBLAS bf16" if device == "cuda" else "F.linear bf16": lambda: F.linear(x, weight, bias)}
    if device == "cuda":
        alternatives = {**bf16, **(eight_bit_products(x, weight) if name == "up" and rows > 1000 else {})}
        yield _gemm_alone(x, packed, bias, label, alternatives, exact, flops)
    for precision, op in (("int8", "W4A8"), ("nvfp4", "W4A4"), ("w4a16", "W4A16")):

        def run(precision=precision):
            return quantized_linear(x, packed, bias, precision, workspace=workspace)

        yield Case(
            f"{op} quantize+unpack+product", label, run, bf16,
            lambda run=run: relative_error(run()[:_CHECKED], exact),
            ceiling="int8" if precision == "int8" else "bf16", flops=flops,
        )


def _gemm_alone(x, packed, bias, label, alternatives, exact, flops):
    from kernels.scaled_matmul_triton import scaled_matmul
    from kernels.unpack_triton import int8_weight_triton

    act, weight = quantize_int8(x, packed.hadamard), int8_weight_triton(packed).clone()
    out = torch.empty((x.shape[0], packed.shape[0]), dtype=x.dtype, device=x.device)

    def product():
        return scaled_matmul(act.codes, weight, act.token_scale, packed.int8_scale, bias, out)

    return Case(
        "W4A8 product alone", label, product, alternatives,
        lambda: relative_error(product()[:_CHECKED], exact), ceiling="int8", flops=flops,
    )


MAKERS = {
    "norm_modulate": _norm_modulate, "gelu_quantize": _gelu, "quantize": _quantizers, "gate_residual": _gate,
    "qk_norm_rope": _qk, "residual_delta": _delta, "outlier_predicate": _predicate, "products": _products,
}
