"""A run of this page, kept so that its race can be played again: what the panes showed at every step, and when.

The previews stay raw until somebody opens the run again; encoding them all takes a good part of a second.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from app import sprites
from app.recordings import TARGET_SECONDS

GREY = 96


class Reel(NamedTuple):
    """One pane: `times` are compute seconds at the end of each step, `clips` the previews of these steps, uint8
    (F, h, w, 3), or None where the model could draw none yet; `seconds` the whole compute time, `label` the key and
    values of the pane's name."""

    label: tuple[str, dict]
    times: tuple[float, ...]
    clips: tuple[np.ndarray | None, ...]
    seconds: float
    frames: np.ndarray
    ticks: tuple[dict, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the previews; the finished frames are held by the run anyway."""
        return sum(clip.nbytes for clip in self.clips if clip is not None)


def race(key: str, reels: dict[str, Reel], fps: float) -> dict[str, Any] | None:
    """What the page needs to play a run again, in the form of a recorded race; None where no step is known."""
    if not reels or any(not reel.times for reel in reels.values()):
        return None
    speed = max(1.0, round(max(reel.seconds for reel in reels.values()) / TARGET_SECONDS, 1))
    panes = {}
    for pane, reel in reels.items():
        data, shape = sprites.book(fitting(reel.clips))
        panes[pane] = {
            "times": list(reel.times),
            "seconds": round(reel.seconds, 3),
            "ticks": list(reel.ticks),
            "label": list(reel.label),
            "sheet": {**shape, "src": sprites.uri(data)},
            "final": sprites.sheet(reel.frames, 90),
        }
    return {"recorded": True, "run": key, "fps": fps, "panes": panes, "speed": speed}


def fitting(clips: tuple[np.ndarray | None, ...]) -> list[np.ndarray]:
    """The clips, plain grey where there is none, halved until one picture holds a row for each."""
    shape = next((clip.shape for clip in clips if clip is not None), (1, 16, 16, 3))
    clips = [np.full(shape, GREY, np.uint8) if clip is None else clip for clip in clips]
    while len(clips) * clips[0].shape[1] > sprites.WIDEST:
        clips = [clip[:, ::2, ::2] for clip in clips]
    return clips
