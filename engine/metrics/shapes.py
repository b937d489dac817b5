"""Which shape is a mask, and how is it turned? By overlap with area-normalised templates at every angle.

Normalising by area and centre of mass makes the comparison blind to size and place, so that shape, size and motion
are read independently of each other.
"""
from __future__ import annotations

import functools
import math

import numpy as np

from engine import vocabulary as world

GRID = 32  # template cells a side
SPAN = 3.2  # template width in units of √area: the farthest point of any shape is 1.26 √area from its centre
ANGLES = 30  # templates a turn
FINE = 4  # sub-samples a cell and side when a template is drawn
SOLID = tuple(shape for shape in world.SHAPES if shape != "ring")  # a ring with its hole filled is a circle


def outline(shape: str) -> list[np.ndarray]:
    """Closed polygons (N, 2) of a shape of radius 1 around its centre of mass, y downwards; a second one is a hole."""
    turn = np.linspace(0, 2 * math.pi, 96, endpoint=False)
    circle = np.stack([np.cos(turn), np.sin(turn)], -1)
    if shape == "circle":
        return [circle]
    if shape == "ring":
        return [circle * world.BOXES["ring"][0], circle * world.RING_INNER]
    if shape == "square":
        half = world.BOXES["square"][0]
        return [half * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)], float)]
    if shape == "triangle":
        corners = np.radians([-90, 30, 150])
        return [world.REACH["triangle"] * np.stack([np.cos(corners), np.sin(corners)], -1)]
    if shape == "cross":
        arm = world.CROSS_ARM
        quarter = [(-arm, -1.0), (arm, -1.0), (arm, -arm)]
        turns = [
            np.array([(math.cos(a), -math.sin(a)), (math.sin(a), math.cos(a))]) for a in np.radians([0, 90, 180, 270])
        ]
        return [np.concatenate([np.array(quarter) @ turned.T for turned in turns])]
    if shape == "star":
        corners = np.radians(np.arange(10) * 36 - 90)
        reach = np.where(np.arange(10) % 2 == 0, world.REACH["star"], world.STAR_INNER)
        return [reach[:, None] * np.stack([np.cos(corners), np.sin(corners)], -1)]
    raise ValueError(f"Expected a shape out of {', '.join(world.SHAPES)}; got {shape!r}.")


@functools.cache
def unit_area(shape: str) -> float:
    """Area of the shape of radius 1, in squared radii."""
    areas = []
    for polygon in outline(shape):
        x, y = polygon.T
        areas.append(abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2)
    return float(areas[0] - sum(areas[1:]))


def draw(shape: str, cells: int, radius: float, angle: float = 0.0) -> np.ndarray:
    """Coverage of a shape in the middle: float32 (cells, cells) in [0, 1]. radius: cells, angle: clockwise radians."""
    import cv2

    turn = np.array([(math.cos(angle), -math.sin(angle)), (math.sin(angle), math.cos(angle))])
    # fillPoly puts a whole number at the centre of a pixel, hence the half pixel.
    placed = [(p @ turn.T * radius + cells / 2) * FINE - 0.5 for p in outline(shape)]
    canvas = np.zeros((cells * FINE,) * 2, np.uint8)
    # Polygons drawn together are filled by the even-odd rule, which leaves the ring its hole.
    cv2.fillPoly(canvas, [np.rint(p * 16).astype(np.int32) for p in placed], 255, shift=4)
    return cv2.resize(canvas, (cells, cells), interpolation=cv2.INTER_AREA).astype(np.float32) / 255


@functools.cache
def _templates() -> tuple[np.ndarray, np.ndarray]:
    """Coverage float32 (shapes · ANGLES, GRID²), and its sum per template."""
    turns = [2 * math.pi * step / ANGLES for step in range(ANGLES)]
    radii = {shape: GRID / SPAN / math.sqrt(unit_area(shape)) for shape in SOLID}
    templates = np.stack([draw(shape, GRID, radii[shape], angle).ravel() for shape in SOLID for angle in turns])
    return templates, templates.sum(1)


def overlaps(coverage: np.ndarray, centres: np.ndarray, areas: np.ndarray) -> np.ndarray:
    """Intersection over union of each frame's mask with every template.

    coverage float32 (F, H, W) in [0, 1]; centres (F, 2) as (x, y) and areas (F,) in pixels. Returns float32
    (F, shapes in the order of SOLID, ANGLES).
    """
    import cv2

    templates, sums = _templates()
    patches = np.empty((len(coverage), GRID * GRID), np.float32)
    for index, (mask, (x, y), area) in enumerate(zip(coverage, centres, areas)):
        step = SPAN * math.sqrt(max(area, 1.0)) / GRID
        offset = step * (GRID - 1) / 2
        matrix = np.array([(step, 0, x - offset), (0, step, y - offset)], np.float32)
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        patches[index] = cv2.warpAffine(mask, matrix, (GRID, GRID), flags=flags, borderValue=0.0).ravel()
    # So small a product that waking the BLAS threads would cost more than it.
    shared = np.einsum("fp,tp->ft", patches, templates)
    union = patches.sum(1, keepdims=True) + sums - shared
    return (shared / np.maximum(union, 1e-6)).reshape(len(coverage), len(SOLID), ANGLES)

