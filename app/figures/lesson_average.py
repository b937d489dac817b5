"""Lesson 1: the map with one step marked, and how each step's arithmetic was spent."""

from __future__ import annotations

import numpy as np

from app.figures import decision_map as maps
from app.figures import lesson_style as style
from app.figures import palette, spec
from app.figures.grid import Grid
from app.lessons.average import SIZES, Average


def shares(info: Average, step: int, names: dict[int, str], words: dict[str, str]) -> dict:
    """Stacked bars per step: the part of the arithmetic at 0, 4, 8 and 16 bits; `step` is 0-based."""
    if not len(info.shares) or not np.isfinite(info.shares).any():
        return spec.empty(words["empty"])
    x = list(range(1, len(info.shares) + 1))
    shown = np.nan_to_num(info.shares)
    bars = [
        {"type": "bar", "x": x, "y": np.round(shown[:, i], 4).tolist(), "name": names[size],
         "marker": {"color": style.BY_BITS[size], "line": {"color": palette.LINE, "width": 1}},
         "hovertemplate": f"%{{x}}: %{{y:.0%}}<extra>{names[size]}</extra>"}
        for i, size in enumerate(SIZES) if shown[:, i].any()
    ]  # fmt: skip
    layout = style.layout(
        words["step"], words["share"], barmode="stack", bargap=0.08, showlegend=True, shapes=[_frame(step + 1, 1.0)],
    )  # fmt: skip
    layout["xaxis"].update(range=[0.5, len(x) + 0.5], showgrid=False)
    layout["yaxis"].update(tickformat=".0%", range=[0, 1.02], nticks=4)
    return {"data": bars, "layout": layout}


def marked_map(grid: Grid, step: int | None, words: dict[str, str]) -> dict:
    """The Lab's decision map, with the column of one step (0-based) framed."""
    if not grid.blocks:
        return spec.empty(words["empty"])
    figure = maps.figure(maps.decision_map(grid, None, (words["step"], words["block"])))
    figure["layout"].update(margin={"l": 10, "r": 10, "t": 8, "b": 10}, dragmode=False)
    for name in ("xaxis", "yaxis"):
        figure["layout"][name].update(fixedrange=True, automargin=True)
    if step is not None:
        figure["layout"]["shapes"] = [{
            "type": "rect", "x0": step - 0.5, "x1": step + 0.5, "y0": -0.5, "y1": len(grid.blocks) - 0.5,
            "line": {"color": palette.ACCENT, "width": 3},
        }]  # fmt: skip
    return figure


def _frame(x: float, top: float) -> dict:
    return {"type": "rect", "x0": x - 0.5, "x1": x + 0.5, "y0": 0, "y1": top,
            "line": {"color": palette.ACCENT, "width": 3}}  # fmt: skip
