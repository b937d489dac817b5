"""Which layers mind 4 bits at the model's own output, and did the policy spare them?

`assets/quality/sensitivity.parquet` (from `python -m engine theory --layers n`) has one row per model, block, layer,
step and precision: `output_error`, the relative error of the whole transformer with that one group quantized.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from engine.trace import Trace

NEEDED = {"block", "layer", "step", "precision", "output_error"}
QUARTER = 0.25


class Sensitivity(NamedTuple):
    """errors: (rows, steps) of 4-bit output error; rows: (block, layer) in running order; steps: 0-based.

    four: bool (rows, steps), the run took 4 bits there (all False without a run); touchy: of the most sensitive
    quarter of the cells that the run computed, the share that took 4 bits; robust: of the least sensitive quarter,
    the share that took more. NaN without a run.
    """

    errors: np.ndarray
    rows: list[tuple[int, str]]
    steps: list[int]
    four: np.ndarray
    touchy: float
    robust: float


def read(path: Path) -> pd.DataFrame | None:
    """The table, or None where it is absent or no such table."""
    if not path.is_file():
        return None
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError):
        return None
    return table if NEEDED <= set(table.columns) and (table["precision"] == "nvfp4").any() else None


def facts(measured: pd.DataFrame, run: Trace | None) -> Sensitivity:
    """The 4-bit sensitivities beside what `run` chose for the same cells (first branch, last call)."""
    cells = measured[measured["precision"] == "nvfp4"]
    layers = list(dict.fromkeys(cells["layer"]))
    rows = [(int(block), layer) for block in sorted(cells["block"].unique()) for layer in layers]
    steps = sorted(int(step) for step in cells["step"].unique())
    wide = cells.pivot_table(index=["block", "layer"], columns="step", values="output_error").reindex(rows)
    errors = wide.reindex(columns=steps).to_numpy(float)
    chosen = _chosen(run, rows, steps)
    four, computed = chosen == "nvfp4", (chosen != "") & (chosen != "skipped") & np.isfinite(errors)
    touchy = robust = float("nan")
    if computed.sum() >= 4:
        low, high = np.quantile(errors[computed], [QUARTER, 1 - QUARTER])
        touchy = float(four[computed & (errors >= high)].mean())
        robust = float((~four)[computed & (errors <= low)].mean())
    return Sensitivity(errors, rows, steps, four, touchy, robust)


def _chosen(run: Trace | None, rows: list[tuple[int, str]], steps: list[int]) -> np.ndarray:
    """The precision of each cell, "" where the run has none."""
    out = np.full((len(rows), len(steps)), "", dtype=object)
    if run is None or run.layers.empty:
        return out
    table = run.layers
    first = table.iloc[0]
    table = table[(table["model"] == first["model"]) & (table["branch"] == first["branch"])]
    table = table[(table["call"] == table["call"].max()) & table["step"].isin(steps)]
    at_row, at_step = {key: i for i, key in enumerate(rows)}, {step: i for i, step in enumerate(steps)}
    for block, layer, step, precision in zip(
        table["block"], table["layer"], table["step"], table["precision"], strict=True
    ):
        if (block, layer) in at_row:
            out[at_row[(block, layer)], at_step[step]] = precision
    return out
