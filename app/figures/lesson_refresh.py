"""Lesson 6: the error that one layer's cache passes on, and whose outlier alarm rings how often."""

from __future__ import annotations

import numpy as np
import pandas as pd

from app.figures import lesson_style as style
from app.figures import palette, spec
from app.lessons.refresh import Refresh


def kept(info: Refresh, purified: bool, words: dict[str, str]) -> dict:
    """Two staircases over the steps, without and with purifying; the one that is on is drawn strong."""
    if not any(np.isfinite(series).any() for series in info.series):
        return spec.empty(words["empty"])
    data = []
    for on, series, colour in ((False, info.series[0], palette.INT8), (True, info.series[1], palette.PURIFIED)):
        now = on is purified
        data.append({
            "type": "scatter", "mode": "lines", "x": list(range(1, len(series) + 1)),
            "y": [round(float(v), 5) if np.isfinite(v) else None for v in series],
            "name": words["with"] if on else words["without"], "fill": "tozeroy" if now else "none",
            "line": {"shape": "hvh", "color": colour, "width": 4 if now else 2, "dash": "solid" if now else "dot"},
            "hovertemplate": "%{x}: %{y:.2%}<extra></extra>",
        })  # fmt: skip
    layout = style.layout(words["step"], words["axis_error"], showlegend=True)
    layout["xaxis"].update(showgrid=False)
    layout["yaxis"].update(rangemode="tozero", tickformat=".1~%", nticks=5)
    return {"data": data, "layout": layout}


def gains(reuse: pd.DataFrame | None, words: dict[str, str]) -> dict:
    """What purifying bought in real videos at each reuse tolerance: dB of PSNR with 95 % intervals around zero."""
    if reuse is None or reuse.empty:
        return spec.empty(words["empty"])
    rows = reuse.sort_values("tdc_threshold")
    y = rows["psnr"].round(4).tolist()
    dots = {
        "type": "scatter", "mode": "lines+markers", "x": rows["tdc_threshold"].tolist(), "y": y,
        "line": {"color": palette.PURIFIED, "width": 3}, "marker": {"size": 11, "color": palette.PURIFIED},
        "error_y": {"type": "data", "symmetric": False, "thickness": 2, "width": 4, "color": palette.PURIFIED,
                    "array": (rows["psnr_high"] - rows["psnr"]).round(4).tolist(),
                    "arrayminus": (rows["psnr"] - rows["psnr_low"]).round(4).tolist()},
        "hovertemplate": "%{x:.0%}: %{y:+.2f} dB<extra></extra>",
    }  # fmt: skip
    layout = style.layout(words["axis_reuse"], words["axis_gain"], showlegend=False)
    layout["xaxis"].update(tickformat=".0%", tickvals=rows["tdc_threshold"].tolist())
    layout["yaxis"].update(zeroline=True, zerolinecolor=palette.INK, zerolinewidth=2, tickformat="+.1f", nticks=5,
                           rangemode="tozero")
    return {"data": [dots], "layout": layout}


def alarm(rings: pd.DataFrame, names: dict[str, str], words: dict[str, str]) -> dict:
    """One bar per layer group: the share of its computed calls whose ratio exceeds the limit."""
    if rings.empty:
        return spec.empty(words["empty"])
    rows = rings.iloc[::-1]
    bars = {
        "type": "bar", "orientation": "h", "x": rows["rings"].round(4).tolist(), "y": [names[g] for g in rows["group"]],
        "marker": {"color": palette.PURIFIED}, "text": [words["percent"][g] for g in rows["group"]],
        "textposition": "outside", "cliponaxis": False, "hoverinfo": "skip",
    }  # fmt: skip
    layout = style.layout(words["axis_share"], "", showlegend=False, bargap=0.35)
    layout["xaxis"].update(range=[0, max(0.1, float(rows["rings"].max()) * 1.35)], tickformat=".0%", nticks=5)
    layout["yaxis"].update(showgrid=False)
    return {"data": [bars], "layout": layout}
