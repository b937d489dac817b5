"""The four rooms of the scenic dialect: still pictures, drawn once at four times the size and averaged down."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.vocabulary import BACKGROUNDS, ROOMS, SIZE

FLOOR = 88.0                 # y of the line where the floor begins, in pixels
SKIRTING = 6.0               # height of the neutral band above it: a colour cast shows here first
HORIZON = 52.0               # y towards which the tiles run together
TILE = 21.0                  # width of a tile at the bottom edge of the picture, in pixels

# wall: colours from the ceiling to the skirting; tiles: the two tones; lamp: centre x, y, reach (pixels), colour, strength
ROOM = {
    "sunset": dict(wall=((0.33, 0.24, 0.44), (0.74, 0.42, 0.48), (0.97, 0.74, 0.55)),
                   tiles=((0.56, 0.37, 0.31), (0.44, 0.28, 0.26)), skirting=(0.83, 0.81, 0.79),
                   lamp=(88.0, 74.0, 52.0, (1.00, 0.86, 0.62), 0.55)),
    "night": dict(wall=((0.07, 0.09, 0.22), (0.13, 0.19, 0.37), (0.23, 0.33, 0.50)),
                  tiles=((0.24, 0.28, 0.40), (0.17, 0.20, 0.31)), skirting=(0.55, 0.56, 0.58),
                  lamp=(34.0, 26.0, 46.0, (0.72, 0.80, 1.00), 0.38)),
    "mint": dict(wall=((0.58, 0.83, 0.75), (0.72, 0.91, 0.83), (0.85, 0.96, 0.90)),
                 tiles=((0.93, 0.90, 0.83), (0.77, 0.79, 0.72)), skirting=(0.90, 0.90, 0.89),
                 lamp=(40.0, 30.0, 60.0, (1.00, 1.00, 0.94), 0.45)),
    "snow": dict(wall=((0.55, 0.68, 0.86), (0.69, 0.80, 0.92), (0.82, 0.89, 0.96)),
                 tiles=((0.80, 0.86, 0.93), (0.66, 0.74, 0.84)), skirting=(0.92, 0.92, 0.93),
                 lamp=(92.0, 28.0, 56.0, (1.00, 0.98, 0.92), 0.42)),
}


def _mix(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return a + (b - a) * w[..., None]


def draw_room(name: str, over: int = 4) -> torch.Tensor:
    """(128, 128, 3) float32 in [0, 1]: gradient wall with soft light, skirting, tiled floor in perspective."""
    room = ROOM[name]
    n = SIZE * over
    axis = (torch.arange(n, dtype=torch.float64) + 0.5) / over
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    colour = {k: [torch.tensor(c, dtype=torch.float64) for c in v] if isinstance(v[0], tuple)
              else torch.tensor(v, dtype=torch.float64) for k, v in room.items() if k != "lamp"}

    down = (y / FLOOR).clamp(0, 1)
    wall = _mix(_mix(colour["wall"][0].expand(n, n, 3), colour["wall"][1], (down * 2).clamp(0, 1)),
                colour["wall"][2], (down * 2 - 1).clamp(0, 1))
    lx, ly, reach, lamp, strength = room["lamp"]
    far = ((x - lx) ** 2 + (y - ly) ** 2) / reach ** 2
    wall = _mix(wall, torch.tensor(lamp, dtype=torch.float64), strength * torch.exp(-2.2 * far))

    nearness = (SIZE - HORIZON) / (y - HORIZON).clamp(min=1.0)           # 1 at the bottom edge, larger further away
    column = torch.floor((x - SIZE / 2) * nearness / TILE)
    row = torch.floor(nearness * 5.2 + 0.35)
    dark = torch.remainder(column + row, 2)
    floor = _mix(colour["tiles"][0].expand(n, n, 3), colour["tiles"][1], dark)
    pool = torch.exp(-(((x - SIZE / 2) / 62) ** 2 + ((y - 112) / 26) ** 2))
    floor = floor * (0.86 + 0.16 * pool)[..., None]
    floor = floor * (1 - 0.25 * torch.exp(-(y - FLOOR).clamp(min=0) / 2.5))[..., None]   # shade below the skirting

    band = colour["skirting"].expand(n, n, 3) * (1 - 0.10 * ((y - FLOOR + SKIRTING) / SKIRTING).clamp(0, 1))[..., None]
    picture = torch.where((y < FLOOR - SKIRTING)[..., None], wall, torch.where((y < FLOOR)[..., None], band, floor))
    corner = ((x - 64) ** 2 + (y - 64) ** 2) / 64 ** 2
    picture = picture * (1 - 0.07 * (corner - 0.5).clamp(min=0))[..., None]
    picture = F.avg_pool2d(picture.permute(2, 0, 1)[None], over)[0].permute(1, 2, 0)
    return picture.clamp(0, 1).float()


def backdrops() -> torch.Tensor:
    """(8, 128, 128, 3): the four flat backgrounds, then the four rooms, in the vocabulary's order."""
    flat = [torch.tensor(rgb).expand(SIZE, SIZE, 3) for rgb in BACKGROUNDS.values()]
    return torch.stack(flat + [draw_room(name) for name in ROOMS]).contiguous()
