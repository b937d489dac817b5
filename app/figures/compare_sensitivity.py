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
        "type": "heatmap", "x": list(range(len(columns))), "y": list(range(len(labels))),
        "text": [[f"{label}, {words['step']} {c}" for c in columns] for label in labels],
        "colorscale": spec.ramp(palette.SEQUENTIAL),
        "z": [[round(float(v), 5) if np.isfinite(v) else None for v in row] for row in info.errors],
        "zmin": 0, "zmax": float(np.percentile(seen, 98)) if seen.size else 1.0, "xgap": 2, "ygap": 1,
        "hovertemplate": "%{text}: %{z:.2%}<extra></extra>",
        "colorbar": {"tickformat": ".1~%", "thickness": 12, "outlinewidth": 0, "title": {"text": ""}},
    }  # fmt: skip
    row, column = np.nonzero(info.four)
    dots = {
        "type": "scatter", "mode": "markers", "x": column.tolist(), "y": row.tolist(),
        "hoverinfo": "skip", "marker": {"size": 8, "color": palette.NVFP4, "line": {"width": 1, "color": palette.INK}},
    }  # fmt: skip
    layout = style.layout(words["step"], "", showlegend=False)
    # Places are numbers, so that no row is cut, a dot leaves no room at the rim, and each block is named once.
    blocks = list(dict.fromkeys(block for block, _ in info.rows))
    middle = [float(np.mean([i for i, (block, _) in enumerate(info.rows) if block == b])) for b in blocks]
    layout["xaxis"].update(
        showgrid=False, range=[-0.5, len(columns) - 0.5], tickvals=list(range(len(columns))), ticktext=columns
    )
    layout["yaxis"].update(showgrid=False, range=[len(labels) - 0.5, -0.5], tickvals=middle,
                           ticktext=[f"{words['block']} {block}" for block in blocks])  # fmt: skip
    layout["shapes"] = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": i - 0.5, "y1": i - 0.5,
        "line": {"color": palette.INK, "width": 1}}
        for i in range(1, len(info.rows)) if info.rows[i][0] != info.rows[i - 1][0]
    ]  # fmt: skip
    return {"data": [heatmap, dots] if len(row) else [heatmap], "layout": layout}
