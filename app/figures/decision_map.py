"""The map: blocks down, steps across, each cell a mosaic of its layer groups.

`fine` draws one tile per group (for cells of 14 pixels and more), `coarse` one fill per cell with a diamond where a
layer was purified; the browser picks by the size it really has, also while zooming.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from app.figures import palette, spec
from app.figures.grid import INT8, NOTHING, NVFP4, PURIFIED, SKIPPED, STOCK, UNKNOWN, W4A16, Grid, block_bits

COLOURS = [palette.CLEAR, palette.SKIPPED, palette.NVFP4, palette.INT8, palette.W4A16, palette.STOCK, palette.PURIFIED,
           palette.UNKNOWN]
VERDICTS = [palette.CLEAR, palette.SKIPPED, palette.RIGHT, palette.WASTE, palette.MISS, palette.LINE]
NO_VERDICT, V_SKIPPED, V_RIGHT, V_WASTE, V_MISS, V_FORCED = range(6)
STOCK_BITS, UNKNOWN_BITS, NO_BITS = 18, 19, 20     # states without a place on the scale of 0 to 16 bits
GAP = 0.045      # half the white between two cells, in cells


class Changes(NamedTuple):
    """Which cells differ from another run: bool (B, S) each; by themselves, or after a skip that differs."""

    first: np.ndarray
    later: np.ndarray


def changes(before: Grid, after: Grid) -> Changes:
    """Cells whose decision differs. What comes after a block was skipped in one of the two only may merely follow from
    that; bits that differ change nothing later."""
    differs = (before.decision != after.decision).any(axis=2)
    parted = np.cumsum(before.skipped != after.skipped, axis=1) - (before.skipped != after.skipped) > 0
    return Changes(differs & ~parted, differs & parted)


def tiles(groups: int) -> tuple[int, int]:
    """(rows, columns) of the mosaic in one cell: 4 groups are 2 by 2, 6 are 2 by 3."""
    return (1, groups) if groups < 3 else (2, math.ceil(groups / 2))


def mosaic(values: np.ndarray, fill) -> np.ndarray:
    """(B, S, G) → ((B·(rows+1), S·(columns+1)): the tiles with a row and a column of gap after every cell."""
    B, S, G = values.shape
    rows, columns = tiles(G)
    out = np.full((B, rows + 1, S, columns + 1), fill, values.dtype)
    for g in range(G):
        out[:, g // columns, :, g % columns] = values[:, :, g]
    if G < rows * columns:                       # an odd number of groups: let the last one fill its row
        out[:, rows - 1, :, columns - 1] = values[:, :, G - 1]
    return out.reshape(B * (rows + 1), S * (columns + 1))


def edges(count: int, parts: int) -> dict:
    """Tile borders along one axis; cell i covers i-0.5 … i+0.5 with a gap of 2·GAP at its end."""
    inner = np.linspace(-0.5 + GAP, 0.5 - GAP, parts + 1)
    borders = (np.arange(count)[:, None] + inner[None]).ravel()
    return spec.typed(np.append(borders, count - 0.5 + GAP).astype(np.float32))


def decision_map(grid: Grid, change: Changes | None = None, axis_titles: tuple[str, str] = ("", "")) -> dict:
    """The decision view as a map dictionary: traces "fine" and "coarse", "over" on top of either, and "layout"."""
    if not grid.blocks:
        return blank()
    rows, columns = tiles(len(grid.groups))
    fine = [_flat(mosaic(_show(grid.decision), NOTHING), COLOURS, edges(grid.steps, columns),
                  edges(len(grid.blocks), rows))]
    coarse = [_coarse_fill(grid), _purified_marks(grid)]
    return _pair(grid, fine, coarse, change, axis_titles)


def signal_map(grid: Grid, values: np.ndarray, change: Changes | None = None,
               axis_titles: tuple[str, str] = ("", ""), reach: float = 98) -> dict:
    """A measured signal: (B, S) or (B, S, G) floats on a scale from 0 to its `reach`-th percentile."""
    if not grid.blocks:
        return {**blank(), "top": 0.0}
    seen = values[np.isfinite(values)]
    limit = float(np.percentile(seen, reach) if seen.size else 1.0) or 1.0
    flat = values if values.ndim == 2 else _worst(values)
    blank_tile = [_flat(mosaic(np.repeat(_pale(grid, flat)[:, :, None], 1, axis=2), NOTHING), COLOURS,
                        edges(grid.steps, 1), edges(len(grid.blocks), 1))]
    deep = values if values.ndim == 3 else values[:, :, None]
    rows, columns = tiles(deep.shape[2])
    heat = {"type": "heatmap", "hoverinfo": "none", "showscale": False, "zmin": 0.0, "zmax": limit,
            "colorscale": spec.ramp(palette.SEQUENTIAL)}
    fine = {**heat, "z": spec.typed(mosaic(deep.astype(np.float32), np.nan)),
            "x": edges(grid.steps, columns), "y": edges(len(grid.blocks), rows)}
    coarse = {**heat, "z": spec.typed(mosaic(flat[:, :, None].astype(np.float32), np.nan)),
              "x": edges(grid.steps, 1), "y": edges(len(grid.blocks), 1)}
    out = _pair(grid, [*blank_tile, fine], [*blank_tile, coarse], change, axis_titles)
    out["over"] = out["over"][1:]               # outlines only: a veil would look like other values
    return {**out, "top": limit}


def verdicts(grid: Grid, truth: Grid, threshold: float) -> np.ndarray:
    """uint8 (B, S, G): was each choice between 4 and 8 bits right, given the error that was measured?

    Right = 4 bits where the measured 4-bit error was within the threshold, or 8 where it was not. Calls that no
    predictor made (first step, after a skip, purified) are V_FORCED: they are nobody's mistake.
    """
    out = np.zeros(grid.shape, np.uint8)
    out[grid.decision == SKIPPED] = V_SKIPPED
    measured = truth.error_nvfp4
    known = np.isfinite(measured)
    four, eight = grid.decision == NVFP4, grid.decision == INT8
    out[four & known & (measured <= threshold)] = V_RIGHT
    out[four & known & (measured > threshold)] = V_MISS
    out[eight & known & (measured > threshold)] = V_RIGHT
    out[eight & known & (measured <= threshold)] = V_WASTE
    chose = grid.deciders.index("predictor") if "predictor" in grid.deciders else 254
    computed = (grid.decision != SKIPPED) & (grid.decision != NOTHING)
    out[computed & (grid.decided_by != chose)] = V_FORCED
    return out


def verdict_map(grid: Grid, verdict: np.ndarray, axis_titles: tuple[str, str] = ("", "")) -> dict:
    """The "was it right?" view of `verdicts`."""
    if not grid.blocks:
        return blank()
    rows, columns = tiles(verdict.shape[2])
    fine = _flat(mosaic(verdict, NO_VERDICT), VERDICTS, edges(grid.steps, columns), edges(len(grid.blocks), rows))
    order = np.array([0, 1, 3, 4, 5, 2], np.uint8)       # the worst verdict of a cell speaks for it
    worst = np.argsort(order)[order[verdict].max(axis=2)].astype(np.uint8)
    coarse = _flat(mosaic(worst[:, :, None], NO_VERDICT), VERDICTS, edges(grid.steps, 1), edges(len(grid.blocks), 1))
    return _pair(grid, [fine], [coarse], None, axis_titles)


def _show(decision: np.ndarray) -> np.ndarray:
    return np.where(decision == PURIFIED, np.uint8(W4A16), decision)


def _pale(grid: Grid, flat: np.ndarray) -> np.ndarray:
    there = (grid.decision != NOTHING).any(axis=2)
    return np.where(there & ~np.isfinite(flat), np.uint8(SKIPPED), np.uint8(NOTHING))


def _worst(values: np.ndarray) -> np.ndarray:
    known = np.isfinite(values)
    return np.where(known.any(axis=2), np.where(known, values, -np.inf).max(axis=2), np.nan)


def _flat(z: np.ndarray, colours: list[str], x: dict, y: dict) -> dict:
    return {"type": "heatmap", "z": spec.typed(z), "x": x, "y": y, "zmin": -0.5, "zmax": len(colours) - 0.5,
            "colorscale": spec.steps_of(colours), "showscale": False, "hoverinfo": "none"}


def _coarse_fill(grid: Grid) -> dict:
    """One fill per cell: mean bits from yellow (4) over blue (8) to dark (16); skipped cells stay pale. The model as it
    is, and a cell of which anything is unknown, have their own colours, as in the legend.

    In quarters of a bit, finer than the eye sees: a byte a cell is a quarter of the wire that floats would take.
    """
    bits = block_bits(grid)
    states = [((grid.decision == UNKNOWN).any(axis=2), UNKNOWN_BITS), (grid.skipped, 0.0), (np.isnan(bits), NO_BITS),
              ((grid.decision == STOCK).all(axis=2), STOCK_BITS)]
    quarters = np.round(4 * np.select(*zip(*states), default=bits)).astype(np.uint8)
    stops = [(0, palette.SKIPPED), (3, palette.SKIPPED), (3, palette.NVFP4), (4, palette.NVFP4), (8, palette.INT8),
             (10, palette.INT8), (16, palette.W4A16), (17, palette.W4A16), (17, palette.STOCK), (18.5, palette.STOCK),
             (18.5, palette.UNKNOWN), (19.5, palette.UNKNOWN), (19.5, palette.CLEAR), (NO_BITS, palette.CLEAR)]
    return {"type": "heatmap", "z": spec.typed(mosaic(quarters[:, :, None], np.uint8(4 * NO_BITS))),
            "x": edges(grid.steps, 1), "y": edges(len(grid.blocks), 1), "zmin": 0, "zmax": 4 * NO_BITS,
            "colorscale": [[at / NO_BITS, colour] for at, colour in stops], "showscale": False, "hoverinfo": "none"}


def _purified_marks(grid: Grid) -> dict:
    rows, columns = np.nonzero((grid.decision == PURIFIED).any(axis=2))
    return {"type": "scatter", "mode": "markers", "x": columns.tolist(), "y": rows.tolist(), "hoverinfo": "skip",
            "marker": {"symbol": "diamond", "size": 6, "color": palette.PURIFIED,
                       "line": {"width": 1, "color": "#FFFFFF"}}}


def figure(drawn: dict, level: str = "fine") -> dict:
    """One level of a map as a whole plotly figure: {"data": …, "layout": …}."""
    return {"data": [*drawn[level], *drawn["over"]], "layout": drawn["layout"]}


def blank() -> dict:
    """A map without data."""
    return {"fine": [], "coarse": [], "over": [], "layout": spec.empty("")["layout"]}


def _pair(grid: Grid, fine: list, coarse: list, change: Changes | None, titles: tuple[str, str]) -> dict:
    over = [] if change is None else [_veil(change, grid), _outline(change.first, "solid"),
                                      _outline(change.later, "dot")]
    return {"fine": fine, "coarse": coarse, "over": over, "layout": _layout(grid, titles)}


def _veil(change: Changes, grid: Grid) -> dict:
    """Fades what did not change."""
    same = ~(change.first | change.later)
    z = mosaic(same[:, :, None].astype(np.uint8), 0)
    return {"type": "heatmap", "z": spec.typed(z), "x": edges(grid.steps, 1), "y": edges(len(grid.blocks), 1),
            "zmin": 0, "zmax": 1, "colorscale": [[0, palette.CLEAR], [0.5, palette.CLEAR], [0.5, palette.PAPER],
                                                 [1, palette.PAPER]],
            "opacity": 0.66, "showscale": False, "hoverinfo": "skip"}


def _outline(cells: np.ndarray, dash: str) -> dict:
    """One line trace that runs around every marked cell."""
    rows, columns = np.nonzero(cells)
    h = 0.5 - GAP * 1.4
    around_x = columns[:, None] + np.array([-h, h, h, -h, -h])
    around_y = rows[:, None] + np.array([-h, -h, h, h, -h])
    x, y = (np.pad(around, ((0, 0), (0, 1)), constant_values=np.nan).astype(np.float32).ravel()
            for around in (around_x, around_y))
    return {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "connectgaps": False,
            "x": spec.typed(x), "y": spec.typed(y),
            "line": {"color": palette.ACCENT, "width": 2 if dash == "solid" else 1.6, "dash": dash}}


def _layout(grid: Grid, titles: tuple[str, str]) -> dict:
    S, B = grid.steps, len(grid.blocks)
    every_x = max(1, math.ceil(S / 8 / 5) * 5) if S > 10 else 1
    every_y = 1 if B <= 6 else (2 if B <= 16 else 6)
    x_ticks = list(range(0, S, every_x))
    return spec.layout(
        xaxis=spec.axis(range=[-0.5, S - 0.5], tickvals=x_ticks, ticktext=[str(v + 1) for v in x_ticks],
                        title={"text": titles[0], "standoff": 4, "font": {"size": 12}}, constrain="domain"),
        yaxis=spec.axis(range=[B - 0.5, -0.5], tickvals=list(range(0, B, every_y)),
                        ticktext=[str(grid.blocks[v]) for v in range(0, B, every_y)],
                        title={"text": titles[1], "standoff": 4, "font": {"size": 12}}),
    )
