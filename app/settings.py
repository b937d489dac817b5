"""Where the app runs and what it may do there: read once from the environment.

A public page (a Space, or LAB_PUBLIC=1) serves an allow-list of models and bounded runs; on a person's own machine
every local folder and hub id may be opened.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
EMBEDDED = ROOT / "assets" / "tiny"
RECORDINGS = ROOT / "assets" / "recordings"
EMBEDDED_NAME = "tiny"


class Settings(NamedTuple):
    """Limits of this deployment. Sizes in pixels, uploads in bytes, rows of a trace's layer table."""

    public: bool
    models: tuple[str, ...]          # what the model field offers; on a public page also all it accepts
    concurrency: int                 # runs at once; timing is honest only at 1 on a CPU
    queue: int                       # waiting runs before a newcomer is turned away with a sentence
    max_steps: int
    max_pixels: int
    max_frames: int
    upload_bytes: int
    upload_rows: int
    recordings: Path
    preload: bool                    # load the embedded model once a page is open


def read(environ: os._Environ | dict | None = None) -> Settings:
    """Settings from environment variables LAB_PUBLIC, LAB_MODELS, LAB_CONCURRENCY, LAB_QUEUE, LAB_MAX_STEPS,
    LAB_MAX_PIXELS, LAB_MAX_FRAMES, LAB_RECORDINGS, LAB_PRELOAD. Raises ValueError naming the variable that cannot be
    read.
    """
    env = os.environ if environ is None else environ
    public = env.get("LAB_PUBLIC", "1" if env.get("SPACE_ID") else "0") not in ("0", "", "false")
    extra = [name.strip() for name in env.get("LAB_MODELS", "").split(",") if name.strip()]
    return Settings(
        public=public,
        models=(EMBEDDED_NAME, *extra),
        concurrency=_number(env, "LAB_CONCURRENCY", 1, 1, 64),
        queue=_number(env, "LAB_QUEUE", 16, 1, 1000),
        max_steps=_number(env, "LAB_MAX_STEPS", 60 if public else 200, 1, 1000),
        max_pixels=_number(env, "LAB_MAX_PIXELS", 720 * 480 if public else 1920 * 1088, 1, 10**8),
        max_frames=_number(env, "LAB_MAX_FRAMES", 49 if public else 161, 1, 1000),
        upload_bytes=24 * 2**20,
        upload_rows=400_000,
        recordings=Path(env.get("LAB_RECORDINGS", RECORDINGS)),
        preload=env.get("LAB_PRELOAD", "1") not in ("0", "", "false"),
    )


def _number(env, name: str, default: int, low: int, high: int) -> int:
    raw = env.get(name, str(default))
    try:
        value = int(raw)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise ValueError(f"{name} must be a whole number from {low} to {high}; got {raw!r}. "
                         "Correct it or unset it to use the default.")
    return value
