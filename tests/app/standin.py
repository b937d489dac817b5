"""A stand-in recording for tests: synthetic signals, replayed decisions, and drawn clips. Never committed as data."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from app.recording_maker import write
from engine.replay import replay
from engine.settings import Policy
from engine.trace import Trace
from tests.synthetic import probe_trace

PROMPT = "a large red star bounces in a sunset room"


def clip(step: int, steps: int, size: int = 64, frames: int = 17, seed: int = 0) -> np.ndarray:
    """uint8 (frames, size, size, 3): a red disc that hops over a floor, sharper at every step."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size] / size
    t = np.arange(frames)[:, None, None] / (frames - 1)
    sky = np.stack([0.25 + 0.7 * y, 0.2 + 0.5 * y, 0.4 - 0.05 * y], -1)
    picture = np.where((y > 0.66)[..., None], np.array([0.5, 0.35, 0.27]), sky)[None].repeat(frames, 0)
    high = 0.45 - 0.12 * np.abs(np.sin(2 * np.pi * t))
    blur = 0.02 + 0.12 * (1 - step / steps)
    inside = 1 / (1 + np.exp((np.hypot(x - 0.5, y - high) - 0.2) / blur * 4))
    picture = picture * (1 - inside[..., None]) + np.array([0.9, 0.2, 0.2]) * inside[..., None]
    noise = rng.normal(0, 0.25 * (1 - step / steps), picture.shape)
    return (np.clip(picture + noise, 0, 1) * 255).astype(np.uint8)


def run_trace(probe: Trace, policy: Policy) -> Trace:
    """A trace as a real run of `policy` would leave it: replayed decisions, invented times, measured nothing else."""
    made = replay(probe, policy)
    rng = np.random.default_rng(1)
    blocks = made.blocks.copy()
    blocks["milliseconds"] = np.where(blocks["skipped"], 0.7, rng.normal(19, 0.5, len(blocks)))
    layers = made.layers.copy()
    layers["sample"] = None
    meta = dict(replay=None, probe=False, memory={"originals": 9.8e6, "packed": 3.4e6, "peak": 61e6})
    return Trace(blocks, layers, made.meta).with_meta(**meta)


def lap(trace: Trace, step_seconds: float, steps: int, seed: int, size: int = 64) -> SimpleNamespace:
    """What `app.recording_maker.Lap` holds after a run."""
    times = np.cumsum(np.full(steps, step_seconds)).round(4).tolist()
    seconds = {"text": 0.1, "denoise": times[-1], "decode": 1.4}
    return SimpleNamespace(
        times=times, clips=[clip(s + 1, steps, size, seed=seed) for s in range(steps)], seconds=sum(seconds.values()), stages=seconds,
        started=SimpleNamespace(steps=steps, guidance=5.0, fps=8, frames=17),
        finished=SimpleNamespace(frames=clip(steps, steps, 2 * size, seed=seed), trace=trace, seconds=seconds),
    )


def record(folder: Path, slug: str = "red-star", *, blocks: int = 12, steps: int = 30, seed: int = 7,
           preset: str = "sixbit", order: int = 1) -> Path:
    """Write one stand-in recording below `folder`; returns its path."""
    probe = probe_trace(blocks=blocks, steps=steps, seed=seed)
    policy = Policy.preset(preset)
    run = run_trace(probe, policy)
    words = [("large", True), ("red", True), ("star", True), ("bounces", True), ("sunset", True)]
    ticks = {pane: [{"word": word, "ok": ok} for word, ok in words] for pane in "ab"}
    write(Path(folder) / slug, prompt=PROMPT, seed=seed, policy=policy, reference=lap(probe, 0.36, steps, 0),
          run=lap(run, 0.22, steps, 1), probe=probe, psnr=31.2, ticks=ticks, order=order,
          title=f"{PROMPT} ({blocks} × {steps})")
    return Path(folder) / slug
