"""Weights and training states on disk: safetensors shards of at most 15 MiB, written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

_SHARD = 15 * 2 ** 20


def save_shards(folder: Path, name: str, tensors: dict[str, torch.Tensor], facts: dict) -> None:
    """name.json lists the shards and the facts; it is renamed into place last, so a torn write is never read."""
    folder.mkdir(parents=True, exist_ok=True)
    shards, pieces, size = [{}], {}, 0
    for key, tensor in tensors.items():
        tensor = tensor.detach().contiguous().cpu()
        room = max(1, _SHARD // tensor.element_size())
        parts = [tensor] if tensor.numel() <= room else list(tensor.reshape(-1).split(room))
        pieces[key] = {"parts": len(parts), "shape": list(tensor.shape)}
        for i, part in enumerate(parts):
            bytes_ = part.numel() * part.element_size()
            if size + bytes_ > _SHARD and shards[-1]:
                shards.append({})
                size = 0
            shards[-1][f"{key}#{i}"] = part.clone()
            size += bytes_
    files = []
    for i, shard in enumerate(shards):
        path = folder / f"{name}.{facts.get('step', 0)}.{i}.safetensors"
        save_file(shard, path)
        files.append(path.name)
    index = folder / f"{name}.json"
    temporary = index.with_suffix(".tmp")
    temporary.write_text(json.dumps({"files": files, "tensors": pieces, "facts": facts}, indent=1))
    os.replace(temporary, index)
    for old in folder.glob(f"{name}.*.safetensors"):
        if old.name not in files:
            old.unlink()


def load_shards(folder: Path, name: str) -> tuple[dict[str, torch.Tensor], dict] | None:
    """What save_shards wrote, or None if there is none. Raises ValueError when a shard is missing."""
    index = Path(folder) / f"{name}.json"
    if not index.is_file():
        return None
    listing = json.loads(index.read_text())
    found: dict[str, torch.Tensor] = {}
    for file in listing["files"]:
        if not (Path(folder) / file).is_file():
            raise ValueError(f"Expected {file} beside {index}; it is missing: copy it there or train again.")
        found.update(load_file(Path(folder) / file))
    tensors = {}
    for key, entry in listing["tensors"].items():
        parts = [found[f"{key}#{i}"] for i in range(entry["parts"])]
        tensors[key] = (parts[0] if len(parts) == 1 else torch.cat(parts)).view(entry["shape"])
    return tensors, listing["facts"]


def save_weights(folder: Path, name: str, weights: dict[str, torch.Tensor], facts: dict) -> None:
    """A part's weights in bf16."""
    save_shards(Path(folder), name, {k: v.to(torch.bfloat16) for k, v in weights.items()}, facts)


def load_weights(folder: Path, name: str) -> tuple[dict[str, torch.Tensor], dict]:
    """A part's weights in float32 and its facts. Raises ValueError when the part was never trained."""
    found = load_shards(Path(folder), name)
    if found is None:
        raise ValueError(f"Expected trained weights {name}.json in {folder}; train that part first.")
    return {k: v.float() for k, v in found[0].items()}, found[1]
