"""Pixels to objects: which known place is behind them, and one mask per object and frame.

The background is compared with the places that the world has, never guessed from the prompt. What differs from it and
is not its shadow is foreground; foreground is divided by the palette's hues, so that touching objects stay apart.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from engine import vocabulary as world

# Distances are taken in (brightness, red-blue, green-magenta): a colour cast of soft light changes the first most.
OPPONENT = np.array([(0.6, 0.6, 0.6), (0.9, 0.0, -0.9), (-0.5, 1.0, -0.5)], np.float32).T
BACKGROUND_LIMIT = 0.14  # distance up to which a place counts as recognised, in the share SEEN of the picture
SEEN = 0.35  # two large objects may cover all the rest
THIN = 2  # every second row and column is enough to know a place by
FOREGROUND = 0.11  # distance from the background at which a pixel belongs to an object
HUE_LIMIT = 0.30  # distance from fill or stripe at which a pixel is sure of its hue
FILL_LIMIT = 0.22  # distance from a fill at which a pixel speaks for that colour being there at all
CORE = 4  # px: narrower bands are edges that blur has mixed, no fill
FEWEST_PIXELS = 60  # of a fill's core per frame: a quarter of the smallest object's fill
SHADOW = (0.45, 1.03)  # how dark a shadow on a floor may be
FLOOR = 86  # y below which a room's floor, and so shadows, begin
HOLE = 0.57  # radius of a ring's hole in radii of a disc of the ring's outer size, with a margin for its inner rim
RIM = 14.0  # px around sure pixels that foreground still belongs to their object
SHADES = (0.84, 1.16)  # the darkest and brightest that soft light makes an object
LIGHTS = {"plain": (1.0,), "scenic": (0.88, 1.0, 1.1)}

PLACES = (*world.BACKGROUNDS, *world.ROOMS)
COLOURS = tuple(world.COLOURS)


@dataclass
class Blob:
    """One object over the clip, F frames of H×W."""

    colour: str
    surface: np.ndarray  # bool (F, H, W), its pixels as seen
    mask: np.ndarray  # bool (F, H, W), the largest piece with its holes filled
    visible: np.ndarray  # bool (F,), seen and touched by no other object
    hollow: float  # share of the middle of the object that shows the background
    doubt: np.ndarray  # bool (F, H, W), pixels that may be a shadow on the floor or an object as grey as one
    stripe: np.ndarray  # (F, 2) px, x and y of the middle of its stripe; NaN where none is seen


@functools.cache
def _places() -> np.ndarray:
    """float32 (8, 128, 128, 3) in opponent coordinates: what each place looks like when empty."""
    from assets.recipe.rooms import backdrops

    return backdrops().numpy().astype(np.float32) @ OPPONENT


@functools.cache
def _palette(dialect: str, kinds: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Opponent colours (N, 3) of fills, or fills and stripes, under each light, and their colour index (N,)."""
    fills = np.array(list(world.COLOURS.values()), np.float32)
    inks = np.concatenate([fills, stripes()]) if "stripe" in kinds else fills
    lit = np.concatenate([np.clip(inks * light, 0, 1) for light in LIGHTS[dialect]])
    return lit @ OPPONENT, np.tile(np.arange(len(COLOURS)), len(lit) // len(COLOURS))


def stripes() -> np.ndarray:
    """sRGB (8, 3) of the stripes as the world draws them: paler than the fill, slate on white."""
    fills = np.array(list(world.COLOURS.values()), np.float32)
    pale = fills + 0.62 * (1 - fills)
    white = COLOURS.index("white")
    pale[white] = fills[white] + 0.6 * (np.array([0.42, 0.47, 0.60], np.float32) - fills[white])
    return pale


def read_place(pixels: np.ndarray) -> tuple[str | None, np.ndarray]:
    """The known place behind opponent-coloured pixels (F, H, W, 3), or None; and the empty picture to subtract.

    The picture is shifted by the median difference, so that a slight cast of the whole frame hides no object.
    """
    middle = np.median(pixels[:, ::THIN, ::THIN], axis=0)
    apart = np.linalg.norm(_places()[:, ::THIN, ::THIN] - middle, axis=-1)
    index = int(np.minimum(apart, 0.4).mean((1, 2)).argmin())
    found = bool(np.quantile(apart[index], SEEN) < BACKGROUND_LIMIT)
    picture = _places()[index]
    if not found:
        # An unknown ground: take its most frequent colour as flat, so that objects on it can still be read.
        return None, np.broadcast_to(np.median(middle.reshape(-1, 3), 0), picture.shape).astype(np.float32)
    quiet = apart[index] < 2 * BACKGROUND_LIMIT
    return PLACES[index], picture + np.median((middle - picture[::THIN, ::THIN])[quiet], 0)


def segment(pixels: np.ndarray, picture: np.ndarray, scenic: bool) -> list[Blob]:
    """Objects in opponent-coloured pixels (F, H, W, 3) before an empty picture (H, W, 3), largest first."""
    import cv2

    frames, height, width = pixels.shape[:3]
    distance = np.linalg.norm(pixels - picture, axis=-1)
    doubt = np.zeros(distance.shape, bool)
    if scenic:
        shaded = _from_shadow(pixels[:, FLOOR:], picture[FLOOR:])
        doubt[:, FLOOR:] = (distance[:, FLOOR:] > FOREGROUND) & (shaded <= FOREGROUND)
        distance[:, FLOOR:] = np.minimum(distance[:, FLOOR:], shaded)
    foreground = distance > FOREGROUND
    dialect = "scenic" if scenic else "plain"
    chosen = pixels[foreground]
    fills = _label(chosen, foreground, *_palette(dialect, ("fill",)), FILL_LIMIT)
    core = np.ones((CORE, CORE), np.uint8)
    counts = [
        np.median([cv2.morphologyEx((frame == index).astype(np.uint8), cv2.MORPH_OPEN, core).sum() for frame in fills])
        for index in range(len(COLOURS))
    ]
    present = [index for index in np.argsort(counts)[::-1] if counts[index] >= FEWEST_PIXELS][:3]
    if not present:
        return []
    colours, owner = _palette(dialect, ("fill", "stripe"))
    kept = np.isin(owner, present)
    sure = _label(chosen, foreground, colours[kept], owner[kept], HUE_LIMIT)
    masks = np.zeros((len(present), frames, height, width), bool)
    open_kernel = np.ones((2, 2), np.uint8)
    for frame in range(frames):
        labels = [(sure[frame] == index).astype(np.uint8) for index in present]
        seeds = [cv2.morphologyEx(label, cv2.MORPH_OPEN, open_kernel) for label in labels]
        nowhere = np.full((height, width), 1e9)
        gaps = np.stack([cv2.distanceTransform(1 - s, cv2.DIST_L2, 3) if s.any() else nowhere for s in seeds])
        closest = gaps.argmin(0)
        for slot in range(len(present)):
            masks[slot, frame] = foreground[frame] & (closest == slot) & (gaps[slot] < RIM)
    # Two pieces of one colour are two objects only where nothing else can have cut one in half.
    groups = [(COLOURS[present[0]], part) for part in _parts(masks[0])] if len(present) == 1 else None
    groups = groups or [(COLOURS[index], masks[slot]) for slot, index in enumerate(present)]
    blobs = [_blob(colour, mask, doubt, distance, pixels) for colour, mask in groups]
    _mark_contacts(blobs)
    return blobs


def _label(chosen: np.ndarray, where: np.ndarray, colours: np.ndarray, owner: np.ndarray, limit: float) -> np.ndarray:
    """int8 like `where`: the owner of the colour nearest to each chosen pixel (N, 3), −1 beyond the limit."""
    squared = (chosen**2).sum(1)[:, None] - 2 * chosen @ colours.T + (colours**2).sum(1)
    nearest = squared.argmin(1)
    labels = np.full(where.shape, -1, np.int8)
    labels[where] = np.where(squared[np.arange(len(chosen)), nearest] < limit**2, owner[nearest], -1)
    return labels


def _from_shadow(pixels: np.ndarray, picture: np.ndarray) -> np.ndarray:
    """Distance of pixels to the nearest shade of the empty picture."""
    shade = (pixels * picture).sum(-1) / np.maximum((picture**2).sum(-1), 1e-6)
    return np.linalg.norm(pixels - np.clip(shade, *SHADOW)[..., None] * picture, axis=-1)


def _parts(mask: np.ndarray) -> list[np.ndarray]:
    """One-coloured masks (F, H, W), split where two large pieces last; else the largest piece of each frame."""
    import cv2

    pieces = []
    for frame in mask:
        closed = cv2.morphologyEx(frame.astype(np.uint8), cv2.MORPH_CLOSE, np.ones((3, 3), np.uint8))
        _, labels, stats, centres = cv2.connectedComponentsWithStats(closed, connectivity=4)
        areas = stats[:, cv2.CC_STAT_AREA]
        order = [label for label in areas[1:].argsort()[::-1] + 1 if areas[label] > FEWEST_PIXELS]
        pieces.append([(labels == label, centres[label], areas[label]) for label in order[:2]])
    paired = [found for found in pieces if len(found) == 2 and found[1][2] > 3 * FEWEST_PIXELS]
    if len(paired) < 0.6 * len(mask):
        return [np.stack([found[0][0] if found else np.zeros(mask.shape[1:], bool) for found in pieces])]
    tracks = np.zeros((2, *mask.shape), bool)
    last = [paired[0][0][1], paired[0][1][1]]
    for index, found in enumerate(pieces):
        if len(found) == 2:
            straight = np.linalg.norm(found[0][1] - last[0]) + np.linalg.norm(found[1][1] - last[1])
            crossed = np.linalg.norm(found[0][1] - last[1]) + np.linalg.norm(found[1][1] - last[0])
            found = found if straight <= crossed else found[::-1]
            for slot in range(2):
                tracks[slot, index], last[slot] = found[slot][0], found[slot][1]
    return list(tracks)


def _blob(colour: str, mask: np.ndarray, doubt: np.ndarray, distance: np.ndarray, pixels: np.ndarray) -> Blob:
    import cv2

    index = COLOURS.index(colour)
    fill = np.array(world.COLOURS[colour], np.float32) @ OPPONENT
    along = stripes()[index] @ OPPONENT - fill
    filled = np.zeros_like(mask)
    stripe = np.full((len(mask), 2), np.nan)
    hollow = []
    for frame, rough in enumerate(mask):
        outlines, _ = cv2.findContours(rough.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
        if not outlines:
            continue
        canvas = np.zeros(rough.shape, np.uint8)
        cv2.drawContours(canvas, [max(outlines, key=cv2.contourArea)], -1, 1, cv2.FILLED)
        filled[frame] = canvas > 0
        rows, columns = np.nonzero(canvas)
        x, y = columns.mean(), rows.mean()
        radius = np.hypot(columns - x, rows - y) / np.sqrt(len(rows) / np.pi)
        ground = distance[frame, rows, columns] < FOREGROUND
        inner = radius < 0.42
        hollow.append(ground[inner].mean() if inner.any() else 0.0)
        share, off_line = _paleness(pixels[frame, rows, columns], fill, along)
        # A stripe may look like the wall behind it, so a ring's hole is left out by its place, not by its colour.
        band = (share > 0.5) & (share < 1.4) & (off_line < 0.15) & (radius > HOLE if hollow[-1] > 0.6 else True)
        band &= cv2.erode(canvas, np.ones((5, 5), np.uint8))[rows, columns] > 0
        if band.sum() > 0.03 * len(rows):
            stripe[frame] = columns[band].mean(), rows[band].mean()
    return Blob(colour, mask, filled, filled.any((1, 2)), float(np.median(hollow)) if hollow else 0.0, doubt, stripe)


def _paleness(chosen: np.ndarray, fill: np.ndarray, along: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How far pixels (N, 3) lie from the fill (0) to the stripe (1) under some light, and their distance from there."""
    pair = np.stack([fill, along], -1)
    light = np.clip((chosen @ np.linalg.pinv(pair).T)[:, 0], *SHADES)[:, None]
    offset = chosen - light * fill
    share = offset @ along / (along @ along)
    return share, np.linalg.norm(offset - share[:, None] * along, axis=-1)


def _mark_contacts(blobs: list[Blob]) -> None:
    """Frames in which two objects touch show neither outline whole; they are not `visible`."""
    import cv2

    for first in range(len(blobs)):
        for second in range(first + 1, len(blobs)):
            a, b = blobs[first], blobs[second]
            for frame in np.flatnonzero(a.visible & b.visible):
                grown = cv2.dilate(a.mask[frame].astype(np.uint8), np.ones((5, 5), np.uint8)) > 0
                if (grown & b.mask[frame]).any():
                    a.visible[frame] = b.visible[frame] = False
