"""What was asked, read back from the frames: the ticks under a pane."""

from __future__ import annotations

from typing import Any

import numpy as np


def ticks(frames: np.ndarray, prompt: str) -> list[dict[str, Any]]:
    """uint8 (F, H, W, 3) and a prompt → [{"word": what was asked, "ok": whether it is there}], in the prompt's order.

    Empty for prompts and sizes that the reader was not made for: no ticks are better than guessed ones.
    """
    from engine.metrics import read_scene
    from engine.vocabulary import parse

    try:
        scene = parse(prompt)
        reading = read_scene(frames, prompt)
    except ValueError:
        return []
    out = []
    for index, thing in enumerate(scene.objects):
        for name in ("size", "colour", "shape", "motion"):
            out.append({"word": getattr(thing, name), "ok": bool(reading.ticks.get((index, name), False))})
    out.append({"word": scene.background, "ok": bool(reading.ticks.get(("scene", "background"), False))})
    return out
