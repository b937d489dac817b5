"""Lesson 4: Γ one step ago against the measured 4-bit error, and the lines of all layers."""

from __future__ import annotations

import numpy as np
import pandas as pd

from app.figures import lesson_style as style
from app.figures import palette, spec
from app.lessons.forecast import HIT_EIGHT, HIT_FOUR, MISS, VERDICTS, WASTE, Forecast

MARKS = {
    HIT_FOUR: ("circle", palette.NVFP4), HIT_EIGHT: ("square", palette.INT8),
    WASTE: ("square-open", palette.INT8), MISS: ("x", palette.MISS),
}  # fmt: skip


def dots(info: Forecast, threshold: float, names: dict[str, str], words: dict[str, str]) -> dict:
    """One dot per step; shaded where the fitted line lies below the threshold (the forecast says 4 bits)."""
    points = info.points
    if points.empty:
        return spec.empty(words["empty"])
    left, right = float(points["gamma"].min()), float(points["gamma"].max())
    pad = (right - left) * 0.06 or 0.01
    left, right = left - pad, right + pad
    data = [
        {"type": "scatter", "mode": "markers", "x": rows["gamma"].round(5).tolist(),
         "y": rows["error"].round(5).tolist(), "customdata": (rows["step"] + 1).tolist(),
         "name": names[verdict],
         "hovertemplate": words["step"] + " %{customdata}: Γ %{x:.3f} → %{y:.1%}<extra></extra>",
         "marker": {"size": 12, "symbol": MARKS[verdict][0], "color": MARKS[verdict][1],
                    "line": {"width": 2 if MARKS[verdict][0].endswith("open") else 1, "color": _rim(verdict)}}}
        for verdict in VERDICTS if len(rows := points[points["verdict"] == verdict])
    ]  # fmt: skip
    ends = np.array([left, right])
    data.append({"type": "scatter", "mode": "lines", "x": ends.tolist(), "y": (info.alpha * ends + info.beta).tolist(),
                 "line": {"color": palette.INK, "width": 3}, "hoverinfo": "skip", "showlegend": False})
    layout = style.layout(words["gamma"], words["error"], showlegend=True, shapes=[
        style.rule(y=threshold),
        *[style.band(*part, palette.NVFP4) for part in four_bit_side(info, threshold, left, right)],
    ])  # fmt: skip
    low, high = float(points["error"].min()), float(points["error"].max())
    room = (high - low) * 0.15 or 0.01
    layout["xaxis"].update(range=[left, right], nticks=7)
    layout["yaxis"].update(tickformat=".1~%", range=[min(low, threshold) - room, max(high, threshold) + room], nticks=6)
    return {"data": data, "layout": layout}


def four_bit_side(info: Forecast, threshold: float, left: float, right: float) -> list[tuple[float, float]]:
    """The stretch of the Γ axis where the line stays within the threshold (none, one side, or all)."""
    if info.alpha == 0.0:
        return [(left, right)] if info.beta <= threshold else []
    cut = float(np.clip((threshold - info.beta) / info.alpha, left, right))
    part = (left, cut) if info.alpha > 0 else (cut, right)
    return [part] if part[1] > part[0] else []


def lines(fits: pd.DataFrame, chosen: tuple[int, int], names: list[str], words: dict[str, str]) -> dict:
    """Every layer's slope and R², one dot each; `chosen` = (block, group) positions, `names` one per row."""
    if fits.empty:
        return spec.empty(words["empty"])
    here = (fits["block"] == chosen[0]) & (fits["group"] == chosen[1])
    data = []
    for mask, colour, size, label in ((~here, palette.MUTED, 9, ""), (here, palette.ACCENT, 17, words["this"])):
        rows = fits[mask]
        data.append({
            "type": "scatter", "mode": "markers", "x": rows["alpha"].round(4).tolist(),
            "y": rows["r2"].round(4).tolist(),
            "text": [names[i] for i in np.flatnonzero(mask)], "name": label, "showlegend": bool(label),
            "hovertemplate": "%{text}: %{x:.2f}, %{y:.0%}<extra></extra>",
            "marker": {"size": size, "color": colour, "opacity": 0.75 if not label else 1.0,
                       "line": {"width": 1, "color": palette.PAPER}},
        })  # fmt: skip
    layout = style.layout(words["slope"], words["r2"], showlegend=True)
    reach = float(fits["alpha"].abs().quantile(0.98)) * 1.1 or 1.0
    # A slope far outside would squeeze all others; it is drawn at the rim, its number stays in the hover.
    for trace in data:
        trace["customdata"] = trace["x"]
        trace["hovertemplate"] = "%{text}: %{customdata:.2f}, %{y:.0%}<extra></extra>"
        trace["x"] = [max(-reach, min(reach, v)) for v in trace["x"]]
    layout["xaxis"].update(
        range=[-reach * 1.06, reach * 1.06], zeroline=True, zerolinecolor=palette.INK, zerolinewidth=2
    )
    layout["yaxis"].update(range=[-0.04, 1.04], tickformat=".0%", nticks=5)
    return {"data": data, "layout": layout}


def _rim(verdict: str) -> str:
    return MARKS[verdict][1] if MARKS[verdict][0] in ("square-open", "x") else palette.INK
