"""Compiles ahead, into the shared cache of torch.compile, what the trainers will ask for.

    python -m assets.recipe.warm vae --batch 4 --part 0 --parts 7
    python -m assets.recipe.warm dit --batch 128           also: dit-long, vae-refine, pool
Several processes share the work; a trainer that starts afterwards finds it done.
"""

from __future__ import annotations

import argparse

import torch

from assets.recipe import models, world
from assets.recipe.fast_vae import FastVAE, norm_act
from assets.recipe.machine import Machine
from assets.recipe.optimizer import FlatOptimizer
from assets.recipe.train_dit import Trainer, encode_pool
from assets.recipe.train_vae import Step


def norm_calls(machine: Machine, batch: int, refine: bool) -> list[tuple]:
    """The different argument lists with which a training step calls norm_act."""
    vae = models.build_vae()
    vae.encoder.requires_grad_(not refine)
    vae.to(machine.device)
    FlatOptimizer([(n, p) for n, p in vae.named_parameters() if p.requires_grad], machine.dtype, lambda n, p: False)
    fast, calls = FastVAE(vae, machine.dtype), {}

    def remember(*args):
        key = tuple((tuple(a.shape), a.stride()) if torch.is_tensor(a) else a for a in args)
        calls.setdefault(key, args)
        return norm_act(*args)

    fast.norm_act = remember
    if refine:
        mean = torch.rand(batch, models.LATENT_FRAMES, models.LATENT_SIZE, models.LATENT_SIZE, models.LATENT_CHANNELS,
                          device=machine.device)
    else:
        mean, _ = fast.encode(torch.rand(batch, 17, 128, 128, 3, device=machine.device))
    fast.decode(mean)
    return [calls[k] for k in sorted(calls, key=str)]


def fresh(a: torch.Tensor) -> torch.Tensor:
    """A leaf of the same kind: the cache tells parameters from other tensors."""
    leaf = a.detach().requires_grad_(a.requires_grad)
    return torch.nn.Parameter(leaf) if isinstance(a, torch.nn.Parameter) else leaf


def warm_vae(machine: Machine, batch: int, part: int, parts: int, refine: bool) -> None:
    """The normalisations of every level; the last part takes the drawing and the loss as well."""
    compiled = torch.compile(norm_act, dynamic=False)
    for args in norm_calls(machine, batch, refine)[part::parts]:
        args = [fresh(a) if torch.is_tensor(a) else a for a in args]
        out = compiled(*args)
        out.backward(torch.randn_like(out))
    if part == parts - 1:
        step = Step(FastVAE(models.build_vae(), machine.dtype), machine)
        clips, cover = step.draw(world.sample(batch, torch.Generator().manual_seed(0)).to(machine.device))
        recon = torch.rand(*clips.shape[:-1], 8, device=machine.device, dtype=machine.dtype)[..., :3].requires_grad_()
        step.loss(recon, clips * 2 - 1, cover)[0].backward()


def warm_dit(machine: Machine, batch: int, long: bool) -> None:
    """A transformer block at one text length."""
    trainer = Trainer(machine, 0, compiled=True)
    generator = torch.Generator(machine.device).manual_seed(0)
    z = torch.randn(batch, models.LATENT_FRAMES, models.LATENT_CHANNELS, 16, 16, device=machine.device).to(machine.dtype)
    facts = torch.zeros(batch, 9, dtype=torch.long, device=machine.device)
    trainer.loss(*trainer.noised(z, trainer.empty.expand(batch, -1), facts, generator, long))


def warm_pool(machine: Machine, batch: int) -> None:
    """The encoder as the pool uses it."""
    vae = models.build_vae().to(machine.device, machine.dtype).eval().requires_grad_(False)
    encode_pool(vae, 1.0, machine, batch, batch, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["vae", "vae-refine", "dit", "dit-long", "pool"])
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    args = parser.parse_args()
    machine = Machine()
    if args.what.startswith("vae"):
        warm_vae(machine, args.batch, args.part, args.parts, args.what == "vae-refine")
    elif args.what == "pool":
        warm_pool(machine, args.batch)
    else:
        warm_dit(machine, args.batch, args.what == "dit-long")
    machine.log(f"warm: {args.what} {args.part}")


if __name__ == "__main__":
    main()
