"""Which weights are these? One short hash for a loaded pipeline, and the same from its files before anything is loaded.

What is fitted to a model (its calibration) carries this hash, and so finds its model and no other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from .families import MODEL_SLOTS, transformers_of
from .files import read_object
from .folder import PACKED, LoadError, check_folder

_PICKED = 4


def model_hash(pipe) -> str:
    """16 hex digits over the transformers' configurations and a sample of every weight.

    Values are compared in bfloat16, so that the same checkpoint loaded as float32 or bfloat16
    has one hash. Weights that are not loaded (meta) take part by name and shape only.
    """
    return _hash(transformers_of(pipe), lambda slot, name, parameter: None if parameter.is_meta else parameter)


def folder_hash(folder: Path, dtype) -> str | None:
    """The `model_hash` that a local pipeline folder has once it is loaded in this torch dtype; of a packed checkpoint
    that of the model it was packed from. None where the files do not tell. Reads headers and single pages of weights.

    Raises LoadError for a folder that could not be loaded either.
    """
    parts = check_folder(folder)
    if (folder / PACKED).is_file():
        return read_object(folder / PACKED, "the description of a packed checkpoint", error=LoadError).get("model_hash")
    import diffusers
    import torch
    from accelerate import init_empty_weights
    from safetensors import safe_open

    if dtype == torch.float16:  # its rounding shows in bfloat16, and some modules stay float32
        return None
    models, stored = {}, {}
    with ExitStack() as opened:
        # What is wrong with such a folder, loading it says in a sentence.
        try:
            for slot in (slot for slot in MODEL_SLOTS if slot in parts):
                made = getattr(diffusers, parts[slot])
                with init_empty_weights(include_buffers=False):
                    models[slot] = made.from_config(made.load_config(str(folder / slot)))
                for path in sorted((folder / slot).glob("*.safetensors")):
                    file = opened.enter_context(safe_open(path, framework="pt"))
                    stored.update({(slot, name): file for name in file.keys()})
            return _hash(models, lambda slot, name, parameter: stored[slot, name].get_tensor(name))
        except Exception:
            return None


def _hash(models: Mapping[str, object], values: Callable) -> str:
    """values: (slot, name, parameter) → the tensor to take samples of, or None."""
    import torch

    digest = hashlib.sha256()
    for slot, model in models.items():
        config = {name: value for name, value in model.config.items() if not name.startswith("_")}
        digest.update(json.dumps([slot, type(model).__name__, config], sort_keys=True, default=str).encode())
        picked = []
        for name, parameter in model.named_parameters():
            digest.update(f"{name}{tuple(parameter.shape)}".encode())
            weight = values(slot, name, parameter)
            if weight is not None and weight.numel():
                flat = weight.detach().reshape(-1)
                places = torch.linspace(0, flat.numel() - 1, _PICKED, dtype=torch.float64).long()
                picked.append(flat[places.to(flat.device)].to(torch.bfloat16))
        if picked:
            digest.update(torch.cat(picked).view(torch.int16).cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
