"""Lesson 5: the sawtooth of one block's account, and the two shares that compete."""

from __future__ import annotations

import numpy as np
import pandas as pd

from app.figures import lesson_style as style
from app.figures import palette, spec
from app.lessons.budget import Budget

# Not one of the precisions' colours: it says who decides, not with how many bits.
FORECAST = "#AA4499"


def sawtooth(info: Budget, limit: float, words: dict[str, str]) -> dict:
    """E_acc over the steps as a staircase, the drift weighed at each step as bars, the budget as a line."""
    rows = info.rows
    if rows.empty:
        return spec.empty(words["empty"])
    steps = (rows["step"] + 1).tolist()
    drift, spent = rows["drift"].to_numpy(float), rows["accumulated"].to_numpy(float)
    known = np.concatenate((drift[np.isfinite(drift)], spent[np.isfinite(spent)], [limit]))
    data = [
        {"type": "bar", "x": steps, "y": _numbers(drift), "name": words["drift"], "width": 0.5,
         "marker": {"color": palette.MUTED, "opacity": 0.45}, "hovertemplate": "%{x}: %{y:.1%}<extra></extra>"},
        {"type": "scatter", "mode": "lines+markers", "x": steps, "y": _numbers(spent), "name": words["spent"],
         "line": {"color": palette.INT8, "width": 3}, "hovertemplate": "%{x}: %{y:.1%}<extra></extra>",
         "marker": {"size": 9, "color": [palette.PAPER if s else palette.INT8 for s in rows["skipped"]],
                    "line": {"width": 2.5, "color": palette.INT8}}},
    ]  # fmt: skip
    shades = [style.band(step - 0.5, step + 0.5, palette.MUTED, 0.14)
              for step, skip in zip(steps, rows["skipped"], strict=True) if skip]  # fmt: skip
    layout = style.layout(words["step"], words["axis_spent"], showlegend=True, shapes=[*shades, style.rule(y=limit)])
    # One early step with a huge drift must not flatten all the others.
    top = max(limit * 1.25, min(float(known.max()), float(np.percentile(known, 90)) * 2.0)) * 1.05
    tall = [(step, value) for step, value in zip(steps, drift, strict=True) if np.isfinite(value) and value > top]
    if tall:
        data.append({
            "type": "scatter", "mode": "markers", "x": [step for step, _ in tall],
            "y": [round(top * 0.97, 5)] * len(tall),
            "customdata": [round(float(value), 5) for _, value in tall], "showlegend": False,
            "marker": {"symbol": "triangle-up", "size": 11, "color": palette.INK},
            "hovertemplate": "%{x}: %{customdata:.0%}<extra></extra>",
        })  # fmt: skip
    layout["xaxis"].update(range=[0.4, len(steps) + 0.6], showgrid=False)
    layout["yaxis"].update(range=[0, top or 0.1], tickformat=".0%", nticks=5)
    layout["annotations"] = [{
        "x": 1, "xref": "paper", "xanchor": "right", "y": limit, "yanchor": "bottom", "showarrow": False,
        "text": words["limit"], "font": {"color": palette.ACCENT},
    }]  # fmt: skip
    return {"data": data, "layout": layout}


def shares(curve: pd.DataFrame, limit: float, words: dict[str, str]) -> dict:
    """Skipped block steps and calls decided by the forecast against the budget; the chosen budget as a line."""
    if curve.empty:
        return spec.empty(words["empty"])
    x = curve["tolerance"].tolist()
    data = [
        {"type": "scatter", "mode": "lines", "x": x, "y": curve[name].round(4).tolist(), "name": words[name],
         "line": {"color": colour, "width": 4, "dash": dash}, "hovertemplate": "%{x:.0%}: %{y:.0%}<extra></extra>"}
        for name, colour, dash in (("skipped", palette.MUTED, "dot"), ("predictor", FORECAST, "solid"))
    ]  # fmt: skip
    layout = style.layout(words["axis_budget"], "", showlegend=True, shapes=[style.rule(x=limit)])
    layout["xaxis"].update(range=[0, max(x)], tickformat=".0%", dtick=0.05)
    layout["yaxis"].update(range=[0, 1], tickformat=".0%", nticks=5)
    return {"data": data, "layout": layout}


def _numbers(values: np.ndarray) -> list[float | None]:
    return [round(float(v), 5) if np.isfinite(v) else None for v in values]
