"""What attach and detach refuse to touch, each in one sentence that says what to do.

Surgery on modules is only safe if nobody else operates on them at the same time: hooks of
accelerate and diffusers replace `forward`, adapters wrap layers, casts replace weights.
"""

from __future__ import annotations

import torch
from torch import nn

from .block import own_forward
from .families import Family, find, transformers_of


class CannotAttach(ValueError):
    """The pipeline is in a state that must not be changed; the message says what to undo first."""


def check_attachable(pipe, family: Family, packed: bool = False) -> None:
    """Raise CannotAttach if any transformer of `pipe` must not be changed now.

    packed: the weights come ready packed, so the layers themselves may be empty (meta).
    """
    for slot, model in transformers_of(pipe).items():
        if getattr(model, "_cache_config", None) is not None:
            raise CannotAttach(
                f"The {slot} has a diffusers cache enabled, which would skip blocks behind our back; "
                f"call pipe.{slot}.disable_cache() first."
            )
        check_adapters(slot, model)
        check_hooks(slot, model, "attach")
        for block in getattr(model, family.blocks):
            for paths in (*family.groups.values(), family.adaln, family.static):
                for path in paths:
                    _check_linear(slot, path, find(block, path), packed)


def check_hooks(slot: str, model: nn.Module, action: str) -> None:
    """Raise CannotAttach if hooks of accelerate or diffusers, or a foreign forward, sit in `model`."""
    for name, module in model.named_modules():
        where = f"the {slot}" + (f" ({name})" if name else "")
        if "_hf_hook" in module.__dict__:
            raise CannotAttach(
                f"Offloading hooks of accelerate sit on {where}; call pipe.remove_all_hooks() and {action}, then "
                "enable offloading again."
            )
        registry = module.__dict__.get("_diffusers_hook")
        if registry is not None and registry.hooks:
            raise CannotAttach(
                f"Diffusers hooks ({', '.join(registry.hooks)}) sit on {where}; remove group offloading, layerwise "
                f"casting or caching first, then {action}."
            )
        if not own_forward(module):
            raise CannotAttach(
                f"The forward of {where} was replaced by somebody's hook; remove it first, then {action}."
            )


def check_adapters(slot: str, model: nn.Module) -> None:
    """Raise CannotAttach if LoRA or PEFT layers are wrapped around layers of `model`."""
    if getattr(model, "peft_config", None) or any("base_layer" in module._modules for module in model.modules()):
        raise CannotAttach(
            f"The {slot} has LoRA or other PEFT layers around its linears (fuse_lora() leaves them in place); call "
            "pipe.unload_lora_weights() first, after fuse_lora() if the LoRA is to stay."
        )


def _check_linear(slot: str, path: str, linear, packed: bool) -> None:
    if linear is None:
        return
    if type(linear) is not nn.Linear:
        raise CannotAttach(
            f"The layer {path} of the {slot} is a {type(linear).__name__} instead of a plain Linear, so it is "
            "quantized or wrapped already; load the pipeline in bfloat16 or float32 without a quantization config."
        )
    weight = linear.weight
    if weight.is_meta:
        if packed:
            return
        raise CannotAttach(
            f"The weights of the {slot} are not loaded (meta tensors at {path}); load the pipeline without device_map "
            "or low_cpu_mem_usage placeholders, then attach."
        )
    if type(weight.data) is not torch.Tensor or weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise CannotAttach(
            f"The weights of the {slot} are stored as {str(weight.dtype).removeprefix('torch.')} at {path}, expected "
            "float32, bfloat16 or float16; load the pipeline without layerwise casting or quantization."
        )


def check_fused(pipe, family: Family) -> None:
    """Raise CannotAttach if query, key and value were fused into one layer."""
    for slot, model in transformers_of(pipe).items():
        for module in model.modules():
            fused = {"to_qkv", "to_kv", "to_added_kv"} & set(module._modules)
            if fused or getattr(module, "fused_projections", False):
                raise CannotAttach(
                    f"The {slot} has fused query, key and value projections; call pipe.{slot}.unfuse_qkv_projections() "
                    "first (they are shared in one product here anyway)."
                )
