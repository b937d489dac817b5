"""Lesson 4, does yesterday predict today? Γ of the previous step against the 4-bit error measured now."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from app.figures.grid import Grid

HIT_FOUR, HIT_EIGHT, WASTE, MISS = "hit_four", "hit_eight", "waste", "miss"
VERDICTS = (HIT_FOUR, HIT_EIGHT, WASTE, MISS)


class Forecast(NamedTuple):
    """One layer group of one block. points: step, gamma (Γ before), error (e₄ measured), predicted, verdict.

    alpha, beta, r2: the line through these points; counts: verdict -> number of steps.
    """

    points: pd.DataFrame
    alpha: float
    beta: float
    r2: float
    counts: dict[str, int]


def line(gamma: np.ndarray, error: np.ndarray) -> tuple[float, float, float]:
    """Least squares error ~ alpha·gamma + beta -> (alpha, beta, R²); a flat or single point gives its mean."""
    spread = float(((gamma - gamma.mean()) ** 2).sum()) if len(gamma) else 0.0
    if not len(gamma):
        return float("nan"), float("nan"), float("nan")
    mean = float(error.mean())
    total = float(((error - mean) ** 2).sum())
    if len(gamma) < 3 or spread <= 1e-12:
        return 0.0, mean, 0.0
    alpha = float(((gamma - gamma.mean()) * (error - mean)).sum()) / spread
    beta = mean - alpha * float(gamma.mean())
    left = float(((error - alpha * gamma - beta) ** 2).sum())
    return alpha, beta, 1.0 - left / total if total > 1e-18 else 0.0


def pairs(grid: Grid, block: int, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(step, gamma, error): Γ of the step before beside the error of this one, where both were measured."""
    gamma, error = grid.gamma[block, :-1], grid.error_nvfp4[block, 1:, group]
    seen = np.isfinite(gamma) & np.isfinite(error)
    return np.arange(1, grid.steps)[seen], gamma[seen], error[seen]


def facts(grid: Grid, block: int, group: int, threshold: float) -> Forecast:
    """The lesson for block number `block` and group number `group` (positions in the grid)."""
    step, gamma, error = pairs(grid, block, group)
    alpha, beta, r2 = line(gamma, error)
    predicted = alpha * gamma + beta
    four, small = predicted <= threshold, error <= threshold
    verdict = np.select([four & small, ~four & ~small, ~four & small], VERDICTS[:3], MISS)
    columns = {"step": step, "gamma": gamma, "error": error, "predicted": predicted, "verdict": verdict}
    points = pd.DataFrame(columns)
    return Forecast(points, alpha, beta, r2, {name: int((verdict == name).sum()) for name in VERDICTS})


def fits(grid: Grid) -> pd.DataFrame:
    """The line of every group of every block: block, group (positions), alpha, beta, r2, samples."""
    rows = []
    for block in range(len(grid.blocks)):
        for group in range(len(grid.groups)):
            _, gamma, error = pairs(grid, block, group)
            if len(gamma) >= 3:
                rows.append((block, group, *line(gamma, error), len(gamma)))
    return pd.DataFrame(rows, columns=["block", "group", "alpha", "beta", "r2", "samples"])


def telling(grid: Grid, lines: pd.DataFrame, threshold: float) -> tuple[int, int]:
    """Positions (block, group) of the layer to begin with: one that the forecast splits into 4 and 8 bits.

    Among those with at least a fifth of the steps on either side, the best explained one; without any, the best
    explained line that slopes down.
    """
    split = np.zeros(len(lines))
    for i, row in enumerate(lines.itertuples()):
        _, gamma, _ = pairs(grid, int(row.block), int(row.group))
        four = float((row.alpha * gamma + row.beta <= threshold).mean())
        split[i] = min(four, 1.0 - four)
    r2 = lines["r2"].to_numpy()
    chosen = r2 * (split >= 0.2) if (split >= 0.2).any() else r2 * (lines["alpha"].to_numpy() < 0)
    best = lines.iloc[int(np.argmax(chosen))]
    return int(best["block"]), int(best["group"])


def totals(grid: Grid, lines: pd.DataFrame, threshold: float) -> dict[str, int]:
    """All groups together: verdict -> number of decisions at this threshold, each by its own line."""
    at = lines["block"].to_numpy(int), lines["group"].to_numpy(int)
    gamma = grid.gamma[at[0], :-1]
    error = grid.error_nvfp4[at[0], 1:, at[1]]
    seen = np.isfinite(gamma) & np.isfinite(error)
    four = seen & (lines["alpha"].to_numpy()[:, None] * gamma + lines["beta"].to_numpy()[:, None] <= threshold)
    eight, small = seen & ~four, error <= threshold
    cells = (four & small, eight & ~small, eight & small, four & ~small)
    return {name: int(where.sum()) for name, where in zip(VERDICTS, cells, strict=True)}
