"""Draws the world of engine.vocabulary: a batch of scenes as video clips, on any device, in one vectorised pass.

`sample` makes random scenes as index tensors, `from_scenes` turns parsed prompts into the same form, `draw`
renders them. Every random choice comes from one CPU generator, so a seed gives the same clips on any machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch

from assets.recipe.rooms import backdrops
from engine import vocabulary as V

_SIZES, _COLOURS = list(V.SIZES), list(V.COLOURS)
_POSES = torch.tensor([[(p.dx, p.dy, p.scale, p.angle) for p in V.frame_poses(m)] for m in V.MOTIONS])
_RADII = torch.tensor(list(V.SIZES.values()))
_REACH = torch.tensor([V.REACH[s] for s in V.SHAPES])
_BOTTOM = torch.tensor([V.BOXES[s][3] for s in V.SHAPES])
_TURNS = torch.tensor([bool((_POSES[i, :, 3] != 0).any()) for i in range(len(V.MOTIONS))])
_GROUND = 113.0              # lowest line on which objects of the scenic dialect stand, in pixels
_MARGIN = 2.0                # pixels between an object and the edge of the picture
_APART = 16.0                # pixels by which the second object is to the right of the first, where there is room


@dataclass
class Scenes:
    """B scenes. place: 0..3 backgrounds, 4..7 rooms; two: whether the second object exists; the rest (B, 2)."""
    place: torch.Tensor       # (B,) int64
    two: torch.Tensor         # (B,) bool
    size: torch.Tensor        # (B, 2) int64 indices into the vocabulary, as are colour, shape and motion
    colour: torch.Tensor
    shape: torch.Tensor
    motion: torch.Tensor
    anchor: torch.Tensor      # (B, 2, 2) float32 pixels x, y
    ground: torch.Tensor      # (B, 2) float32: y of the floor below each object (scenic only)

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, index) -> "Scenes":
        return Scenes(*(getattr(self, f.name)[index] for f in fields(self)))

    def to(self, device) -> "Scenes":
        return Scenes(*(getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)))


def _room_to_move(size, shape, motion, ground):
    """Where an anchor may be: low, high (…, 2) pixels so that the whole motion stays inside the picture; and the
    anchor's y (…) at which the object touches the ground once. Arguments broadcast; ground in pixels."""
    pose = _POSES[motion]                                                # (…, F, 4)
    radius = _RADII[size][..., None] * pose[..., 2]
    reach = radius * _REACH[shape][..., None]
    below = torch.where(_TURNS[motion][..., None], reach, radius * _BOTTOM[shape][..., None])
    low = torch.stack([(reach - pose[..., 0]).amax(-1), (reach - pose[..., 1]).amax(-1)], -1) + _MARGIN
    high = V.SIZE - _MARGIN - torch.stack([(reach + pose[..., 0]).amax(-1), (reach + pose[..., 1]).amax(-1)], -1)
    middle = (low + high) / 2
    floor_y = ground - (pose[..., 1] + below).amax(-1)
    return torch.minimum(low, middle), torch.maximum(high, middle), floor_y, reach


def _pair_table(scenic: bool) -> torch.Tensor:
    """(2, 11, 2, 11, 2, 2): for two objects of given size and motion, where each anchor lies between its low (0) and
    high (1) limits. The first object is to the left of the second, as far as their paths leave room: what the order of
    the words means must be one rule, or a small model has to learn every pair by heart. Of those layouts the best
    separated one near the middle wins; in rooms objects stand on the floor unless they would collide."""
    sizes, motions = len(_SIZES), len(V.MOTIONS)
    size, motion = torch.meshgrid(torch.arange(sizes), torch.arange(motions), indexing="ij")
    low, high, floor_y, reach = _room_to_move(size, torch.full_like(size, V.SHAPES.index("square")), motion, _GROUND)
    if scenic:
        high[..., 1] = torch.maximum(low[..., 1], floor_y)
    steps = torch.linspace(0, 1, 5)
    unit = torch.stack(torch.meshgrid(steps, steps, indexing="ij"), -1).view(-1, 2)       # (25, 2)
    anchor = (low[..., None, :] + unit * (high - low)[..., None, :]).view(-1, 25, 2)      # (22, 25, 2)
    reach = reach.view(-1, 1, V.FRAMES)
    path = anchor[:, :, None] + _POSES[motion].view(-1, 1, V.FRAMES, 4)[..., :2]          # (22, 25, F, 2)
    middle = path.mean(2)                                                                # (22, 25, 2)
    best = torch.empty(len(anchor), len(anchor), 2, 2)
    for i in range(len(anchor)):
        gap = (path[i][None, :, None] - path[:, None]).norm(dim=-1) - (reach[i] + reach)[:, None]   # (22, 25, 25, F)
        first, second = anchor[i][None, :, None], anchor[:, None]
        right = middle[..., 0][:, None, :] - middle[i, :, 0][None, :, None]               # (22, 25, 25) pixels
        score = gap.amin(-1).clamp(max=8.0) + 0.02 * (second - first).sum(-1).clamp(max=30.0)
        score = score - 5 * (_APART - right).clamp(min=0)
        score = score - 0.02 * ((first - 64).abs().sum(-1) + (second - 64).abs().sum(-1))
        if scenic:
            score = score - 0.05 * ((1 - unit[:, None, 1]) + (1 - unit[None, :, 1])) * 20
        choice = score.flatten(1).argmax(1)                                              # (22,)
        best[i, :, 0], best[i, :, 1] = unit[choice // 25], unit[choice % 25]
    return best.view(sizes, motions, sizes, motions, 2, 2)


_PAIRS = torch.stack([_pair_table(False), _pair_table(True)])


def _layout(scenes: Scenes, gen: torch.Generator) -> None:
    """Choose anchors: what the words leave open is nearly fixed, because a small model must learn every freedom.

    One object is at the middle, give or take 8 pixels (in rooms it stands on the floor); two objects have one place
    for every pair of sizes and motions, give or take 2 pixels.
    """
    count = len(scenes)
    scenic = (scenes.place >= len(V.BACKGROUNDS)).long()
    ground = _GROUND - 4.0 * torch.rand(count, 2, generator=gen)
    low, high, floor_y, _ = _room_to_move(scenes.size, scenes.shape, scenes.motion, ground)
    jitter = 2 * torch.rand(count, 2, 2, generator=gen) - 1
    stand = torch.where(scenic[:, None] == 1, torch.maximum(low[..., 1], floor_y), high[..., 1])

    alone = 64 + 8 * jitter
    alone[..., 1] = torch.where(scenic[:, None] == 1, stand, alone[..., 1])
    unit = _PAIRS[scenic, scenes.size[:, 0], scenes.motion[:, 0], scenes.size[:, 1], scenes.motion[:, 1]]
    limit = torch.stack([high[..., 0], stand], -1)
    pair = low + unit * (limit - low) + 2 * jitter
    anchor = torch.where(scenes.two[:, None, None], pair, alone)
    scenes.anchor = torch.maximum(torch.minimum(anchor, high), low)
    scenes.ground = ground


def sample(count: int, gen: torch.Generator, scenic: float = 0.55, two_plain: float = 0.42,
           two_scenic: float = 0.30, turning: float = 0.0) -> Scenes:
    """Random scenes on the CPU, without the held-out combinations. The fractions are probabilities; turning is that of
    an object whose motion is drawn again from those that turn."""
    room = torch.rand(count, generator=gen) < scenic
    place = torch.randint(4, (count,), generator=gen)
    two = torch.rand(count, generator=gen) < torch.where(room, two_scenic, two_plain)
    draw_ids = lambda n, *shape: torch.randint(n, shape, generator=gen)
    turns = _TURNS.nonzero().flatten()

    def motions(m):
        found = draw_ids(len(V.MOTIONS), m, 2)
        if not turning:
            return found
        again = torch.rand(m, 2, generator=gen) < turning
        return torch.where(again, turns[draw_ids(len(turns), m, 2)], found)

    fields_of = lambda m: (draw_ids(len(_SIZES), m, 2), draw_ids(len(_COLOURS), m, 2),
                           draw_ids(len(V.SHAPES), m, 2), motions(m))
    size, colour, shape, motion = fields_of(count)
    while True:
        held = V.held_out_code(size, colour, shape, motion, place[:, None])
        same = (colour[:, 0] == colour[:, 1]) & (shape[:, 0] == shape[:, 1])
        bad = held[:, 0] | (held[:, 1] | same) & two
        if not bad.any():
            break
        again = fields_of(int(bad.sum()))
        size[bad], colour[bad], shape[bad], motion[bad] = again
    scenes = Scenes(place + 4 * room, two, size, colour, shape, motion, torch.empty(0), torch.empty(0))
    _layout(scenes, gen)
    return scenes


def from_scenes(wanted: list[V.Scene], gen: torch.Generator) -> Scenes:
    """The same form for given scenes, with a random layout."""
    places = [*V.BACKGROUNDS, *V.ROOMS]
    column = lambda words, name: torch.tensor([[words.index(getattr(o, name)) for o in (s.objects * 2)[:2]]
                                               for s in wanted])
    scenes = Scenes(torch.tensor([places.index(s.background) for s in wanted]),
                    torch.tensor([len(s.objects) == 2 for s in wanted]),
                    column(_SIZES, "size"), column(_COLOURS, "colour"), column(list(V.SHAPES), "shape"),
                    column(list(V.MOTIONS), "motion"), torch.empty(0), torch.empty(0))
    _layout(scenes, gen)
    return scenes


def describe(scenes: Scenes) -> list[V.Scene]:
    """Index tensors back to words."""
    rows = zip(*(getattr(scenes, n).tolist() for n in ("place", "two", "size", "colour", "shape", "motion")))
    return [V.Scene("plain" if p < 4 else "scenic", V.DIALECTS["plain" if p < 4 else "scenic"][p % 4],
                    tuple(V.Object(_SIZES[s[i]], _COLOURS[c[i]], V.SHAPES[h[i]], V.MOTIONS[m[i]])
                          for i in range(1 + two))) for p, two, s, c, h, m in rows]


def distance(shape: torch.Tensor, u: torch.Tensor, v: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """Signed distance in pixels (negative inside) from local point (u, v) to shapes given by index; broadcasts."""
    au, av, length = u.abs(), v.abs(), torch.sqrt(u * u + v * v + 1e-6)
    square = torch.maximum(au, av) - 0.92 * r
    triangle = torch.maximum(v, 0.8660254 * au - 0.5 * v) - 0.6 * r
    ring = (length - 0.5 * (1.05 + V.RING_INNER) * r).abs() - 0.5 * (1.05 - V.RING_INNER) * r
    arm = V.CROSS_ARM * r
    cross = torch.minimum(torch.maximum(au - r, av - arm), torch.maximum(au - arm, av - r))
    fifth = 2 * math.pi / 5
    turn = torch.atan2(u, -v)
    fold = (turn - fifth * torch.round(turn / fifth)).abs()              # angle to the nearest point of the star
    ix, iy = V.STAR_INNER * math.cos(fifth / 2), V.STAR_INNER * math.sin(fifth / 2)
    ex, ey = ix - 1.2, iy
    star = -(ex * length * torch.sin(fold) - ey * (length * torch.cos(fold) - 1.2 * r)) / math.hypot(ex, ey)
    out = length - r
    for index, other in ((1, square), (2, triangle), (3, ring), (4, cross), (5, star)):
        out = torch.where(shape == index, other, out)
    return out


class Painter:
    """Holds the constant pictures on one device. paint(scenes) -> clips and object masks."""

    def __init__(self, device="cpu"):
        self.backdrops = backdrops().to(device)
        self.colours = torch.tensor(list(V.COLOURS.values()), device=device)
        white, slate = torch.ones(3, device=device), torch.tensor([0.42, 0.47, 0.60], device=device)
        self.stripes = self.colours + 0.62 * (white - self.colours)
        index = _COLOURS.index("white")
        self.stripes[index] = self.colours[index] + 0.6 * (slate - self.colours[index])
        self.poses, self.radii = _POSES.to(device), _RADII.to(device)
        self.reach, self.bottom = _REACH.to(device), _BOTTOM.to(device)
        self.axis = torch.arange(V.SIZE, device=device, dtype=torch.float32) + 0.5

    def paint(self, s: Scenes) -> tuple[torch.Tensor, torch.Tensor]:
        """Clips (B, 17, 128, 128, 3) float32 in [0, 1] and the objects' coverage (B, 17, 128, 128) in [0, 1]."""
        return paint(s.place, s.two, s.size, s.colour, s.shape, s.motion, s.anchor, s.ground,
                     self.backdrops, self.colours, self.stripes, self.poses, self.radii, self.reach, self.bottom,
                     self.axis)


def paint(place, two, size, colour, shape, motion, anchor, ground, backdrops, colours, stripes, poses, radii, reach,
          bottom, axis):
    """The arithmetic of Painter.paint as one pure function, so that it can be compiled into a single kernel."""
    pix = lambda a: a[..., None, None]                                   # (B, F) -> (B, F, 1, 1)
    x, y = axis[None, None, None, :], axis[None, None, :, None]
    scenic = (place >= 4)[:, None, None, None]
    picture = [backdrops[place][:, None, :, :, k] for k in range(3)]     # each (B, 1, H, W)
    cover = 0.0
    pose = poses[motion]                                                 # (B, 2, F, 4)
    r = radii[size][..., None] * pose[..., 2]                            # (B, 2, F)
    cx, cy = anchor[..., None, 0] + pose[..., 0], anchor[..., None, 1] + pose[..., 1]
    exists = [torch.ones_like(two), two]

    for o in range(2):                                                   # shadows lie below both objects
        here = (scenic & exists[o][:, None, None, None]).to(x.dtype)
        height = (ground[:, o, None] - cy[:, o] - bottom[shape[:, o]][:, None] * r[:, o]).clamp(min=0)
        wide = r[:, o] * reach[shape[:, o]][:, None] * (0.86 + height / 130)
        q = torch.sqrt(((x - pix(cx[:, o])) / pix(wide)) ** 2 + ((y - ground[:, o, None, None, None]) / pix(0.24 * wide)) ** 2)
        ramp = ((1.3 - q) / 0.9).clamp(0, 1)
        dark = 1 - here * pix(0.50 * torch.exp(-height / 42)) * ramp * ramp * (3 - 2 * ramp)
        picture = [p * dark for p in picture]

    for o in range(2):
        dx, dy = x - pix(cx[:, o]), y - pix(cy[:, o])
        cos, sin = pix(torch.cos(pose[:, o, :, 3])), pix(torch.sin(pose[:, o, :, 3]))
        u, v, rr = cos * dx + sin * dy, cos * dy - sin * dx, pix(r[:, o])
        d = distance(shape[:, o, None, None, None], u, v, rr)
        alpha = (0.5 - d).clamp(0, 1) * exists[o][:, None, None, None]
        inner = (-1.4 - d).clamp(0, 1)                                   # inside the rim of 1.9 pixels
        band = (0.15 * rr - (0.8 * u - 0.6 * v - 0.30 * rr).abs() + 0.5).clamp(0, 1)
        light = 1 + torch.where(scenic, 0.15, 0.0) * ((-0.5 * dx - 0.8 * dy) / rr).clamp(-1, 1)
        for k in range(3):
            fill = colours[colour[:, o], k][:, None, None, None]
            pale = stripes[colour[:, o], k][:, None, None, None]
            body = fill + (pale - fill) * band
            body = (body * light).clamp(0, 1)
            ink = 0.55 * fill
            body = ink + (body - ink) * inner
            picture[k] = picture[k] + (body - picture[k]) * alpha
        cover = torch.maximum(alpha, cover) if o else alpha
    return torch.stack(picture, -1), cover
