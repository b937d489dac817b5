"""The words, the grammar and the geometry of the embedded model's little world. No torch here.

One place defines what the model was taught: the drawing code of the training recipe, the reader that checks
a video against its prompt and the sentence builder of the app all import it, so they cannot disagree.

    plain    "a large red circle moves right and a small blue star spins on a navy background"
    scenic   "a large red circle moves right in a sunset room"

Geometry is in pixels of a 128x128 picture, x to the right, y downwards; time t runs from 0 (first frame) to
1 (last frame); angles are in radians, positive = clockwise on the screen.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass

from engine.notice import notice

FPS = 8
FRAMES = 17
SIZE = 128
MAX_WORDS = 24                      # tokens the text encoder sees, the end token included

SIZES = {"small": 20.0, "large": 30.0}          # nominal radius r in pixels
COLOURS = {                                     # sRGB in [0, 1], the fill of an object
    "red": (0.90, 0.15, 0.17), "green": (0.16, 0.70, 0.27), "blue": (0.15, 0.35, 0.93),
    "yellow": (0.98, 0.86, 0.16), "purple": (0.58, 0.22, 0.78), "orange": (0.98, 0.52, 0.10),
    "white": (0.96, 0.96, 0.96), "cyan": (0.14, 0.82, 0.90),
}
SHAPES = ("circle", "square", "triangle", "ring", "cross", "star")
BACKGROUNDS = {                                 # flat sRGB, the plain dialect
    "black": (0.04, 0.04, 0.05), "gray": (0.42, 0.42, 0.44),
    "navy": (0.07, 0.10, 0.29), "brown": (0.33, 0.21, 0.13),
}
ROOMS = ("sunset", "night", "mint", "snow")     # drawn in assets/recipe/world.py
MOTIONS = ("moves right", "moves left", "moves up", "moves down", "grows", "shrinks",
           "spins", "stays still", "bounces", "swings", "orbits")
LOOPING = ("spins", "stays still", "bounces", "swings", "orbits")   # the last frame equals the first
DIALECTS = {"plain": tuple(BACKGROUNDS), "scenic": ROOMS}

# Shape proportions as multiples of r. The bounding box around the centre of mass: left, top, right, bottom.
BOXES = {"circle": (1.0, 1.0, 1.0, 1.0), "square": (0.92, 0.92, 0.92, 0.92), "triangle": (1.04, 1.20, 1.04, 0.60),
         "ring": (1.05, 1.05, 1.05, 1.05), "cross": (1.0, 1.0, 1.0, 1.0), "star": (1.14, 1.20, 1.14, 0.97)}
# The smallest circle around the centre that holds the object, for any rotation of it:
REACH = {"circle": 1.0, "square": 1.30, "triangle": 1.20, "ring": 1.05, "cross": 1.07, "star": 1.20}
RING_INNER = 0.55                   # the hole's radius
CROSS_ARM = 0.37                    # half the width of an arm
STAR_INNER = 0.56                   # radius of the star's inner corners

TRAVEL = 56.0                       # pixels from the first to the last frame of "moves ..."
GROWTH = 1.45                       # "grows" ends, "shrinks" begins at this multiple of the named size
HOP = 13.0                          # height of the two hops of "bounces"
SWING_ANGLE, SWING_ARM = math.radians(25), 28.0     # pendulum: largest tilt, pixels from pivot to centre
ORBIT = 12.0                        # radius of the path of "orbits"; begins at its right, runs clockwise


@dataclass(frozen=True)
class Object:
    """One thing in the picture: a size, a colour, a shape and what it does."""
    size: str
    colour: str
    shape: str
    motion: str

    def __str__(self) -> str:
        return f"a {self.size} {self.colour} {self.shape} {self.motion}"


@dataclass(frozen=True)
class Scene:
    """What a prompt says: a dialect ("plain" or "scenic"), a background or room, one or two objects."""
    dialect: str
    background: str
    objects: tuple[Object, ...]


@dataclass(frozen=True)
class Pose:
    """Displacement of the centre in pixels, scale as a multiple of r, rotation in radians."""
    dx: float
    dy: float
    scale: float
    angle: float


def pose(motion: str, t: float) -> Pose:
    """Where an object is at time t in [0, 1] relative to its anchor. Raises ValueError for an unknown motion."""
    turn = 2 * math.pi * t
    if motion in ("moves right", "moves left"):
        return Pose((1 if motion == "moves right" else -1) * TRAVEL * (t - 0.5), 0.0, 1.0, 0.0)
    if motion in ("moves down", "moves up"):
        return Pose(0.0, (1 if motion == "moves down" else -1) * TRAVEL * (t - 0.5), 1.0, 0.0)
    if motion == "grows":
        return Pose(0.0, 0.0, 1 + (GROWTH - 1) * t, 0.0)
    if motion == "shrinks":
        return Pose(0.0, 0.0, GROWTH - (GROWTH - 1) * t, 0.0)
    if motion == "spins":
        return Pose(0.0, 0.0, 1.0, turn)
    if motion == "stays still":
        return Pose(0.0, 0.0, 1.0, 0.0)
    if motion == "bounces":
        return Pose(0.0, -HOP * abs(math.sin(turn)), 1.0, 0.0)
    if motion == "swings":
        tilt = SWING_ANGLE * math.sin(turn)
        return Pose(SWING_ARM * math.sin(tilt), SWING_ARM * (math.cos(tilt) - 1), 1.0, -tilt)
    if motion == "orbits":
        return Pose(ORBIT * math.cos(turn), ORBIT * math.sin(turn), 1.0, 0.0)
    raise ValueError(f"Expected a motion out of {', '.join(MOTIONS)}; got {motion!r}.")


def frame_poses(motion: str, frames: int = FRAMES) -> tuple[Pose, ...]:
    """The pose in every frame, first to last."""
    return tuple(pose(motion, f / (frames - 1)) for f in range(frames))


WORDS = ("<pad>", "</s>", "<unk>", *dict.fromkeys(
    ["a", "and", "on", "in", "background", "room", *SIZES, *COLOURS, *SHAPES, *BACKGROUNDS, *ROOMS,
     *(word for motion in MOTIONS for word in motion.split())]))

EXAMPLE = "a large red circle moves right on a black background"
KNOWN = (
    "This small model knows these words: sizes {sizes}; colours {colours}; shapes {shapes}; motions {motions}; "
    "on a {backgrounds} background; in a {rooms} room."
)
LISTS = {
    name: ", ".join(words)
    for name, words in (
        ("sizes", SIZES), ("colours", COLOURS), ("shapes", SHAPES), ("motions", MOTIONS), ("backgrounds", BACKGROUNDS),
        ("rooms", ROOMS),
    )  # fmt: skip
}


def words_of(prompt: str) -> list[str]:
    """Lower-case words without the punctuation that a person may add; what the tokenizer sees too."""
    return re.sub(r"[.,;:!?\"]", " ", prompt.lower()).split()


def parse(prompt: str) -> Scene:
    """Read a prompt. Raises ValueError with one sentence a person can act on."""
    words = words_of(prompt)
    if not words:
        raise ValueError(
            notice("prompt_empty", 'The prompt is empty. Try "{example}". ' + KNOWN, example=EXAMPLE, **LISTS)
        )
    for word in words:
        if word not in WORDS[3:]:
            shown = word if len(word) <= 40 else word[:40] + "…"
            raise ValueError(notice("unknown_word", KNOWN + ' It does not know "{word}".', word=shown, **LISTS))
    rest = " ".join(words)
    one = (rf"a ({'|'.join(SIZES)}) ({'|'.join(COLOURS)}) ({'|'.join(SHAPES)}) ({'|'.join(MOTIONS)})")
    place = rf"(?:on a (?P<plain>{'|'.join(BACKGROUNDS)}) background|in a (?P<scenic>{'|'.join(ROOMS)}) room)"
    found = re.fullmatch(rf"{one}(?: and {one})? {place}", rest)
    if found is None:
        raise ValueError(notice(
            "word_order", 'Expected one or two objects, each "a size colour shape motion", then a place, as in '
            '"{example}"; got the words in another order. ' + KNOWN, example=EXAMPLE, **LISTS))
    groups = found.groups()
    objects = [Object(*groups[0:4])] + ([Object(*groups[4:8])] if groups[4] else [])
    dialect = "plain" if found["plain"] else "scenic"
    return Scene(dialect, found[dialect], tuple(objects))


def render(scene: Scene) -> str:
    """The prompt of a scene; parse(render(scene)) == scene."""
    place = f"on a {scene.background} background" if scene.dialect == "plain" else f"in a {scene.background} room"
    return f"{' and '.join(map(str, scene.objects))} {place}"


def random_scene(rng: random.Random, dialect: str = "plain", objects: int = 1) -> Scene:
    """A random scene; two objects always differ in colour, so that a reader can tell them apart."""
    if dialect not in DIALECTS or objects not in (1, 2):
        raise ValueError(f"Expected a dialect out of {', '.join(DIALECTS)} and 1 or 2 objects; "
                         f"got {dialect!r} and {objects!r}.")
    colours = rng.sample(list(COLOURS), objects)
    things = tuple(Object(rng.choice(list(SIZES)), colour, rng.choice(SHAPES), rng.choice(MOTIONS))
                   for colour in colours)
    return Scene(dialect, rng.choice(DIALECTS[dialect]), things)


def is_held_out(scene: Scene) -> bool:
    """True for the about 1 in 32 object descriptions that never appear in training clips.

    Judged per object (with its place), so that a held-out prompt holds at least one combination never seen.
    """
    place = DIALECTS[scene.dialect].index(scene.background)
    return any(held_out_code(list(SIZES).index(o.size), list(COLOURS).index(o.colour), SHAPES.index(o.shape),
                             MOTIONS.index(o.motion), place) for o in scene.objects)


def held_out_code(size, colour, shape, motion, place):
    """The rule of is_held_out on indices; works on integers and, elementwise, on integer tensors."""
    return (size * 5 + colour * 7 + shape * 11 + motion * 3 + place * 13) % 32 == 9
