"""Read a clip of the embedded model back into words, and compare them with what the prompt asked for.

The reading never looks at the prompt: place, colours, shapes, sizes and motions come from the frames alone, by
`segment`, `shapes` and `motion`. The prompt only decides which object read is compared with which object asked for.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

from engine import vocabulary as world
from engine.metrics import covered, shapes
from engine.metrics import motion as motions
from engine.metrics import segment as segments

ATTRIBUTES = ("size", "colour", "shape", "motion")
HOLLOW = 0.6  # share of background in the middle that makes a disc a ring
RESEMBLANCE = 0.6  # least overlap with a template that counts as that shape
CLEAR = 0.86  # overlap with a template above which nothing can have hidden a part of the object
PRESENCE = 0.7  # share of frames an object must be seen in
UNTOUCHED = 0.9  # share of frames free of contact above which an object is read by itself
UPRIGHT = np.arctan2(-0.6, 0.8)  # direction from an unturned object's centre to its stripe


@dataclass(frozen=True)
class Seen:
    """One object as read from the frames; an attribute that could not be read is None."""

    size: str | None
    colour: str
    shape: str | None
    motion: str | None

    def __str__(self) -> str:
        return "a " + " ".join(getattr(self, name) or f"(unclear {name})" for name in ATTRIBUTES)


@dataclass(frozen=True)
class Reading:
    """What was read, and a tick for everything asked.

    ticks: {(object, attribute): bool} with object = 0, 1 in the prompt's order and attribute one of size, colour,
    shape, motion; and ("scene", "background"), ("scene", "objects") for the place and the number of objects.
    """

    ticks: Mapping[tuple[int | str, str], bool]
    background: str | None
    objects: tuple[Seen, ...] = field(default=())

    @property
    def all_right(self) -> bool:
        """True when every tick is set."""
        return all(self.ticks.values())

    @property
    def share(self) -> float:
        """Share of ticks that are set, from 0 to 1."""
        return sum(self.ticks.values()) / len(self.ticks)

    def __str__(self) -> str:
        things = " and ".join(map(str, self.objects)) or "nothing"
        return f"{things}, background {self.background or 'unclear'}"


def read_scene(frames: np.ndarray, prompt: str) -> Reading:
    """Read frames, uint8 (F, 128, 128, 3) with F ≥ 5, and tick what the prompt asked for.

    Raises ValueError for a prompt outside the vocabulary and for frames of another size.
    """
    wanted = world.parse(prompt)
    background, seen = describe(frames)
    best: dict = {}
    slots: Sequence[int | None] = [*range(len(seen)), *[None] * len(wanted.objects)]
    for order in permutations(slots, len(wanted.objects)):
        ticks = {
            (index, name): slot is not None and getattr(seen[slot], name) == getattr(thing, name)
            for index, (thing, slot) in enumerate(zip(wanted.objects, order))
            for name in ATTRIBUTES
        }
        if not best or _score(ticks) > _score(best):
            best = ticks
    best["scene", "background"] = background == wanted.background
    best["scene", "objects"] = len(seen) == len(wanted.objects)
    return Reading(best, background, seen)


def _score(ticks: Mapping) -> float:
    """Matching follows colour before anything else: it is what a person would call an object by."""
    return sum(tick * (3 if name == "colour" else 1) for (_, name), tick in ticks.items())


def describe(frames: np.ndarray) -> tuple[str | None, tuple[Seen, ...]]:
    """The place and the objects in frames uint8 (F, 128, 128, 3), without knowing the prompt."""
    frames = np.asarray(frames)
    if (
        frames.ndim != 4
        or frames.shape[1:] != (world.SIZE, world.SIZE, 3)
        or frames.dtype != np.uint8
        or len(frames) < 5
    ):
        raise ValueError(
            f"Reading a scene expects uint8 frames (at least 5, {world.SIZE}, {world.SIZE}, 3), "
            f"got {frames.dtype} {frames.shape}."
        )
    pixels = (frames.astype(np.float32) / 255) @ segments.OPPONENT
    place, picture = segments.read_place(pixels)
    blobs = segments.segment(pixels, picture, scenic=place in world.ROOMS)
    blobs = [blob for blob in blobs if blob.surface.any((1, 2)).mean() >= PRESENCE]
    seen = [_look(blob, [other for other in blobs if other is not blob]) for blob in blobs]
    return place, tuple(seen)


def _look(blob: segments.Blob, others: list[segments.Blob]) -> Seen:
    """Read an object by itself where it is whole to see, else by fitting whole trajectories to what is visible."""
    alone, likeness = _look_alone(blob) if blob.visible.mean() >= UNTOUCHED else (None, 0.0)
    if alone and likeness > CLEAR:
        return alone
    hidden = np.any([blob.doubt, *(other.surface for other in others)], axis=0)
    fit = covered.fit(blob.surface, ~hidden, blob.stripe + 0.5, UPRIGHT)
    if fit.overlap >= max(RESEMBLANCE, likeness):
        return Seen(fit.size, blob.colour, fit.shape, fit.motion)
    return alone or Seen(None, blob.colour, None, None)


def _look_alone(blob: segments.Blob) -> tuple[Seen, float]:
    """Shape, size and motion each by themselves, so that one wrong attribute spoils no other; and the likeness 0 … 1
    to the shape."""
    coverage = blob.mask.astype(np.float32)
    areas = coverage.sum((1, 2))
    rows, columns = np.mgrid[: coverage.shape[1], : coverage.shape[2]].astype(np.float32)
    mass = np.maximum(areas, 1)
    centres = np.stack([(coverage * columns).sum((1, 2)) / mass, (coverage * rows).sum((1, 2)) / mass], -1)
    clear = blob.visible

    votes = np.median(shapes.overlaps(coverage[clear], centres[clear], areas[clear]).max(-1), 0)
    shape, likeness = shapes.SOLID[int(votes.argmax())], float(votes.max())
    area = shapes.unit_area(shape)
    if shape == "circle" and blob.hollow > HOLLOW:
        shape, area = "ring", shapes.unit_area("circle") * world.BOXES["ring"][0] ** 2

    offset = blob.stripe - centres
    angles = np.arctan2(offset[:, 1], offset[:, 0]) - UPRIGHT
    movement = motions.read_motion(centres, np.sqrt(areas / area), angles, clear.astype(float))
    away = {name: abs(movement.radius - radius) for name, radius in world.SIZES.items()}
    seen = Seen(min(away, key=away.get), blob.colour, shape if likeness >= RESEMBLANCE else None, movement.motion)
    return seen, likeness


def prompt_accuracy(clips: Sequence[np.ndarray], prompts: Sequence[str]) -> float:
    """Share of clips, each uint8 (F, 128, 128, 3), in which everything its prompt asks for is right."""
    if len(clips) != len(prompts) or not len(clips):
        raise ValueError(f"Expected as many clips as prompts and at least one, got {len(clips)} and {len(prompts)}.")
    return float(np.mean([read_scene(frames, prompt).all_right for frames, prompt in zip(clips, prompts)]))
