"""The whole recipe in one command, on all CUDA GPUs of the machine (or --gpus N):

    python -m assets.recipe.train --out runs/tiny --package assets/tiny

Compiles ahead, trains the autoencoder, then the transformer with its text encoder, then the preview decoder, and
generates samples. --refine goes on from the weights in --out: the decoder (its encoder frozen, so that the latents
keep their meaning) and the transformer at the same time, as two processes on each GPU. An interrupted run goes on
where its last state was saved; an autoencoder that is already in --out is kept. --from FOLDER takes a packaged model
for the weights to refine, when --out holds none; the decoder is then refined only if --vae-steps or --vae-seconds
says so, because it would take half of the GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from assets.recipe.unpack import unpack


def start(module: str, *words, gpu: int = 0, rank: int = 0, world: int = 1, port: int = 29511) -> subprocess.Popen:
    """One process of a module. It sees a single GPU, so that all of them share one compilation cache."""
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES=str(gpu), RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0",
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), PYTHONUNBUFFERED="1",
                       TORCHINDUCTOR_COMPILE_THREADS="4" if module == "warm" else "12")
    return subprocess.Popen([sys.executable, "-m", f"assets.recipe.{module}", *map(str, words)], env=environment)


def finish(processes: list[subprocess.Popen], what: str, needed: bool = True) -> None:
    """Wait for all; stop the rest and raise RuntimeError when one fails."""
    while any(p.poll() is None for p in processes):
        if needed and any(p.poll() not in (None, 0) for p in processes):
            for p in processes:
                p.kill()
        time.sleep(0.2)
    if needed and any(p.returncode for p in processes):
        raise RuntimeError(f"{what} failed (exit codes {[p.returncode for p in processes]}): see its output above.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--from", type=Path, dest="source", help="a packaged model to go on from, with --refine")
    parser.add_argument("--package", type=Path, help="also write the diffusers folder here")
    parser.add_argument("--gpus", type=int, default=max(1, torch.cuda.device_count()))
    parser.add_argument("--vae-batch", type=int, default=4)
    parser.add_argument("--dit-batch", type=int, default=128)
    parser.add_argument("--vae-seconds", type=float, help="instead of --vae-steps")
    parser.add_argument("--dit-seconds", type=float, help="instead of --dit-steps")
    parser.add_argument("--vae-steps", type=int, help="default 12000; none with --from")
    parser.add_argument("--dit-steps", type=int, default=10000)
    parser.add_argument("--pool", type=int, default=98304)
    parser.add_argument("--shift", type=float, help="of train_dit; default 1, with --refine 2")
    parser.add_argument("--text-steps", type=int, help="of train_text")
    parser.add_argument("--preview-steps", type=int, default=1200)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--refine", action="store_true")
    parser.add_argument("--no-warm", action="store_true")
    args = parser.parse_args()
    if args.source is not None and not args.refine:
        parser.error("--from goes with --refine")
    began = time.time()
    say = lambda *words: print(f"== {time.time() - began:6.1f}s", *words, flush=True)
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(args.out / "compiled")
    out = ("--out", args.out)
    budget = lambda seconds, steps: ("--seconds", seconds) if seconds else ("--steps", steps)

    def processes(module, *words, port=29511) -> list[subprocess.Popen]:
        return [start(module, *out, *words, gpu=r, rank=r, world=args.gpus, port=port) for r in range(args.gpus)]

    cuda = torch.cuda.is_available() and not args.no_warm

    def warm(*jobs) -> list[subprocess.Popen]:
        return [start("warm", what, "--batch", batch, "--part", k, "--parts", parts, gpu=i % args.gpus)
                for i, (what, batch, k, parts) in enumerate(jobs)] if cuda else []

    dit_jobs = [("dit", args.dit_batch, 0, 1), ("dit-long", args.dit_batch, 0, 1), ("pool", 64, 0, 1)]
    dit_words = (*budget(args.dit_seconds, args.dit_steps), "--batch", args.dit_batch, "--pool", args.pool,
                 "--shift", args.shift or (2.0 if args.refine else 1.0))
    vae_words = (*budget(args.vae_seconds, args.vae_steps or 12000), "--batch", args.vae_batch)

    def teach() -> None:
        finish([start("train_text", *out, *(("--steps", args.text_steps) if args.text_steps else ()))], "train_text")

    if args.refine:
        if args.source is not None and not (args.out / "vae.json").is_file():
            unpack(args.source, args.out)
            say("unpacked", args.source)
        decoder = args.source is None or args.vae_seconds or args.vae_steps
        jobs = dit_jobs + [("vae-refine", args.vae_batch, k, 6) for k in range(6) if decoder]
        ahead = warm(*jobs)
        teach()
        say("text encoder binds")
        finish(ahead, "compiling ahead", needed=False)
        say("compiled ahead")
        finish((processes("train_vae", "--refine", "--turning", 0.35, *vae_words, port=29513) if decoder else [])
               + processes("train_dit", "--refine", "--lr", 6e-4, *dit_words, port=29514), "refining")
    else:
        ahead = []
        if not (args.out / "vae.json").is_file():
            finish(warm(*[("vae", args.vae_batch, k, 8) for k in range(8)]), "compiling ahead", needed=False)
            say("autoencoder compiled ahead")
            ahead = warm(*dit_jobs)
            finish(processes("train_vae", *vae_words), "train_vae")
            say("autoencoder trained")
        teach()
        finish(ahead, "compiling ahead", needed=False)
        finish(processes("train_dit", *dit_words, port=29512), "train_dit")
    say("transformer trained")
    last = args.gpus - 1
    jobs = []
    if not (args.out / "preview.json").is_file():
        jobs.append(start("train_preview", *out, "--steps", args.preview_steps, gpu=0))
    if args.samples:
        jobs.append(start("sample", "--weights", args.out, "--out", args.out / "samples", "--count", args.samples,
                          gpu=last))
    finish(jobs, "preview and samples")
    say("preview decoder trained, samples drawn")
    if args.package:
        finish([start("package", "--weights", args.out, "--out", args.package)], "packaging")
    say("done")


if __name__ == "__main__":
    main()
