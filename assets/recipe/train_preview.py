"""Distils the preview decoder (engine/preview.py) on clips, and on mixtures of clips, of the training world.

    python -m assets.recipe.train_preview --out runs/tiny
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from assets.recipe import models, world
from assets.recipe.checkpoint import save_weights
from assets.recipe.fast_vae import FastVAE
from assets.recipe.machine import Machine, SceneFeed
from assets.recipe.optimizer import learning_rate
from assets.recipe.train_dit import load_vae
from engine.preview import PreviewDecoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=4e-3)
    args = parser.parse_args()
    machine = Machine()
    torch.manual_seed(5)
    vae, facts = load_vae(args.out, machine)
    fast = FastVAE(vae, machine.dtype, stacked=True)
    painter, feed = world.Painter(machine.device), SceneFeed(machine, 3, args.batch, chunk=max(1, 2048 // args.batch))
    paint = torch.compile(painter.paint, dynamic=False) if machine.device.type == "cuda" else painter.paint
    decoder = PreviewDecoder(models.LATENT_CHANNELS).to(machine.device)
    optimizer = torch.optim.AdamW(decoder.parameters(), args.lr, betas=(0.9, 0.98), weight_decay=1e-4)
    total = torch.zeros((), device=machine.device)
    for n in range(args.steps):
        with torch.no_grad():
            clips, _ = paint(feed.next())
            z = fast.encode(clips * 2 - 1)[0].permute(0, 1, 4, 2, 3) * facts["scaling_factor"]
            half = args.batch // 2                                       # half of the batch: mixtures of two clips
            mix = torch.rand(half, 1, 1, 1, 1, device=machine.device)
            z[:half] = z[:half] * mix + z[:half].flip(0) * (1 - mix)
            clips[:half] = clips[:half] * mix + clips[:half].flip(0) * (1 - mix)
        loss = (decoder(z) - clips).square().mean()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(n, args.steps, args.lr, 50)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total += loss.detach()
        if (n + 1) % 200 == 0 or n + 1 == args.steps:
            machine.log(f"preview {n + 1} psnr {-10 * torch.log10(total / ((n % 200) + 1)).item():.2f}")
            total.zero_()
    save_weights(args.out, "preview", dict(decoder.named_parameters()),
                 {"step": args.steps, "parameters": sum(p.numel() for p in decoder.parameters())})


if __name__ == "__main__":
    main()
