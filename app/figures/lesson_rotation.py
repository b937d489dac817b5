"""Lesson 3: one token's values, plain or rotated, and the error of every layer both ways."""

from __future__ import annotations

import numpy as np

from app.figures import lesson_style as style
from app.figures import palette, spec
from app.lessons.rotation import Rotation

COLOUR = {"int8": palette.INT8, "nvfp4": palette.NVFP4}


def values(info: Rotation | None, rotated: bool, words: dict[str, str]) -> dict:
    """Bars of one stretch of the token; the axis stays put, so that the flattening shows."""
    if info is None:
        return spec.empty(words["empty"])
    shown = info.after if rotated else info.before
    top = float(np.abs(np.concatenate((info.before, info.after))).max()) * 1.05 or 1.0
    bars = {"type": "bar", "x": list(range(1, len(shown) + 1)), "y": np.round(shown, 5).tolist(),
            "marker": {"color": palette.INT8 if rotated else palette.MUTED}, "hovertemplate": "%{y:.3f}<extra></extra>"}
    layout = style.layout("", "", bargap=0.15, showlegend=False)
    layout["xaxis"].update(showgrid=False, showticklabels=False, ticks="")
    layout["yaxis"].update(range=[-top, top], zeroline=True, zerolinecolor=palette.MUTED, nticks=5)
    return {"data": [bars], "layout": layout}


def errors(info: Rotation | None, rotated: bool, group: str, names: dict[str, str], words: dict[str, str]) -> dict:
    """One row per layer: hollow dot plain, full dot rotated, for INT8 and NVFP4; logarithmic error axis.

    `names` maps the groups to what they are called; the chosen group's name is bold.
    """
    table = None if info is None else info.table
    if table is None or table.empty:
        return spec.empty(words["empty"])
    groups = list(dict.fromkeys(table["group"]))[::-1]
    place = {name: i for i, name in enumerate(groups)}
    data = []
    for kind, label in (("int8", "INT8"), ("nvfp4", "NVFP4")):
        rows = table[table["format"] == kind]
        y = [place[name] + (0.14 if kind == "int8" else -0.14) for name in rows["group"]]
        path_x = [v for a, b in zip(rows["plain"], rows["rotated"], strict=True) for v in (a, b, None)]
        path_y = [v for level in y for v in (level, level, None)]
        data.append({"type": "scatter", "mode": "lines", "x": path_x, "y": path_y, "showlegend": False,
                     "hoverinfo": "skip", "line": {"color": COLOUR[kind], "width": 2}})
        for name, hollow in (("plain", True), ("rotated", False)):
            now = hollow is not rotated
            data.append({
                "type": "scatter", "mode": "markers", "x": rows[name].tolist(), "y": y, "name": label,
                "showlegend": name == "rotated", "hovertemplate": "%{x:.2%}<extra>" + label + "</extra>",
                "marker": {"size": 15 if now else 11, "symbol": "circle-open" if hollow else "circle",
                           "color": COLOUR[kind], "line": {"width": 3, "color": COLOUR[kind]}},
            })  # fmt: skip
    layout = style.layout(words["error"], "", showlegend=True)
    layout["xaxis"].update(type="log", tickformat=".1~%", dtick="D2", minor={"dtick": "D1"})
    layout["yaxis"].update(
        tickvals=list(range(len(groups))), range=[-0.5, len(groups) - 0.5], showgrid=False,
        ticktext=[f"<b>{names[g]}</b>" if g == group else names[g] for g in groups],
    )  # fmt: skip
    return {"data": data, "layout": layout}
