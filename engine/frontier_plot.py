"""The frontier as one picture for the README: an SVG drawn by hand, so that no plotting library is needed.

Three panels, so that like meets like: caches on 16-bit weights, caches on packed weights (both: quality over the share
of skipped work), and the choice of bits without any cache (quality over bits). Closeness is PSNR to the *same weights*
at 16 bits without reuse: what the method did, without what the packing cost. Bars are 95 % intervals over prompts.
"""

from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np
import pandas as pd

from engine.sweep import summary

WIDTH, HEIGHT, TOP, BOTTOM, LEFT, GAP = 1200, 430, 44, 122, 46, 36
METRIC = "psnr_same_weights"
INK, MUTED, PAPER = "#1b1f24", "#6b7280", "#ffffff"


class Line(NamedTuple):
    """One method in a panel: its name there and its colour (Wong's colour-blind-safe palette)."""

    method: str
    name: str
    colour: str


class Panel(NamedTuple):
    """A title, the cost on its axis, and whose lines it shows."""

    title: str
    cost: str
    axis: str
    lines: tuple[Line, ...]


PANELS = (
    Panel("16-bit weights: which cache?", "skipped", "work skipped, %", (
        Line("tdc_extrapolated", "ours, extrapolated", "#d55e00"), Line("tdc", "tdc", "#0072b2"),
        Line("first_block_cache", "FirstBlockCache", "#009e73"), Line("taylorseer", "TaylorSeer", "#cc79a7"),
        Line("mag_cache", "MagCache", "#8a7000"), Line("pyramid_attention_broadcast", "PAB", "#777777"),
    )),
    Panel("4-bit weights: which cache?", "skipped", "work skipped, %", (
        Line("int8_tdc_extrapolated", "int8_tdc, extrapolated", "#d55e00"), Line("int8_tdc", "int8_tdc", "#0072b2"),
        Line("w4a8_first_block_cache", "w4a8 + FirstBlockCache", "#009e73"), Line("sixbit", "sixbit", "#111111"),
        Line("sixbit_extended", "sixbit, extrapolated", "#cc79a7"), Line("dmpq_tdc", "dmpq_tdc", "#8a7000"),
    )),
    Panel("4-bit weights: which bits? (nothing skipped)", "bits_computed", "activation bits", (
        Line("dmpq", "dmpq", "#111111"), Line("dmpq_sensitive", "by sensitivity (ours)", "#d55e00"),
        Line("static_mix", "static mix", "#0072b2"), Line("static_sensitive", "static, by sensitivity", "#009e73"),
        Line("w4a8", "w4a8", "#777777"), Line("w4a4", "w4a4", "#8a7000"),
    )),
)  # fmt: skip


def draw(rows: pd.DataFrame) -> str:
    """The SVG text of the frontier's rows; panels without rows stay empty."""
    wide = (WIDTH - LEFT - 12 - GAP * (len(PANELS) - 1)) / len(PANELS)
    known = summary(rows, METRIC) if METRIC in rows else pd.DataFrame(columns=["method", "setting"])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>',
    ]
    for number, panel in enumerate(PANELS):
        parts += _panel(panel, rows, known, LEFT + number * (wide + GAP), wide)
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: Panel, rows: pd.DataFrame, known: pd.DataFrame, left: float, wide: float) -> list[str]:
    scale = 100.0 if panel.cost == "skipped" else 1.0
    curves = [(line, _curve(line.method, panel.cost, rows, known, scale)) for line in panel.lines]
    curves = [(line, curve) for line, curve in curves if len(curve)]
    parts = [f'<text x="{left:.0f}" y="18" font-weight="bold" fill="{INK}">{escape(panel.title)}</text>']
    if not curves:
        return parts
    everything = np.concatenate([curve for _, curve in curves])
    xs = _ticks(everything[:, 0].min(), everything[:, 0].max())
    ys = _ticks(everything[:, 2].min(), everything[:, 3].max())
    high = HEIGHT - TOP - BOTTOM

    def x(value: float) -> float:
        return left + (value - xs[0]) / (xs[-1] - xs[0]) * wide

    def y(value: float) -> float:
        return TOP + (ys[-1] - value) / (ys[-1] - ys[0]) * high

    for tick in ys:
        parts.append(f'<path d="M{left:.1f} {y(tick):.1f}h{wide:.1f}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{left - 6:.1f}" y="{y(tick) + 4:.1f}" text-anchor="end" fill="{MUTED}">{tick:g}</text>')
    for tick in xs:
        parts.append(
            f'<text x="{x(tick):.1f}" y="{TOP + high + 17}" text-anchor="middle" fill="{MUTED}">{tick:g}</text>'
        )
    parts.append(
        f'<text x="{left + wide:.1f}" y="{TOP + high + 34}" text-anchor="end" fill="{MUTED}">'
        f"{escape(panel.axis)}</text>"
    )
    for number, (line, curve) in enumerate(curves):
        path = " ".join(f"{x(point[0]):.1f},{y(point[1]):.1f}" for point in curve)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2"/>')
        for cost, mean, low, top in curve:
            parts.append(
                f'<path d="M{x(cost):.1f} {y(low):.1f}V{y(top):.1f}" stroke="{line.colour}" stroke-width="1.2"/>'
            )
            parts.append(f'<circle cx="{x(cost):.1f}" cy="{y(mean):.1f}" r="4" fill="{line.colour}" stroke="{PAPER}"/>')
        at = (left + (number % 2) * wide / 2, TOP + high + 56 + 19 * (number // 2))
        parts.append(f'<circle cx="{at[0] + 5:.1f}" cy="{at[1] - 4:.1f}" r="4" fill="{line.colour}"/>')
        parts.append(f'<text x="{at[0] + 14:.1f}" y="{at[1]:.1f}" fill="{INK}">{escape(line.name)}</text>')
    if panel is PANELS[0]:
        parts.append(f'<text x="{left - 40:.0f}" y="{TOP - 8}" fill="{MUTED}">PSNR to the same weights, dB</text>')
    return parts


def _curve(method: str, cost: str, rows: pd.DataFrame, known: pd.DataFrame, scale: float) -> np.ndarray:
    """(cost, mean, low, high) of each setting by rising cost; exact copies (clipped at 100 dB) are no quality."""
    mine = rows[rows["method"] == method]
    if mine.empty or known.empty:
        return np.empty((0, 4))
    table = known[known["method"] == method].merge(
        mine.groupby("setting", sort=False)[cost].mean().reset_index(), on="setting"
    )
    table = table[(table["mean"] < 99.0) & np.isfinite(table[cost])].sort_values(cost)
    return table.assign(cost=table[cost] * scale)[["cost", "mean", "low", "high"]].to_numpy(float)


def _ticks(low: float, high: float, most: int = 6) -> Sequence[float]:
    """Round numbers around low … high."""
    span = max(high - low, 1e-9)
    step = next(step for step in (0.5, 1, 2, 5, 10, 20, 50, 100) if span / step <= most)
    first, last = np.floor(low / step), max(np.ceil(high / step), np.floor(low / step) + 1)
    return [float(number * step) for number in np.arange(first, last + 1)]
