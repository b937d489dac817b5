"""Which diffusers pipelines the engine knows, and where everything sits in them.

One row per model family. A row names the repeated blocks of a transformer, the residual streams
a block updates (its arguments, in the order of its outputs), the groups of linear layers that
share one input and so one decision, and the linears that are packed without a decision. Adding a
family means adding a row, a constructor in `tests/pipelines.py`, and nothing else.

No torch here: modules are only looked at through their attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping


class UnsupportedPipeline(ValueError):
    """The pipeline belongs to no supported family; the message says which ones do."""


@dataclass(frozen=True)
class Family:
    """One model family.

    name: shown to people and stored in traces.
    pipelines: class names of the diffusers pipelines that are supported.
    transformer: class name of the transformer.
    blocks: attribute of the transformer that lists its repeated blocks.
    streams: argument names of a block's residual streams, in the order of its outputs.
    groups: group name -> dotted paths, inside a block, of the linears that share one input.
    adaln: paths of the per-block AdaLN modulation linears ("" for none in the blocks).
    static: paths of linears whose input is constant within a run; packed, always W4A16. A path
        that a block does not have (the image keys of Wan 2.1 image-to-video) is passed over.
    branches: names of the forwards at one timestep, in order, for a pipeline that does not
        announce them through `cache_context`.
    """

    name: str
    pipelines: tuple[str, ...]
    transformer: str
    blocks: str
    streams: tuple[str, ...]
    groups: Mapping[str, tuple[str, ...]]
    adaln: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    branches: tuple[str, ...] = ("cond", "uncond")


_FAMILIES = (
    Family(
        name="CogVideoX",
        pipelines=(
            "CogVideoXPipeline", "CogVideoXImageToVideoPipeline", "CogVideoXVideoToVideoPipeline",
        ),
        transformer="CogVideoXTransformer3DModel",
        blocks="transformer_blocks",
        streams=("hidden_states", "encoder_hidden_states"),
        groups={
            "qkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
            "out": ("attn1.to_out.0",),
            "up": ("ff.net.0.proj",),
            "down": ("ff.net.2",),
        },
        adaln=("norm1.linear", "norm2.linear"),
        branches=("cond_uncond",),
    ),
    Family(
        name="Wan",
        pipelines=("WanPipeline", "WanImageToVideoPipeline", "WanVideoToVideoPipeline"),
        transformer="WanTransformer3DModel",
        blocks="blocks",
        streams=("hidden_states",),
        groups={
            "self_qkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
            "self_out": ("attn1.to_out.0",),
            "cross_q": ("attn2.to_q",),
            "cross_out": ("attn2.to_out.0",),
            "up": ("ffn.net.0.proj",),
            "down": ("ffn.net.2",),
        },
        static=("attn2.to_k", "attn2.to_v", "attn2.add_k_proj", "attn2.add_v_proj"),
    ),
)

# Pipelines close enough to a family that someone will try them.
_REFUSED = {
    "WanVACEPipeline": "its control blocks add hints between the blocks, so a skipped block "
    "would drop them",
    "WanAnimatePipeline": "its face blocks change the stream between the blocks, and it runs "
    "several denoising loops in one call",
    "CogVideoXFunControlPipeline": "it was never tried",
}
MODEL_SLOTS = ("transformer", "transformer_2")


def supported() -> tuple[str, ...]:
    """The class names of all supported diffusers pipelines."""
    return tuple(name for family in _FAMILIES for name in family.pipelines)


def families() -> tuple[Family, ...]:
    """All rows of the table."""
    return _FAMILIES


def family_of(pipe) -> Family:
    """The family of a diffusers pipeline.

    Raises UnsupportedPipeline, in one sentence that lists what is supported.
    """
    names = [cls.__name__ for cls in type(pipe).__mro__]
    for name in names:
        if name in _REFUSED:
            raise UnsupportedPipeline(
                f"{name} is not supported, because {_REFUSED[name]}; supported are "
                f"{', '.join(supported())}."
            )
    for family in _FAMILIES:
        if any(name in family.pipelines for name in names):
            for slot, model in transformers_of(pipe).items():
                found = [cls.__name__ for cls in type(model).__mro__]
                if "OptimizedModule" in found:
                    raise UnsupportedPipeline(
                        f"The {slot} is compiled already; attach first, then call pipe.{slot}.compile() or "
                        "torch.compile."
                    )
                if family.transformer not in found:
                    raise UnsupportedPipeline(
                        f"The {slot} of a {type(pipe).__name__} must be a {family.transformer}, "
                        f"but it is a {type(model).__name__}; load the pipeline with its own "
                        "transformer."
                    )
            return family
    raise UnsupportedPipeline(
        f"{type(pipe).__name__} is not supported; supported are {', '.join(supported())}."
    )


def transformers_of(pipe) -> dict[str, object]:
    """The pipeline's denoising transformers by slot name, in the order in which they run."""
    found = {slot: getattr(pipe, slot, None) for slot in MODEL_SLOTS}
    present = {slot: model for slot, model in found.items() if model is not None}
    if not present:
        raise UnsupportedPipeline(
            f"This {type(pipe).__name__} has no transformer; supported are "
            f"{', '.join(supported())}, loaded with all their parts."
        )
    return present


def find(block, path: str):
    """The submodule at a dotted path inside a block, or None where the block has none."""
    module = block
    for part in path.split("."):
        if part.isdigit():
            module = module[int(part)] if int(part) < len(module) else None
        else:
            module = getattr(module, part, None)
        if module is None:
            return None
    return module
