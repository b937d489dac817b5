"""Generates held-out prompts with the stock pipeline: contact sheets, clips, and how many are read back all right.

    python -m assets.recipe.sample --weights runs/tiny --out runs/tiny/samples
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from assets.recipe.package import build_pipeline
from engine import vocabulary as V
from engine.metrics import read_scene

SETS = {"plain_one": ("plain", 1), "plain_two": ("plain", 2), "scenic_one": ("scenic", 1), "scenic_two": ("scenic", 2)}
SHOWN = (0, 4, 8, 12, 16)


def held_out_prompts(name: str, count: int, seed: int = 2026) -> list[str]:
    """count prompts of one of SETS; the first half hold combinations that training never showed."""
    rng, prompts = random.Random(f"{seed} {name}"), []
    while len(prompts) < count:
        scene = V.random_scene(rng, *SETS[name])
        if V.is_held_out(scene) or len(prompts) >= count // 2:
            prompts.append(V.render(scene))
    return prompts


@torch.no_grad()
def generate(pipe, prompts: list[str], steps: int, guidance: float, seed: int, batch: int = 50,
             max_words: int = V.MAX_WORDS) -> np.ndarray:
    """(N, 17, 128, 128, 3) uint8 by stock calls of the pipeline."""
    clips = []
    for i in range(0, len(prompts), batch):
        part = prompts[i:i + batch]
        generator = torch.Generator("cpu").manual_seed(seed + i)
        frames = pipe(part, num_inference_steps=steps, guidance_scale=guidance, generator=generator,
                      max_sequence_length=max_words, output_type="np").frames
        clips.append((np.asarray(frames) * 255).round().astype(np.uint8))
    return np.concatenate(clips)


def contact_sheet(clips: np.ndarray, columns: int = 2) -> Image.Image:
    """Five frames of every clip, side by side, `columns` clips a row."""
    strips = [np.concatenate([clip[f] for f in SHOWN], 1) for clip in clips]
    gap = np.full((strips[0].shape[0], 6, 3), 255, np.uint8)
    rows = [np.concatenate([x for s in strips[i:i + columns] for x in (s, gap)], 1)
            for i in range(0, len(strips) - columns + 1, columns)]
    return Image.fromarray(np.concatenate(rows))


def save_clips(path: Path, clips: np.ndarray, prompts: list[str], quality: int = 93) -> None:
    """All frames as JPEG in one npz: small enough to carry away and read elsewhere."""
    import cv2
    blobs = [cv2.imencode(".jpg", f[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])[1].ravel()
             for clip in clips for f in clip]
    np.savez(path, data=np.concatenate(blobs), sizes=np.array([len(b) for b in blobs]), prompts=np.array(prompts))


def load_clips(path: Path) -> tuple[np.ndarray, list[str]]:
    """What save_clips wrote: (N, 17, 128, 128, 3) uint8 and the prompts."""
    import cv2
    found = np.load(path)
    ends = np.cumsum(found["sizes"])
    frames = [cv2.imdecode(found["data"][e - n:e], cv2.IMREAD_COLOR)[..., ::-1] for e, n in zip(ends, found["sizes"])]
    return np.stack(frames).reshape(len(found["prompts"]), V.FRAMES, V.SIZE, V.SIZE, 3), list(found["prompts"])


def is_right(clip: np.ndarray, prompt: str) -> bool:
    """Whether size, colour, shape and motion of every object and the background are read back from (17, 128, 128, 3)
    uint8 frames as the prompt says."""
    return read_scene(clip, prompt).all_right


def count_right(clips: np.ndarray, prompts: list[str], processes: int | None = None) -> int:
    """How many clips show all of their prompts, read in several processes."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes or min(16, os.cpu_count() or 1), mp_context=context) as pool:
        return sum(pool.map(is_right, clips, prompts, chunksize=4))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=100, help="prompts of each kind")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--guidance", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--words", type=int, default=V.MAX_WORDS, help="text tokens; a plain pipe(prompt) uses 226")
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--tag", default="")
    parser.add_argument("--readers", type=int, help="processes that read the clips back; default: one a core, up to 16")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    cuda = torch.cuda.is_available()
    pipe = build_pipeline(args.weights, torch.bfloat16 if cuda else torch.float32).to("cuda" if cuda else "cpu")
    pipe.set_progress_bar_config(disable=True)
    for name in args.sets:
        prompts = held_out_prompts(name, args.count)
        began = time.time()
        clips = generate(pipe, prompts, args.steps, args.guidance, args.seed, max_words=args.words)
        seconds = time.time() - began
        contact_sheet(clips[-24:]).save(args.out / f"{name}{args.tag}.png")
        save_clips(args.out / f"{name}{args.tag}.npz", clips, prompts)
        print(f"{name}: {len(clips)} clips in {seconds:.1f} s", flush=True)
        print(json.dumps({"set": name, "tag": args.tag, "clips": len(clips),
                          "right": count_right(clips, prompts, args.readers)}), flush=True)


if __name__ == "__main__":
    main()
