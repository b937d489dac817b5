"""Trains the transformer and the text encoder together, on a pool of clips encoded beforehand.

    python -m assets.recipe.train_dit --out runs/tiny        (or torchrun, as train_vae)

The text encoder and its heads begin where train_text left them, if --out holds them, and keep answering its questions
while they learn from the pictures (binding.py). A clip with two objects is followed by its twin, which differs in
nothing but which object has which colour; twins share a batch, their time and their noise, so that binding is all that
tells them apart.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from assets.recipe import models, world
from assets.recipe.binding import IGNORE, Heads, are_twins, binding_loss, facts_of, with_twins
from assets.recipe.captions import empty_ids, token_ids
from assets.recipe.checkpoint import load_shards, load_weights, save_shards, save_weights
from assets.recipe.fast_text import FastText
from assets.recipe.fast_vae import FastVAE
from assets.recipe.machine import Captured, Machine, SceneFeed
from assets.recipe.optimizer import FlatOptimizer, learning_rate
from engine import vocabulary as V

MUON = ("attn1.to_q.weight", "attn1.to_k.weight", "attn1.to_v.weight", "attn1.to_out.0.weight",
        "ff.net.0.proj.weight", "ff.net.2.weight")
EMPTY_PROMPTS = 0.1
LONG_EVERY = 8                     # every eighth step pads to the stock pipeline's 226 tokens
TWO_PLAIN, TWO_SCENIC = 0.45, 0.33 # share of clips with two objects, before twins make it about 0.57 and 0.44
BINDING = 0.02                     # weight of the binding loss, in nats, beside the diffusion loss of about 0.015
MAX_WEIGHT = 5.0                   # of the error in the clean latents, relative to 1 / noise variance


def load_vae(out: Path, machine: Machine):
    """The trained autoencoder in the compute dtype, frozen, and its facts."""
    vae = models.build_vae()
    weights, facts = load_weights(out, "vae")
    vae.load_state_dict(weights)
    vae.register_to_config(scaling_factor=facts["scaling_factor"])
    return vae.to(machine.device, machine.dtype).eval().requires_grad_(False), facts


@torch.no_grad()
def encode_pool(vae, scale: float, machine: Machine, count: int, batch: int, seed: int):
    """count clips per process as (count, 5, C, 16, 16) scaled latents, their token ids (count, 24) and facts (count,
    9). count and batch are even: rows 2k and 2k + 1 may be twins."""
    feed = SceneFeed(machine, seed, batch, chunk=max(1, 4096 // batch), two_plain=TWO_PLAIN, two_scenic=TWO_SCENIC)
    cuda = machine.device.type == "cuda"
    fast = FastVAE(vae, machine.dtype, stacked=True, compiled=cuda)
    painter = world.Painter(machine.device)
    paint = torch.compile(world.paint, dynamic=False) if cuda else world.paint
    size = (count, models.LATENT_FRAMES, models.LATENT_CHANNELS, models.LATENT_SIZE, models.LATENT_SIZE)
    pool, ids = torch.empty(size, dtype=machine.dtype, device=machine.device), []
    for i in range(0, count, batch):
        s = with_twins(feed.next())
        clips, _ = paint(s.place, s.two, s.size, s.colour, s.shape, s.motion, s.anchor, s.ground, painter.backdrops,
                         painter.colours, painter.stripes, painter.poses, painter.radii, painter.reach,
                         painter.bottom, painter.axis)
        mean, _ = fast.encode(clips * 2 - 1)
        pool[i:i + batch] = (mean * scale).permute(0, 1, 4, 2, 3).to(machine.dtype)[:count - i]
        ids.append(s)
    scenes = world.Scenes(*(torch.cat([getattr(s, n) for s in ids])[:count].cpu()
                            for n in world.Scenes.__dataclass_fields__))
    return pool, token_ids(scenes).to(machine.device), facts_of(scenes).to(machine.device)


def zero_init(transformer) -> None:
    """Every block begins as the identity and the prediction as zero, as in DiT."""
    for block in transformer.transformer_blocks:
        for norm in (block.norm1, block.norm2):
            torch.nn.init.zeros_(norm.linear.weight)
            torch.nn.init.zeros_(norm.linear.bias)
    torch.nn.init.zeros_(transformer.proj_out.weight)
    torch.nn.init.zeros_(transformer.proj_out.bias)


class Trainer:
    """Holds the two models, the heads of the binding loss, their optimizer and the noise schedule.

    weights: the folder of a run; its text encoder is taken if there is one, its transformer if refine is set.
    """

    def __init__(self, machine: Machine, seed: int, compiled: bool, weights: Path | None = None, refine: bool = False,
                 shift: float = 1.0):
        torch.manual_seed(seed)
        self.machine, self.before, self.shift = machine, {}, shift
        self.transformer = models.build_transformer()
        zero_init(self.transformer)
        if refine:
            found, self.before = load_weights(weights, "transformer")
            self.transformer.load_state_dict(found)
        ready = weights is not None and load_shards(weights, "text_encoder") is not None
        encoder, kept = models.grown_text_encoder(load_weights(weights, "text_encoder")[0] if ready else None)
        if refine and not kept:
            raise ValueError(f"Expected a text encoder of width {models.TEXT_WIDTH} in {weights}; found another or "
                             "none: run assets.recipe.train_text on that folder first.")
        self.parts = {"transformer": self.transformer, "text_encoder": encoder}
        self.text, self.heads = FastText(encoder), Heads(encoder.config.d_model).to(machine.device)
        if ready and load_shards(weights, "heads") is not None:
            self.heads.load_state_dict(load_weights(weights, "heads")[0])
        for module in self.parts.values():
            module.to(machine.device)
        named = [(f"{part}/{n}", p) for part, module in [*self.parts.items(), ("heads", self.heads)]
                 for n, p in module.named_parameters()]
        self.optimizer = FlatOptimizer(named, machine.dtype, lambda n, p: n.endswith(MUON), ema=0.999)
        alphas = models.build_scheduler().alphas_cumprod.float().to(machine.device)
        self.signal, self.noise = alphas.sqrt(), (1 - alphas).sqrt()
        self.rope = models.rotary(machine.device)
        self.empty = empty_ids().to(machine.device)
        if compiled:
            for block in self.transformer.transformer_blocks:
                block.compile(fullgraph=True, dynamic=False)

    def noised(self, z, ids, facts, generator, long: bool) -> tuple[torch.Tensor, ...]:
        """z (B, 5, C, 16, 16) scaled latents, ids (B, 24), facts (B, 9), B even -> the inputs of `loss`, with all the
        randomness in them: twins share time and noise."""
        count, device = len(z), z.device
        draw = lambda *shape: torch.rand(shape, generator=generator, device=device)
        u = (torch.arange(count, device=device) + draw(count)) / count
        t = (1000 * self.shift * u / (1 + (self.shift - 1) * u)).long().clamp(max=999)
        e = torch.randn(z.shape, generator=generator, device=device, dtype=z.dtype)
        twins = are_twins(facts)
        t[1::2] = torch.where(twins, t[0::2], t[1::2])
        e[1::2] = torch.where(twins.view(-1, 1, 1, 1, 1), e[0::2], e[1::2])
        empty = (draw(count) < EMPTY_PROMPTS)[:, None]
        ids, facts = torch.where(empty, self.empty, ids), torch.where(empty, IGNORE, facts)
        if long:
            ids = torch.nn.functional.pad(ids, (0, models.STOCK_TEXT_LENGTH - ids.shape[1]))
        return z, e, t, ids, facts

    def loss(self, z, e, t, ids, facts) -> torch.Tensor:
        """v-prediction error, weighted min(1, 5 noise variance), plus the binding loss; leaves gradients; returns the
        two, detached, as (2,)."""
        view = lambda a: a[t].view(-1, 1, 1, 1, 1)
        a, s, z, e = view(self.signal), view(self.noise), z.float(), e.float()
        words = self.text.encode(ids)
        v = self.transformer((a * z + s * e).to(self.machine.dtype), words, t, image_rotary_emb=self.rope,
                             return_dict=False)[0]
        error = (v.float() - (a * e - s * z)).square().mean((1, 2, 3, 4))
        loss = ((MAX_WEIGHT * s.square()).clamp(max=1).flatten() * error).mean()
        read = slice(0, V.MAX_WORDS)                                     # behind them there is only padding
        bound = binding_loss(self.heads(words[:, read]), ids[:, read], facts)
        (loss + BINDING * bound).backward()
        return torch.stack([loss, bound]).detach()

    def averaged(self, part: str) -> dict[str, torch.Tensor]:
        weights = {n.removeprefix(part + "/"): w for n, w in self.optimizer.averaged().items()
                   if n.startswith(part + "/")}
        if part == "text_encoder":                                       # the checkpoint's second name of the table
            weights["encoder.embed_tokens.weight"] = weights["shared.weight"].clone()
        return weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=9000)
    parser.add_argument("--seconds", type=float, help="choose the steps from the speed measured at step 150 instead")
    parser.add_argument("--batch", type=int, default=128, help="clips per process and step, an even number")
    parser.add_argument("--pool", type=int, default=98304, help="encoded clips per process, an even number")
    parser.add_argument("--lr", type=float, default=1.2e-3)
    parser.add_argument("--save-every", type=int, default=1000, help="averaged weights")
    parser.add_argument("--state-every", type=int, default=3000, help="the full training state, for resuming")
    parser.add_argument("--no-graph", action="store_true")
    parser.add_argument("--shift", type=float, default=1.0, help="above 1: more of the noisy steps, which decide what "
                        "goes where")
    parser.add_argument("--refine", action="store_true", help="go on from trained weights, on a new pool of clips")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.batch % 2 or args.pool % 2 or min(args.batch, args.pool) < 2:
        parser.error(f"expected even numbers of clips; got --batch {args.batch} and --pool {args.pool}")

    machine = Machine()
    vae, facts = load_vae(args.out, machine)
    seed = args.seed + 1 + 20 * args.refine
    pool, ids, facts = encode_pool(vae, facts["scaling_factor"], machine, args.pool, min(64, args.pool), seed)
    del vae
    machine.wait()
    machine.log(f"pool: {tuple(pool.shape)} x {machine.world}, std {pool[:512].float().std().item():.3f}, "
                f"twins {100 * are_twins(facts).float().mean().item():.1f} % of the pairs")

    cuda = machine.device.type == "cuda"
    trainer = Trainer(machine, args.seed, cuda, args.out, args.refine, args.shift)
    optimizer, start, state = trainer.optimizer, 0, "dit_refine_state" if args.refine else "dit_state"
    captured = {long: Captured(trainer.loss, optimizer, cuda and not args.no_graph) for long in (False, True)}
    found = load_shards(args.out, state)
    if found:
        optimizer.load_state(found[0])
        start, trainer.before = found[1]["step"], found[1].get("before", {})
        machine.log(f"resumed at step {start}")
    generator = torch.Generator(machine.device).manual_seed(seed * 1000 + machine.rank + 10 * start)
    machine.log(f"transformer and text encoder: {len(optimizer.master) / 1e6:.2f} M parameters, "
                f"{machine.world} x {args.batch} clips a step, steps {start} to {args.steps}")

    def save(step: int) -> None:
        if machine.rank == 0:
            told = {"step": step, "clips_seen": step * args.batch * machine.world,
                    "seconds": time.time() - machine.started}
            told = {k: v + trainer.before.get(k, 0) for k, v in told.items()}
            for part in trainer.parts:
                save_weights(args.out, part, trainer.averaged(part), told | {"binding": True})

    began, mark, total = time.time(), start, torch.zeros(2, device=machine.device)
    n = start - 1
    while (n := n + 1) < args.steps:
        if args.seconds and n == start + 150:
            machine.wait()
            deadline = time.time() + args.seconds
            args.steps = machine.agree(n + args.seconds * (n - mark) / (time.time() - began))
            machine.log(f"{args.steps} steps in all")
        pairs = torch.randint(len(pool) // 2, (args.batch // 2,), generator=generator, device=machine.device)
        chosen = torch.stack([2 * pairs, 2 * pairs + 1], 1).flatten()
        long = n % LONG_EVERY == LONG_EVERY - 1
        loss = captured[long](*trainer.noised(pool[chosen], ids[chosen], facts[chosen], generator, long))
        norm = optimizer.step(learning_rate(n, args.steps, args.lr, 300))
        total += loss
        done = n + 1
        if done % 250 == 0 or done in (1, 10, 50, args.steps):
            (mean, bound), seconds = (total / (done - mark)).tolist(), time.time() - began
            machine.log(f"dit {done} loss {mean:.4f} binding {bound:.4f} norm {norm.item():.2f} "
                        f"{(done - mark) / seconds:.2f} steps/s")
            if args.seconds and done % 500 == 0:                         # the speed changes when the decoder is done
                args.steps = machine.agree(done + max(1.0, deadline - time.time()) * (done - mark) / seconds)
            began, mark = time.time(), done
            total.zero_()
        if done % args.save_every == 0 or done == args.steps:
            save(done)
        if done % args.state_every == 0 and done < args.steps and machine.rank == 0:
            save_shards(args.out, state, optimizer.state(), {"step": done, "before": trainer.before})
    machine.log("dit done")
    machine.close()


if __name__ == "__main__":
    main()
