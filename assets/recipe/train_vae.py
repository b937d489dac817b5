"""Trains the autoencoder on freshly drawn clips.

    python -m assets.recipe.train_vae --out runs/tiny                        one GPU
    torchrun --nproc-per-node 2 -m assets.recipe.train_vae --out runs/tiny   several
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch

from assets.recipe import models, world
from assets.recipe.checkpoint import load_shards, load_weights, save_shards, save_weights
from assets.recipe.fast_vae import FastVAE
from assets.recipe.machine import Captured, Machine, SceneFeed
from assets.recipe.optimizer import FlatOptimizer, learning_rate

KL_WEIGHT = 1e-4
ROUGHNESS = 0.03                   # extra noise on the latents while the decoder alone is refined


def reconstruction_loss(recon, target, cover):
    """L1 + 2 L2, objects and edges weighted; plus L1 of the differences between neighbouring pixels.

    recon, target (B, T, H, W, 3) in [-1, 1]; cover (B, T, H, W) in [0, 1]. Returns the loss and the plain MSE.
    """
    d = recon.float() - target
    right = (target[:, :, :, 1:] - target[:, :, :, :-1]).abs().amax(-1)
    down = (target[:, :, 1:] - target[:, :, :-1]).abs().amax(-1)
    edge = torch.nn.functional.pad(right, (0, 1)) + torch.nn.functional.pad(down, (0, 0, 0, 1))
    weight = 1 + 2.0 * cover + 3.0 * edge.clamp(max=1)
    error = d.abs().mean(-1) + 2 * d.square().mean(-1)
    slope = (d[:, :, :, 1:] - d[:, :, :, :-1]).abs().mean() + (d[:, :, 1:] - d[:, :, :-1]).abs().mean()
    return (weight * error).mean() / weight.mean().detach() + 0.5 * slope, d.square().mean()


class Step:
    """Forward and backward of one batch of clips. With a frozen encoder only the decoder's parameters learn."""

    def __init__(self, fast: FastVAE, machine: Machine, frozen_encoder: bool = False):
        self.fast, self.machine = fast, machine
        self.frozen = FastVAE(fast.vae, fast.dtype) if frozen_encoder else None
        self.painter = world.Painter(machine.device)
        if machine.device.type == "cuda":
            self.paint = torch.compile(world.paint, dynamic=False)
            self.loss = torch.compile(reconstruction_loss, dynamic=False)
        else:
            self.paint, self.loss = world.paint, reconstruction_loss

    @torch.no_grad()
    def draw(self, s: world.Scenes):
        p = self.painter
        return self.paint(s.place, s.two, s.size, s.colour, s.shape, s.motion, s.anchor, s.ground, p.backdrops,
                          p.colours, p.stripes, p.poses, p.radii, p.reach, p.bottom, p.axis)

    def encode(self, target):
        if self.frozen is None:
            return self.fast.encode(target)
        with torch.no_grad():
            return self.frozen.encode(target)

    def __call__(self, *scenes: torch.Tensor) -> torch.Tensor:
        """Takes the fields of Scenes; leaves gradients in the parameters; returns [loss, mse, kl, latent std]."""
        clips, cover = self.draw(world.Scenes(*scenes))
        target = clips * 2 - 1
        mean, logvar = self.encode(target)
        noise = torch.exp(0.5 * logvar) + (ROUGHNESS if self.frozen else 0.0)
        loss, mse = self.loss(self.fast.decode(mean + noise * torch.randn_like(mean)), target, cover)
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
        (loss if self.frozen else loss + KL_WEIGHT * kl).backward()
        return torch.stack([loss.detach(), mse.detach(), kl.detach(), mean.detach().std()])


def evaluate(step: Step, count: int, batch: int) -> dict:
    """PSNR in dB over [0, 1] of held-out clips, over all pixels and over the objects' pixels; latent statistics.

    Gradients stay on and the batch is the training's, so that nothing is compiled a second time.
    """
    feed = SceneFeed(step.machine, seed=9, batch=batch, chunk=4)
    mse = inside = area = 0.0
    values = []
    for _ in range(max(1, count // batch)):
        clips, cover = step.draw(feed.next())
        mean, _ = step.encode(clips * 2 - 1)
        error = (step.fast.decode(mean).detach().float().clamp(-1, 1) / 2 + 0.5 - clips).square().mean(-1)
        mse += error.mean().item() * batch
        inside += (error * cover).sum().item()
        area += cover.sum().item()
        values.append(mean.detach().float())
    values = torch.cat(values)
    total = max(1, count // batch) * batch
    return {"psnr": -10 * math.log10(mse / total), "psnr_objects": -10 * math.log10(inside / area),
            "latent_std": values.std().item(), "channel_std": values.std((0, 1, 2, 3)).tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=9000)
    parser.add_argument("--seconds", type=float, help="choose the steps from the speed measured at step 150 instead")
    parser.add_argument("--batch", type=int, default=4, help="clips per process and step")
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--muon", action="store_true", help="Muon for the convolutions")
    parser.add_argument("--stacked", action="store_true", help="3D convolutions as 2D ones over stacked frames")
    parser.add_argument("--no-graph", action="store_true")
    parser.add_argument("--refine", action="store_true",
                        help="go on from trained weights with a frozen encoder: the latents stay as they are")
    parser.add_argument("--turning", type=float, default=0.0, help="share of objects that are made to spin or swing: "
                        "fast rotation is what four frames to a latent blur most")
    parser.add_argument("--save-every", type=int, default=3000)
    parser.add_argument("--eval", type=int, default=256, help="held-out clips")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    machine = Machine()
    cuda = machine.device.type == "cuda"
    torch.manual_seed(args.seed)
    vae, before = models.build_vae(), {}
    if args.refine:
        weights, before = load_weights(args.out, "vae")
        vae.load_state_dict(weights)
        vae.encoder.requires_grad_(False)
    vae.to(machine.device)
    if args.refine:
        vae.encoder.to(machine.dtype)
    named = [(n, p) for n, p in vae.named_parameters() if p.requires_grad]
    is_matrix = lambda n, p: args.muon and p.ndim >= 4 and p.shape[0] >= 16 and p[0].numel() >= 64
    optimizer = FlatOptimizer(named, machine.dtype, is_matrix, betas=(0.9, 0.99), weight_decay=1e-4, ema=0.998)
    start, state = 0, "vae_refine_state" if args.refine else "vae_state"
    found = load_shards(args.out, state)
    if found:
        optimizer.load_state(found[0])
        start = found[1]["step"]
        machine.log(f"resumed at step {start}")
    torch.manual_seed(args.seed + 1 + machine.rank + 100 * start + 50_000 * args.refine)
    step = Step(FastVAE(vae, machine.dtype, args.stacked, compiled=cuda), machine, args.refine)
    captured = Captured(step, optimizer, cuda and not args.no_graph)
    feed = SceneFeed(machine, args.seed + 20 * args.refine, args.batch, start, turning=args.turning)
    machine.log(f"autoencoder: {sum(p.numel() for _, p in named) / 1e6:.2f} M parameters to learn, {machine.world} x "
                f"{args.batch} clips a step, steps {start} to {args.steps}")

    began, mark, n = time.time(), start, start - 1
    while (n := n + 1) < args.steps:
        if args.seconds and n == start + 150:
            machine.wait()
            args.steps = machine.agree(n + args.seconds * (n - mark) / (time.time() - began))
            machine.log(f"{args.steps} steps in all")
        result = captured(*vars(feed.next()).values())
        norm = optimizer.step(learning_rate(n, args.steps, args.lr, 100))
        if (n + 1) % 250 == 0 or n + 1 in (1, 5, 10, 50, args.steps):
            loss, mse, kl, std = result.tolist()
            speed = (n + 1 - mark) / (time.time() - began)
            began, mark = time.time(), n + 1
            machine.log(f"vae {n + 1} loss {loss:.4f} psnr {10 * math.log10(4 / mse):.2f} kl {kl:.2f} std {std:.2f} "
                        f"norm {norm.item():.2f} {speed:.2f} steps/s")
        if (n + 1) % args.save_every == 0 and n + 1 < args.steps and machine.rank == 0:
            save_shards(args.out, state, optimizer.state(), {"step": n + 1})
    optimizer.use_average()
    facts = evaluate(step, args.eval, args.batch)
    facts.update(step=args.steps + before.get("step", 0), scaling_factor=1 / facts["latent_std"],
                 seconds=time.time() - machine.started + before.get("seconds", 0),
                 clips_seen=args.steps * args.batch * machine.world + before.get("clips_seen", 0))
    if args.refine:
        facts["scaling_factor"] = before["scaling_factor"]
    machine.log("vae done", {k: v for k, v in facts.items() if k != "channel_std"})
    machine.log("channel std", [round(v, 2) for v in facts["channel_std"]])
    if machine.rank == 0:
        kept = {n: p.detach() for n, p in vae.named_parameters() if not p.requires_grad}
        save_weights(args.out, "vae", kept | optimizer.averaged(), facts)
    machine.close()


if __name__ == "__main__":
    main()
