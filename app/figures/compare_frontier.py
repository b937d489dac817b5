"""Quality against cost: every method a line of dots with 95 % intervals, ours in strong colours, peers quiet."""

from __future__ import annotations

import numpy as np

from app.comparison.points import EXACT, LOWER_IS_BETTER, Points
from app.figures import lesson_style as style
from app.figures import palette, spec

# One colour for each idea, one mark for each way of using it: a cross computes every step, a ring extrapolates.
OURS = {
    "sixbit": (palette.ACCENT, "circle"),
    "sixbit_extended": (palette.ACCENT, "circle-open"),
    "sixbit_lean": (palette.ACCENT, "x"),
    "int8_tdc": (palette.INT8, "circle"),
    "int8_tdc_extrapolated": (palette.INT8, "circle-open"),
    "w4a8": (palette.INT8, "x"),
    "tdc": ("#44AA99", "circle"),
    "tdc_extrapolated": ("#44AA99", "circle-open"),
    "w4a16": ("#44AA99", "x"),
    "dmpq_tdc": ("#AA4499", "circle"),
    "dmpq": ("#AA4499", "x"),
    "w4a4": (palette.NVFP4, "x"),
}
# For methods that come later; readable on a light and on a dark page alike.
OTHERS = ("#997700", palette.STOCK, "#77AADD")
PEERS = ("square", "diamond", "triangle-up", "triangle-down", "cross", "pentagon", "hexagon", "star-triangle-up")
DASHES = ("dot", "dash", "dashdot", "longdash")
FORMAT = {"psnr": ".1f", "ssim": ".3f", "prompt_accuracy": ".0%", "flicker": ".3f", "seconds": ".2f", "bits": ".1f",
          "bits_computed": ".1f", "skipped": ".0%"}  # fmt: skip


def frontier(found: Points, names: dict[str, str], words: dict[str, str]) -> dict:
    """`names` maps methods to what they are called; `words`: quality, cost, empty, reference.

    Every dot carries its row number as `customdata`, so that the page can open it.
    """
    shown = found.table[~((found.quality == "psnr") & (found.table["mean"] >= EXACT))]
    if shown.empty:
        return spec.empty(words["empty"])
    data, quiet = [], 0
    spare = [(colour, symbol) for symbol in ("circle", "circle-open", "x") for colour in OTHERS]
    for method, rows in shown.groupby("method", sort=False):
        mine = bool(rows["ours"].iloc[0])
        if mine:
            colour, symbol = OURS[method] if method in OURS else spare.pop(0) if spare else (palette.STOCK, "x")
            dash = "solid"
        else:
            colour, symbol, dash = palette.MUTED, PEERS[quiet % len(PEERS)], DASHES[quiet % len(DASHES)]
            quiet += 1
        data.append({
            "type": "scatter", "mode": "lines+markers", "name": names[method], "x": _plain(rows["cost"]),
            "y": _plain(rows["mean"]), "customdata": rows.index.tolist(),
            "error_y": {"type": "data", "symmetric": False, "array": _plain(rows["high"] - rows["mean"]),
                        "arrayminus": _plain(rows["mean"] - rows["low"]), "thickness": 1.5, "width": 3,
                        "color": colour},
            "line": {"color": colour, "width": 2.5 if mine else 1.5, "dash": dash},
            "marker": {"symbol": symbol, "size": 12 if mine else 9, "color": colour,
                       "line": {"width": 1, "color": palette.PAPER}},
            "hovertemplate": f"%{{x:{FORMAT[found.cost]}}} · %{{y:{FORMAT[found.quality]}}}"
            f"<extra>{names[method]}</extra>",
        })  # fmt: skip
    # The page names the methods below the figure: a dozen names inside would leave the dots no room.
    layout = style.layout(words["cost"], words["quality"], showlegend=False, shapes=_reference(found))
    layout["xaxis"].update(tickformat=FORMAT[found.cost] if found.cost == "skipped" else "", nticks=8)
    layout["yaxis"].update(tickformat=FORMAT[found.quality] if found.quality == "prompt_accuracy" else "")
    if found.quality in LOWER_IS_BETTER:
        layout["yaxis"]["autorange"] = "reversed"
    if found.cost not in LOWER_IS_BETTER:
        layout["xaxis"].update(autorange="reversed")
    layout["annotations"] = [
        {
            "x": 0.01,
            "y": 0.99,
            "xref": "paper",
            "yref": "paper",
            "xanchor": "left",
            "yanchor": "top",
            "showarrow": False,
            "text": "↖ " + words["better"],
            "font": {"color": palette.MUTED},
        },
        *_reference_names(found, words["reference"]),
    ]
    return {"data": data, "layout": layout}


def _reference(found: Points) -> list[dict]:
    """Dotted lines where the untouched model stands."""
    cost, quality = found.reference
    lines = []
    if np.isfinite(cost) and found.cost == "seconds":
        lines.append({**style.rule(x=cost, dash="dot"), "line": {"color": palette.MUTED, "width": 1.5, "dash": "dot"}})
    if np.isfinite(quality) and not (found.quality == "psnr" and quality >= EXACT):
        lines.append(
            {**style.rule(y=quality, dash="dot"), "line": {"color": palette.MUTED, "width": 1.5, "dash": "dot"}}
        )
    return lines


def _reference_names(found: Points, name: str) -> list[dict]:
    """What the dotted lines are, written at their ends."""
    base = {"showarrow": False, "text": name, "font": {"color": palette.MUTED}, "yanchor": "bottom"}
    return [
        {**base, "x": line["x0"], "y": 0, "yref": "paper", "xanchor": "left"} if line.get("yref") == "paper" else
        {**base, "x": 1, "xref": "paper", "y": line["y0"], "xanchor": "right"} for line in _reference(found)
    ]  # fmt: skip


def _plain(values) -> list[float]:
    return [round(float(v), 5) for v in values]
