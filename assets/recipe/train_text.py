"""Teaches the text encoder to bind, on captions alone, before the transformer sees it (or sees it again).

    python -m assets.recipe.train_text --out runs/tiny

The objective is binding.binding_loss at the words' own length and at the stock pipeline's 226 tokens. Training begins
with a new encoder: one that a diffusion loss has formed stays at 60 to 85 % (600 steps), a new one reads every fact
rightly after 300. If the folder holds an encoder and a transformer, the transformer's text projection is fitted anew by
least squares, so that the words keep most of the meaning they had for it. The heads are kept beside the encoder for
train_dit; they are not part of the model.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import torch

from assets.recipe import models, world
from assets.recipe.binding import CLASSES, Heads, accuracy, binding_loss, facts_of
from assets.recipe.captions import empty_ids, token_ids
from assets.recipe.checkpoint import load_shards, load_weights, save_weights
from assets.recipe.fast_text import FastText
from assets.recipe.machine import Captured, Machine
from assets.recipe.optimizer import FlatOptimizer, learning_rate
from engine import vocabulary as V

LONG_EVERY = 6                     # these steps pad to 226 tokens, with fewer captions
LONG_SHARE = 8
ENOUGH = 0.995                     # of the words that every head must read rightly, or the transformer cannot bind
HEADS = ("whose", "own size", "own colour", "own shape", "own motion", "other size", "other colour", "other shape",
         "other motion", "place")


def pad_to(ids: torch.Tensor, length: int) -> torch.Tensor:
    """(B, L) -> (B, length) with padding behind."""
    return torch.nn.functional.pad(ids, (0, length - ids.shape[1]))


def held_out_captions(count: int, seed: int = 2026) -> tuple[torch.Tensor, torch.Tensor]:
    """count captions that training never shows, ids (count, 24) and facts (count, 9): both dialects, mostly pairs."""
    rng, scenes = random.Random(seed), []
    while len(scenes) < count:
        scene = V.random_scene(rng, rng.choice(list(V.DIALECTS)), rng.choice((1, 2, 2)))
        if V.is_held_out(scene):
            scenes.append(scene)
    found = world.from_scenes(scenes, torch.Generator().manual_seed(seed))
    return token_ids(found), facts_of(found)


class TextTrainer:
    """An encoder, its heads and their optimizer. train(steps) may be called once; check() reads held-out captions."""

    def __init__(self, machine: Machine, encoder, batch: int, captions: int, seed: int = 0, graph: bool = True):
        torch.manual_seed(seed)
        self.machine, self.batch = machine, batch
        self.encoder, self.heads = encoder.to(machine.device), Heads(encoder.config.d_model).to(machine.device)
        self.text = FastText(self.encoder)
        named = [(f"text_encoder/{n}", p) for n, p in self.encoder.named_parameters()]
        named += [(f"heads/{n}", p) for n, p in self.heads.named_parameters()]
        self.optimizer = FlatOptimizer(named, machine.dtype, lambda n, p: False, ema=0.98)
        scenes = world.sample(captions, torch.Generator().manual_seed(seed + 7), two_plain=0.75, two_scenic=0.75)
        self.ids, self.facts = token_ids(scenes).to(machine.device), facts_of(scenes).to(machine.device)
        self.generator = torch.Generator(machine.device).manual_seed(seed)
        cuda = graph and machine.device.type == "cuda"
        self.calls = {long: Captured(self.loss, self.optimizer, cuda) for long in (False, True)}

    def loss(self, ids: torch.Tensor, facts: torch.Tensor) -> torch.Tensor:
        """Leaves gradients; returns the loss, detached."""
        loss = binding_loss(self.heads(self.text.encode(ids)), ids, facts)
        loss.backward()
        return loss.detach()

    def train(self, steps: int, peak: float, log_every: int = 100) -> None:
        began = time.time()
        for n in range(steps):
            long = n % LONG_EVERY == LONG_EVERY - 1
            count = max(1, self.batch // LONG_SHARE) if long else self.batch
            chosen = torch.randint(len(self.ids), (count,), generator=self.generator, device=self.ids.device)
            ids = pad_to(self.ids[chosen], models.STOCK_TEXT_LENGTH) if long else self.ids[chosen]
            loss = self.calls[long](ids, self.facts[chosen])
            self.optimizer.step(learning_rate(n, steps, peak, min(30, steps // 5)))
            if (n + 1) % log_every == 0:
                self.machine.log(f"text {n + 1} loss {loss.item():.4f} {(n + 1) / (time.time() - began):.2f} steps/s")
        self.optimizer.use_average()

    @torch.no_grad()
    def check(self, count: int = 512, length: int = V.MAX_WORDS) -> torch.Tensor:
        """(10,) accuracy of the heads on held-out captions, in the order of HEADS."""
        ids, facts = (a.to(self.machine.device) for a in held_out_captions(count))
        ids = pad_to(ids, length)
        return accuracy(self.heads(self.text.encode(ids)), ids, facts).float().cpu()


@torch.no_grad()
def refit_projection(weights: dict[str, torch.Tensor], old, new, captions: int = 2048) -> float:
    """Changes patch_embed.text_proj in the transformer's weights so that it makes of the new encoder's output what it
    made of the old one's: least squares over words and padding. Returns R². The encoders stay on the CPU, float32."""
    scenes = world.sample(captions, torch.Generator().manual_seed(11), two_plain=0.6, two_scenic=0.6)
    ids = torch.cat([token_ids(scenes), empty_ids().expand(captions // 16, -1)])
    name = "patch_embed.text_proj."
    wanted = FastText(old).encode(ids).flatten(0, 1) @ weights[name + "weight"].T + weights[name + "bias"]
    given = FastText(new).encode(ids).flatten(0, 1)
    given = torch.cat([given, torch.ones(len(given), 1)], 1).double()
    square = given.T @ given
    square += 1e-5 * square.diagonal().mean() * torch.eye(len(square), dtype=torch.float64)
    found = torch.linalg.solve(square, given.T @ wanted.double())
    weights[name + "weight"], weights[name + "bias"] = found[:-1].T.float().contiguous(), found[-1].float()
    rest = (given @ found - wanted).square().sum() / (wanted - wanted.mean(0)).square().sum()
    return 1 - rest.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, help="default: 600 on a CPU, 2000 on a GPU")
    parser.add_argument("--batch", type=int, help="captions a step; default: 64 on a CPU, 256 on a GPU")
    parser.add_argument("--captions", type=int, default=32768)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    machine = Machine()
    cuda = machine.device.type == "cuda"
    before, facts = load_weights(args.out, "text_encoder") if load_shards(args.out, "text_encoder") else (None, {})
    if "binding" in facts:
        machine.log("the text encoder already binds: kept")
        return
    torch.manual_seed(args.seed)
    encoder = models.build_text_encoder()
    models.point_heads(encoder)
    machine.log(f"text encoder: {sum(p.numel() for p in encoder.parameters()) / 1e6:.2f} M parameters")
    trainer = TextTrainer(machine, encoder, args.batch or (256 if cuda else 64), args.captions, args.seed)
    trainer.train(args.steps or (2000 if cuda else 600), args.lr)
    short, long = trainer.check(), trainer.check(64, models.STOCK_TEXT_LENGTH)
    for name, a, b in zip(HEADS, short.tolist(), long.tolist()):
        machine.log(f"held out: {name:13s} {100 * a:7.3f} % at {V.MAX_WORDS} tokens, {100 * b:7.3f} % at 226")
    worst = short.min().item()
    if worst < ENOUGH and not args.steps:
        raise SystemExit(f"Expected every head to read {ENOUGH:.1%} of held-out words rightly; the worst reads {worst:.1%}: "
                         "give more --steps. Nothing was written.")
    weights = {n.removeprefix("text_encoder/"): w for n, w in trainer.optimizer.averaged().items()
               if n.startswith("text_encoder/")}
    weights = {n: w.cpu() for n, w in weights.items()} | {"encoder.embed_tokens.weight": weights["shared.weight"].cpu()}
    if before is not None and load_shards(args.out, "transformer"):
        transformer, told = load_weights(args.out, "transformer")
        share = refit_projection(transformer, models.text_encoder_of(before), models.text_encoder_of(weights))
        machine.log(f"text projection fitted to the new encoder: R² {share:.4f}")
        save_weights(args.out, "transformer", transformer, told)
    save_weights(args.out, "heads", {n.removeprefix("heads/"): w.cpu() for n, w in trainer.optimizer.averaged().items()
                                     if n.startswith("heads/")}, {})
    save_weights(args.out, "text_encoder", weights,
                 {"step": 0, "clips_seen": 0, "seconds": 0} | facts | {"binding": worst})
    machine.log(f"text done: worst of {len(CLASSES)} heads {100 * worst:.3f} %")


if __name__ == "__main__":
    main()
