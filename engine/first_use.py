"""What an attached pipeline's kernels will be compiled for, so that it happens while progress is shown.

A run at the model's own size then compiles nothing more; at another size at most a few small kernels.
"""

from __future__ import annotations

import inspect
from typing import Callable

from kernels import target, warm_up
from kernels.first_use import Block, Use

from . import fused, products
from .families import transformers_of


def compile_kernels(handle, progress: Callable[[int, int], None] | None = None) -> None:
    """Compile for all groups of `handle` what its device's runs launch; progress: called as progress(done, total)."""
    groups = [group for _, group in handle.groups]
    made_by = fused.INPUTS if _is_fused(handle) else {}
    uses = [
        Use(group.packed, group.bias is not None, group.static, None if group.static else made_by.get(group.name))
        for group in groups
    ]
    here = target.probe(groups[0].packed.codes.device)
    warm_up(uses, groups[0].members[0].like.dtype, progress, block_of(handle) if here.triton else None)


def block_of(handle) -> Block:
    """The blocks of a pipeline as its kernels meet them, at the size that the model was made for, with guidance."""
    model = next(iter(transformers_of(handle.pipe).values()))
    config = model.config
    if not _is_fused(handle):
        channels = config.num_attention_heads * config.attention_head_dim
        return Block((_wan_tokens(handle.pipe, config),), channels=channels)
    text, video = config.max_text_seq_length, _cogvideox_tokens(config)
    columns = {sum(group.sizes) for _, group in handle.groups if not group.static}
    device = handle.groups[0][1].packed.codes.device
    lengths = {
        strip.stop - strip.start
        for width in columns
        for strip in products._strips(slice(0, text + video), width, device)
    }
    return Block(
        (text, video), 2, tuple(sorted(lengths)), config.num_attention_heads * config.attention_head_dim,
        config.num_attention_heads, bool(config.use_rotary_positional_embeddings),
    )  # fmt: skip


def _is_fused(handle) -> bool:
    return handle.family.name.startswith("CogVideoX")


def _cogvideox_tokens(config) -> int:
    frames = (config.sample_frames - 1) // config.temporal_compression_ratio + 1
    times = -(-frames // (config.patch_size_t or 1))
    return times * (config.sample_height // config.patch_size) * (config.sample_width // config.patch_size)


def _wan_tokens(pipe, config) -> int:
    """At the pipeline's own defaults; the model's configuration names no size."""
    defaults = {name: given.default for name, given in inspect.signature(type(pipe).__call__).parameters.items()}
    times, rows, columns = config.patch_size
    frames = (defaults.get("num_frames", 81) - 1) // pipe.vae_scale_factor_temporal + 1
    height, width = (defaults[name] // pipe.vae_scale_factor_spatial for name in ("height", "width"))
    return frames // times * (height // rows) * (width // columns)
