"""What a knob cuts: the histogram of its signal, drawn behind the knob.

A person sees at once how many values lie on either side before moving anything. The bars are drawn by the browser
as plain SVG (they are recoloured at every pixel of a drag), so this returns numbers and no figure.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.figures.grid import Grid
from engine.settings import RANGES, Policy

BINS = 56
LEAST = {"error_threshold": 0.05, "tdc_threshold": 0.05, "outlier_threshold": 10.0}      # the shortest scales


class Knob(NamedTuple):
    """One knob: heights 0 … 1 of BINS equal bins from `low` to `high`, and how many values there are."""

    name: str
    low: float
    high: float
    heights: list[float]
    count: int
    beyond: int            # values above `high`, not drawn


def knob(name: str, values: np.ndarray, own: float, current: float) -> Knob:
    """The histogram of one signal. The scale reaches past the 95th percentile and well past the run's `own` setting;
    the few values beyond are counted, so that they do not press the rest into a corner.

    A scale that moves under a hand runs away from it: `current` widens it only where it lies beyond (a preset, a file),
    and a round end contains itself, so that no place of the knob on its own scale widens that scale.
    """
    seen, (low, most) = values[np.isfinite(values)], RANGES[name]
    top = max(1.15 * float(np.percentile(seen, 95)) if seen.size else 0.0, own * 1.4, LEAST[name])
    high = min(max(_round_up(top), _round_up(current)), most)
    counts, _ = np.histogram(seen, bins=BINS, range=(low, high))
    peak = counts.max() if seen.size and counts.max() else 1
    heights = np.round(np.sqrt(counts / peak), 3)      # square root: rare values stay visible
    return Knob(name, low, high, heights.tolist(), int(seen.size), int((seen > high).sum()))


def knobs(signals: Grid, own: Policy, wish: Policy) -> list[Knob]:
    """The three knobs of the Lab on the signals of one run; `own` is the run's policy, `wish` what the knobs show."""
    cut = {"error_threshold": signals.predicted, "tdc_threshold": signals.drift, "outlier_threshold": signals.outlier}
    return [knob(name, values, getattr(own, name), getattr(wish, name)) for name, values in cut.items()]


def _round_up(value: float) -> float:
    """The next of 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8 times a power of ten: round ends for a scale."""
    if value <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(value))
    for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10):
        if value <= step * power * (1 + 1e-9):
            return float(round(step * power, 6))
    return float(10 * power)
