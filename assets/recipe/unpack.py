"""The inverse of package.py: a packaged diffusers folder becomes the weights of a training run, bit for bit.

    python -m assets.recipe.unpack --folder assets/tiny --out runs/tiny

So training can go on from what is published. Optimizer states are not in the package; training begins with new ones.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from assets.recipe.checkpoint import save_weights

PARTS = ("vae", "transformer", "text_encoder", "preview")


def read_part(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """All tensors of one part, float32. Raises ValueError when there is no such part."""
    files = sorted((Path(folder) / name).glob("*.safetensors"))
    if not files:
        raise ValueError(f"Expected a packaged model with {name}/*.safetensors in {folder}; found none: "
                         "give the folder that assets.recipe.package wrote.")
    weights = {}
    for file in files:
        weights.update(load_file(file))
    if name == "text_encoder" and "shared.weight" in weights:            # one table under two names, stored once
        weights["encoder.embed_tokens.weight"] = weights["shared.weight"].clone()
    return {n: w.float() for n, w in weights.items()}


def unpack(folder: Path, out: Path) -> None:
    """Write out/{vae,transformer,text_encoder,preview}.json and their shards; nothing is written if a part is missing."""
    parts = {name: read_part(folder, name) for name in PARTS}
    scaling = json.loads((Path(folder) / "vae" / "config.json").read_text())["scaling_factor"]
    for name, weights in parts.items():
        facts = {"step": 0, "clips_seen": 0, "seconds": 0.0}
        save_weights(out, name, weights, facts | ({"scaling_factor": scaling} if name == "vae" else {}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="a packaged model")
    parser.add_argument("--out", type=Path, required=True, help="folder of the training run")
    args = parser.parse_args()
    unpack(args.folder, args.out)
    print(f"{args.folder} -> {args.out}: {', '.join(PARTS)}")


if __name__ == "__main__":
    main()
