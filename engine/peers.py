"""What a user would pick instead: the peers we measure ourselves against.

Every peer is a context manager around a *stock* pipeline (never an attached one): inside it plain ``pipe(...)`` calls
follow the peer, afterwards the pipeline is stock again. Caching peers are diffusers' own implementations; the
quantizing ones are simulated in PyTorch, since only their quality is compared, never their speed.

A peer yields a `Usage`, which counts the share of transformer-block MACs that really ran, by watching the linear
layers themselves: the same measure for every method, whatever it skips (whole models, blocks, attention only).
"""

import re
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from kernels import Workspace, quantized_linear
from kernels.weights import PackedWeight, pack_weight, unpack_weight

_LEFTOVERS = ("_diffusers_hook", "_cache_config", "forward")


@dataclass
class Usage:
    """MACs of the watched linears: ``done`` really ran, ``full`` is one dense model evaluation."""

    bits: float
    full: int = 0
    done: int = 0
    evaluations: int = 0
    per_layer: dict = field(default_factory=dict)

    @property
    def skipped(self) -> float:
        """Share in [0, 1] of the dense MACs that did not run."""
        dense = self.full * self.evaluations
        return 0.0 if dense == 0 else max(0.0, 1.0 - self.done / dense)

    @property
    def average_bits(self) -> float:
        """Mean activation bits with skipped work counted as 0 (the paper's convention)."""
        return self.bits * (1.0 - self.skipped)


def block_linears(transformer: nn.Module) -> dict[str, nn.Linear]:
    """The linears of transformer blocks that quantization touches: attention q, k, v, out and the two FFN layers."""
    found = {}
    for name, module in transformer.named_modules():
        if not isinstance(module, nn.Linear) or "transformer_blocks" not in name and ".blocks." not in f".{name}":
            continue
        if any(part in name for part in (".attn", ".ff.", ".ffn.")):
            found[name] = module
    if not found:
        raise ValueError(f"{type(transformer).__name__} has no transformer blocks with attention and FFN linears.")
    return found


@contextmanager
def _watch(transformer: nn.Module, bits: float):
    usage = Usage(bits=bits)
    handles = []

    def count(name):
        def hook(module, args, output):
            macs = output.numel() // output.shape[-1] * module.in_features * module.out_features
            usage.done += macs
            usage.per_layer[name] = max(usage.per_layer.get(name, 0), macs)
            usage.full = sum(usage.per_layer.values())

        return hook

    for name, linear in block_linears(transformer).items():
        handles.append(linear.register_forward_hook(count(name)))

    def evaluation(module, args, kwargs):
        usage.evaluations += 1

    handles.append(transformer.register_forward_pre_hook(evaluation, with_kwargs=True))
    try:
        yield usage
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def stock(pipe):
    """The pipeline as it is: the reference."""
    with _watch(pipe.transformer, 16) as usage:
        yield usage


@contextmanager
def _cached(pipe, config):
    # diffusers leaves its hook registries and instance forwards behind: a stock pipeline has neither.
    before = {module: {name: module.__dict__.get(name) for name in _LEFTOVERS} for module in pipe.transformer.modules()}
    with _watch(pipe.transformer, 16) as usage:
        pipe.transformer.enable_cache(config)
        try:
            yield usage
        finally:
            pipe.transformer.disable_cache()
            for module, attributes in before.items():
                for name, value in attributes.items():
                    if value is None:
                        module.__dict__.pop(name, None)
                    else:
                        module.__dict__[name] = value


def first_block_cache(pipe, threshold: float):
    """diffusers' FirstBlockCache: the tail is reused while the first block's residual changes less than `threshold`."""
    from diffusers import FirstBlockCacheConfig

    return _cached(pipe, FirstBlockCacheConfig(threshold=threshold))


def taylorseer(pipe, interval: int):
    """diffusers' TaylorSeer (first order): extrapolates attention and FFN outputs in all but one of `interval` steps.

    The modules are named here, since diffusers' default patterns end in "attn" and match nothing in CogVideoX, whose
    attention is called "attn1": without the names it would silently do nothing.
    """
    from diffusers import TaylorSeerCacheConfig

    names = [name for name, _ in pipe.transformer.named_modules() if re.search(r"blocks\.\d+\.(attn\d?|ff|ffn)$", name)]
    return _cached(
        pipe,
        TaylorSeerCacheConfig(
            cache_interval=interval, max_order=1, taylor_factors_dtype=pipe.transformer.dtype,
            cache_identifiers=[re.escape(name) for name in names],
        ),
    )


def pyramid_attention_broadcast(pipe, skip_range: int):
    """diffusers' PyramidAttentionBroadcast on the joint attention: recomputed once every `skip_range` steps."""
    from diffusers import PyramidAttentionBroadcastConfig

    return _cached(
        pipe,
        PyramidAttentionBroadcastConfig(
            spatial_attention_block_skip_range=skip_range,
            spatial_attention_timestep_skip_range=(100, 800),
            current_timestep_callback=lambda: int(pipe.current_timestep),
        ),
    )


def mag_cache(pipe, threshold: float, ratios, steps: int):
    """diffusers' MagCache with `ratios` measured on this model by `mag_ratios`."""
    from diffusers import MagCacheConfig

    return _cached(pipe, MagCacheConfig(threshold=threshold, mag_ratios=list(ratios), num_inference_steps=steps))


@contextmanager
def magnitude_ratios(pipe):
    """Watch one stock call and yield a list that fills with MagCache's magnitude ratios, one per model evaluation.

    The ratio is ‖r_t‖ / ‖r_{t−1}‖ of the whole model's residual, averaged over tokens, as MagCache defines it;
    diffusers' own calibration only prints its result.
    """
    blocks = pipe.transformer.transformer_blocks
    ratios, kept = [], {}

    def head(module, args, kwargs):
        kept["input"] = (args[0] if args else kwargs["hidden_states"]).detach()

    def tail(module, args, kwargs, output):
        residual = (output[0] if isinstance(output, tuple) else output).detach() - kept["input"]
        norm = residual.float().norm(dim=-1)
        before = kept.get("norm")
        ratios.append(1.0 if before is None else float((norm / before.clamp_min(1e-12)).mean()))
        kept["norm"] = norm

    handles = [
        blocks[0].register_forward_pre_hook(head, with_kwargs=True),
        blocks[-1].register_forward_hook(tail, with_kwargs=True),
    ]
    try:
        yield ratios
    finally:
        for handle in handles:
            handle.remove()


def _round_int8(x: torch.Tensor, dim: int) -> torch.Tensor:
    scale = x.abs().amax(dim=dim, keepdim=True).clamp_min(1e-12) / 127
    return (x / scale).round().clamp(-127, 127) * scale


@contextmanager
def _replaced(linears: dict[str, nn.Linear], replacement):
    try:
        for name, linear in linears.items():
            linear.forward = replacement(name, linear)
        yield
    finally:
        for linear in linears.values():
            linear.__dict__.pop("forward", None)


@contextmanager
def _patched_linears(pipe, bits, replacement):
    with _watch(pipe.transformer, bits) as usage, _replaced(block_linears(pipe.transformer), replacement):
        yield usage


@contextmanager
def channel_maxima(pipe):
    """Watch stock calls and yield per-channel max|x| of every block linear's input: SmoothQuant's calibration."""
    maxima, handles = {}, []

    def observe(name):
        def hook(module, args):
            value = args[0].detach().abs().reshape(-1, module.in_features).amax(0).float()
            maxima[name] = torch.maximum(maxima[name], value) if name in maxima else value

        return hook

    for name, linear in block_linears(pipe.transformer).items():
        handles.append(linear.register_forward_pre_hook(observe(name)))
    try:
        yield maxima
    finally:
        for handle in handles:
            handle.remove()


def smoothquant_w8a8(pipe, maxima: dict[str, torch.Tensor], strength: float = 0.5):
    """SmoothQuant (arXiv 2211.10438) with INT8 weights per row and INT8 activations per token, simulated.

    Args:
        maxima: what `channel_maxima` collected on this pipeline.
        strength: the migration strength α of the paper, in [0, 1].
    """
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must lie in [0, 1], got {strength}.")

    def replacement(name, linear):
        weight = linear.weight.detach().float()
        smooth = maxima[name].to(weight.device).clamp_min(1e-5) ** strength
        smooth = smooth / weight.abs().amax(0).clamp_min(1e-5) ** (1 - strength)
        quantized = _round_int8(weight * smooth, 1)

        def forward(x):
            y = F.linear(_round_int8(x.float() / smooth, -1), quantized)
            return (y if linear.bias is None else y + linear.bias.float()).to(x.dtype)

        return forward

    return _patched_linears(pipe, 8, replacement)


def packed_linears(pipe) -> dict[str, PackedWeight]:
    """What `attach` would pack: the NVFP4 weights of the block linears and, by name, of the AdaLN modulations."""
    linears = {**block_linears(pipe.transformer), **_modulations(pipe.transformer)}
    return {name: pack_weight(linear.weight.detach()) for name, linear in linears.items()}


def _modulations(transformer: nn.Module) -> dict[str, nn.Linear]:
    """The linears inside the blocks' norms: they see the time embedding only."""
    return {
        name: module for name, module in transformer.named_modules()
        if isinstance(module, nn.Linear) and re.search(r"blocks\.\d+\.norm", name)
    }  # fmt: skip


@contextmanager
def w4a8_first_block_cache(pipe, threshold: float, packed: dict[str, PackedWeight]):
    """Uniform W4A8, as our preset `w4a8` computes it, under diffusers' FirstBlockCache: packed weights with the
    cache rule that a user would otherwise pick. `packed`: from `packed_linears`."""
    workspace = Workspace()

    def replacement(name, linear):
        precision = "w4a16" if name in modulations else "int8"
        return lambda x: quantized_linear(x.detach(), packed[name], linear.bias, precision, workspace=workspace)

    modulations = _modulations(pipe.transformer)
    linears = {**block_linears(pipe.transformer), **modulations}
    with _replaced(linears, replacement), first_block_cache(pipe, threshold) as usage:
        usage.bits = 8
        yield usage


def weights_only_nvfp4(pipe):
    """NVFP4 weights without rotation, 16-bit activations: what the packing itself costs."""

    def replacement(name, linear):
        packed = pack_weight(linear.weight.detach(), hadamard=1)
        scale = packed.tensor_scale.view(torch.float32)[:, None]
        weight = (unpack_weight(packed, torch.float32) * scale).to(linear.weight.dtype)
        return lambda x: F.linear(x, weight, linear.bias)

    return _patched_linears(pipe, 16, replacement)
