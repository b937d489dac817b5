"""How much each layer minds 4 bits at each step, with a dot where the recorded run took 4 bits."""

from __future__ import annotations

import numpy as np

from app.comparison.sensitivity import Sensitivity
from app.figures import lesson_style as style
from app.figures import palette, spec


def heat(info: Sensitivity | None, names: dict[str, str], words: dict[str, str]) -> dict:
    """Rows are layer groups of all blocks, columns the measured steps; the colour is the error of the whole output."""
    if info is None or not info.rows:
        return spec.empty(words["empty"])
    labels = [f"{block} · {names[layer]}" for block, layer in info.rows]
    columns = [str(step + 1) for step in info.steps]
    seen = info.errors[np.isfinite(info.errors)]
    heatmap = {
        "type": "heatmap", "x": columns, "y": labels, "colorscale": spec.ramp(palette.SEQUENTIAL),
        "z": [[round(float(v), 5) if np.isfinite(v) else None for v in row] for row in info.errors],
        "zmin": 0, "zmax": float(np.percentile(seen, 98)) if seen.size else 1.0, "xgap": 2, "ygap": 1,
        "hovertemplate": "%{y}, " + words["step"] + " %{x}: %{z:.2%}<extra></extra>",
        "colorbar": {"tickformat": ".1~%", "thickness": 12, "outlinewidth": 0, "title": {"text": ""}},
    }  # fmt: skip
    row, column = np.nonzero(info.four)
    dots = {
        "type": "scatter", "mode": "markers", "x": [columns[i] for i in column], "y": [labels[i] for i in row],
        "hoverinfo": "skip", "marker": {"size": 8, "color": palette.NVFP4, "line": {"width": 1, "color": palette.INK}},
    }  # fmt: skip
    layout = style.layout(words["step"], "", showlegend=False)
    layout["xaxis"].update(type="category", showgrid=False)
    layout["yaxis"].update(type="category", autorange="reversed", showgrid=False, nticks=min(len(labels), 24))
    return {"data": [heatmap, dots] if len(row) else [heatmap], "layout": layout}
