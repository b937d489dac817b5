"""What an object does, from where it is, how big and how turned in each frame: the motion that misses least.

Every motion of the vocabulary is fitted, each with its own best anchor and amplitude, and the residuals are compared
in pixels: place directly, size and turn by how far they move the object's edge.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from engine import vocabulary as world

LIMIT = 5.0  # px of residual above which no motion is recognised
AMPLITUDE = (0.5, 1.5)  # how much less or more than drawn a motion may move and still have its name
EDGE = 0.5  # a turn of 1 rad counts as this many radii


@dataclass(frozen=True)
class Movement:
    """The motion that fits best (None above LIMIT), the nominal radius in px it implies, and its residual in px."""

    motion: str | None
    radius: float
    residual: float


def read_motion(centres: np.ndarray, radii: np.ndarray, angles: np.ndarray, weights: np.ndarray) -> Movement:
    """Fit all motions. centres (F, 2) and radii (F,) in px, angles (F,) in radians or NaN, weights (F,) ≥ 0."""
    if weights.sum() <= 0:
        return Movement(None, float("nan"), float("inf"))
    weights = weights / weights.sum()
    seen = np.where(np.isfinite(angles), weights, 0.0)
    fits = []
    for motion in world.MOTIONS:
        path = np.array([(p.dx, p.dy, p.scale, p.angle) for p in world.frame_poses(motion, len(centres))])
        shape = path[:, :2] - weights @ path[:, :2]
        moved = centres - weights @ centres
        energy = weights @ (shape**2).sum(-1)
        amplitude = np.clip((weights @ (shape * moved).sum(-1)) / energy, *AMPLITUDE) if energy > 1e-9 else 0.0
        place = weights @ ((moved - amplitude * shape) ** 2).sum(-1)
        radius = (weights @ (radii * path[:, 2])) / (weights @ path[:, 2] ** 2)
        size = weights @ (radii - radius * path[:, 2]) ** 2
        turn = 0.0
        if seen.sum() > 0.4:
            error = np.exp(1j * (np.nan_to_num(angles) - path[:, 3]))
            error = np.angle(error * np.exp(-1j * np.angle(seen @ error)))
            # The median, because a stripe that crosses a background of its own colour is lost in a few frames.
            turn = (EDGE * radius) ** 2 * float(np.median(error[seen > 0] ** 2))
        fits.append((math.sqrt(place + size + turn), motion, radius))
    residual, motion, radius = min(fits)
    return Movement(motion if residual < LIMIT else None, float(radius), residual)
