"""Puts trained weights together as a plain diffusers folder: bf16 safetensors, every shard below 9 MB.

    python -m assets.recipe.package --weights runs/tiny --out assets/tiny     trained weights
    python -m assets.recipe.package --random --out /somewhere                 untrained, for tests of the plumbing
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from diffusers import CogVideoXPipeline

from assets.recipe import models
from assets.recipe.checkpoint import load_weights
from engine.preview import PreviewDecoder


def build_pipeline(weights: Path | None, dtype=torch.bfloat16) -> CogVideoXPipeline:
    """The stock pipeline around the five parts; weights None leaves them random (seed 0)."""
    torch.manual_seed(0)
    parts = {"vae": models.build_vae(), "transformer": models.build_transformer(),
             "text_encoder": models.build_text_encoder()}
    if weights is not None:
        for name, module in parts.items():
            state, facts = load_weights(weights, name)
            if name == "text_encoder":
                parts[name] = models.text_encoder_of(state)
                continue
            module.load_state_dict(state)
            if name == "vae":
                module.register_to_config(scaling_factor=facts["scaling_factor"])
    return CogVideoXPipeline(tokenizer=models.build_tokenizer(), scheduler=models.build_scheduler(),
                             **{n: m.to(dtype).eval() for n, m in parts.items()})


def package(weights: Path | None, out: Path) -> None:
    """Write the folder, preview decoder included."""
    build_pipeline(weights).save_pretrained(out, max_shard_size="9MB", safe_serialization=True)
    preview = PreviewDecoder(models.LATENT_CHANNELS)
    if weights is not None:
        preview.load_state_dict(load_weights(weights, "preview")[0])
    preview.save(out / "preview")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, help="folder of the training run")
    parser.add_argument("--random", action="store_true", help="untrained weights instead")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if (args.weights is None) != args.random:
        parser.error("give either --weights FOLDER or --random")
    package(args.weights, args.out)
    total = sum(f.stat().st_size for f in args.out.rglob("*") if f.is_file())
    largest = max(f.stat().st_size for f in args.out.rglob("*") if f.is_file())
    print(f"{args.out}: {total / 1e6:.1f} MB, largest file {largest / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
