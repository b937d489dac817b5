"""Read an object that another one covers for part of the clip, by fitting whole trajectories to what is visible.

Centre and area of a half-hidden mask say little. So every hypothesis (shape, size, motion) is drawn over the whole
clip, slid over all anchors at once (a correlation in Fourier space) and compared by intersection over union, counting
only pixels that the other object leaves free. Works at half the resolution of the picture.
"""
from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from engine import vocabulary as world
from engine.metrics import shapes

CELLS = world.SIZE // 2
CELL = 2.0  # px
TURN_PRICE = 0.2  # overlap that a stripe at a right angle to the hypothesis costs


@dataclass(frozen=True, order=True)
class Fit:
    """The best hypothesis and its overlap with the visible mask, 0 … 1."""

    size: str
    shape: str
    motion: str
    overlap: float


def fit(mask: np.ndarray, free: np.ndarray, stripe: np.ndarray, upright: float) -> Fit:
    """Fit mask bool (F, 128, 128) where free bool (F, 128, 128) says that no other object is seen there.

    stripe (F, 2) is the middle of the object's stripe, x and y in px from the picture's corner, or NaN;
    `upright` its direction on an unturned object.
    """
    frames = len(mask)
    seen = np.fft.rfft2(_halve(mask & free))
    open_to_view = np.fft.rfft2(_halve(free))
    covered = float(_halve(mask & free).sum())
    found = []
    for motion in world.MOTIONS:
        moved = np.stack([seen, open_to_view]) * _shifts(motion, frames)
        summed = moved.sum(1)
        for shape in world.SHAPES:
            for size in world.SIZES:
                spectra = _drawn(shape, size, motion, frames)
                both = spectra * summed if spectra.ndim == 2 else np.einsum("thw,cthw->chw", spectra, moved)
                shared, area = np.fft.irfft2(both, s=(CELLS, CELLS))
                overlap = shared / np.maximum(covered + area - shared, 1.0)
                row, column = divmod(int(overlap.argmax()), CELLS)
                found.append((Fit(size, shape, motion, float(overlap[row, column])), np.array([column, row]) * CELL))
    # Outlines of round and regular shapes hardly change when they turn: there the stripe has the last word.
    hopeful = max(each.overlap for each, _ in found) - 2 * TURN_PRICE
    return max(
        (each.overlap - TURN_PRICE * _turn_error(each.motion, anchor, stripe, upright), each.overlap, each)
        for each, anchor in found
        if each.overlap >= hopeful
    )[2]


def _turn_error(motion: str, anchor: np.ndarray, stripe: np.ndarray, upright: float) -> float:
    """Median 1 − cos of the angle between the stripe seen and the stripe expected; 0 where too few were seen."""
    path = world.frame_poses(motion, len(stripe))
    centres = anchor + np.array([(pose.dx, pose.dy) for pose in path])
    offset = stripe - centres
    seen = np.isfinite(offset).all(-1)
    if seen.mean() < 0.4:
        return 0.0
    angle = np.arctan2(offset[seen, 1], offset[seen, 0]) - upright - np.array([pose.angle for pose in path])[seen]
    return float(np.median(1 - np.cos(angle)))


def _halve(mask: np.ndarray) -> np.ndarray:
    return mask.reshape(len(mask), CELLS, 2, CELLS, 2).mean((2, 4), dtype=np.float32)


@functools.cache
def _shifts(motion: str, frames: int) -> np.ndarray:
    """complex64 (F, 64, 33): multiplies a spectrum so that the frame's displacement is undone."""
    rows, columns = np.fft.fftfreq(CELLS)[:, None], np.fft.rfftfreq(CELLS)[None]
    turns = [(pose.dx * columns + pose.dy * rows) / CELL for pose in world.frame_poses(motion, frames)]
    return np.exp(2j * math.pi * np.stack(turns)).astype(np.complex64)


@functools.cache
def _drawn(shape: str, size: str, motion: str, frames: int) -> np.ndarray:
    """Conjugate spectra of the shape around the origin: complex64 (64, 33) if its outline stays, else (F, 64, 33)."""
    path = world.frame_poses(motion, frames)
    radius = world.SIZES[size] / CELL
    poses = [(round(pose.scale * radius, 3), round(pose.angle, 4)) for pose in path]
    if len(set(poses)) == 1:
        return _spectrum(shape, *poses[0])
    return np.stack([_spectrum(shape, *pose) for pose in poses])


@functools.cache
def _spectrum(shape: str, radius: float, angle: float) -> np.ndarray:
    picture = shapes.draw(shape, CELLS, radius, angle)
    # Rolled so that the shape's centre is the corner of cell 0, a peak at cell (row, column) is a centre at that
    # cell's upper left corner: twice its index in pixels.
    return np.conj(np.fft.rfft2(np.roll(picture, (-CELLS // 2, -CELLS // 2), (0, 1)))).astype(np.complex64)
