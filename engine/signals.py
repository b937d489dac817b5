"""Which signals a recording observed, and where: all that a replay may decide on.

* Γ(t) and r wherever the recording computed the block and measured them. A skipped cell has no Γ: a policy that
  computes there has none for the next step.
* c(t) only across the gap at which the recording measured it; in probe mode across 1, 2 and 3 steps. A policy that
  last computed at another step needs another c.
* A NaN where the recording's policy needed the signal *was* observed: the numbers were broken, and the rules decide
  on that as they did live ("signal not finite").
"""

from dataclasses import dataclass

import numpy as np

from engine.grid import Grid
from engine.records import NAN
from engine.settings import Policy, signals_needed
from engine.trace import Trace

PROBED_GAPS = (1, 2, 3)
"""Distances in steps over which probe mode measures the drift: the columns drift_1 … drift_3."""


@dataclass(frozen=True)
class Observed:
    """The recorded signals over (step, row[, group]), each with `…_seen`: whether it was observed at all."""

    step: np.ndarray
    steps: np.ndarray
    present: np.ndarray
    skipped: np.ndarray
    gap: np.ndarray
    gamma: np.ndarray
    gamma_seen: np.ndarray
    change: np.ndarray
    change_seen: np.ndarray
    drifts: np.ndarray
    ratio: np.ndarray
    ratio_seen: np.ndarray

    def change_across(self, t: int, gap: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """c at column t against the delta `gap` steps back, and whether it was observed."""
        as_recorded = self.change_seen[t] & (self.gap[t] == gap)
        value = np.where(as_recorded, self.change[t], NAN)
        for number, drift in zip(PROBED_GAPS, self.drifts[:, t], strict=True):
            value = np.where((gap == number) & np.isnan(value), drift, value)
        return value, as_recorded | ~np.isnan(value)


def observe(trace: Trace, grid: Grid) -> Observed:
    """Lay out the signals of a recording (not of a replay)."""

    def cells(name: str, absent: float | bool | int = NAN) -> np.ndarray:
        return grid.cells(trace.blocks[name].to_numpy(), absent)

    probe = trace.meta.probe
    needed = signals_needed(Policy.from_dict(trace.meta.policy)) if trace.meta.policy else frozenset()
    skipped, gamma, change = cells("skipped", True), cells("gamma"), cells("delta_change")
    ratio = grid.calls(trace.layers["outlier_ratio"].to_numpy(), NAN)
    # A NaN in a computed cell is an observation where the policy needed the signal, else a hole in the record.
    return Observed(
        step=cells("step", 0),
        steps=cells("steps", 1),
        present=grid.present,
        skipped=skipped,
        gap=cells("gap", 0),
        gamma=np.where(skipped, NAN, gamma),
        gamma_seen=~skipped & (probe or "gamma" in needed or ~np.isnan(gamma)),
        change=np.where(skipped, NAN, change),
        change_seen=~skipped & ("delta_change" in needed or ~np.isnan(change)),
        drifts=np.stack([cells(f"drift_{gap}") for gap in PROBED_GAPS]),
        ratio=ratio,
        ratio_seen=~skipped[:, :, None] & (probe or "outlier_ratio" in needed or ~np.isnan(ratio)),
    )
