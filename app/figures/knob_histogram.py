"""What a knob cuts: the histogram of its signal, drawn behind the knob.

A person sees at once how many values lie on either side before moving anything. The bars are drawn by the browser
as plain SVG (they are recoloured at every pixel of a drag), so this returns numbers and no figure.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.figures.grid import Grid

BINS = 56


class Knob(NamedTuple):
    """One knob: heights 0 … 1 of BINS equal bins from `low` to `high`, and how many values there are."""

    name: str
    low: float
    high: float
    heights: list[float]
    count: int
    beyond: int            # values above `high`, not drawn


def knob(name: str, values: np.ndarray, current: float, least: float) -> Knob:
    """The histogram of one signal. The scale reaches past the 95th percentile and well past the current
    setting; the few values beyond are counted, so that they do not press the rest into a corner."""
    seen = values[np.isfinite(values)]
    top = max(1.15 * float(np.percentile(seen, 95)) if seen.size else 0.0, current * 1.4, least)
    high = _round_up(top)
    counts, _ = np.histogram(seen, bins=BINS, range=(0.0, high))
    peak = counts.max() if seen.size and counts.max() else 1
    heights = np.round(np.sqrt(counts / peak), 3)      # square root: rare values stay visible
    return Knob(name, 0.0, high, heights.tolist(), int(seen.size), int((seen > high).sum()))


def knobs(signals: Grid, error_threshold: float, tdc_threshold: float, outlier_threshold: float) -> list[Knob]:
    """The three knobs of the Lab on the signals of one run."""
    return [
        knob("error_threshold", signals.predicted, error_threshold, 0.05),
        knob("tdc_threshold", signals.drift, tdc_threshold, 0.05),
        knob("outlier_threshold", signals.outlier, outlier_threshold, 10.0),
    ]


def _round_up(value: float) -> float:
    """The next of 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8 times a power of ten: round ends for a scale."""
    if value <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(value))
    for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10):
        if value <= step * power * (1 + 1e-9):
            return float(round(step * power, 6))
    return float(10 * power)
