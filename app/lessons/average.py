"""Lesson 1, a step is not a frame: what "6 bits" averages over, step by step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.figures.grid import BITS, NOTHING, Grid

SIZES = (0, 4, 8, 16)


class Average(NamedTuple):
    """shares: (S, 4), the part of a step's arithmetic at 0, 4, 8 and 16 bits; by_step: (S,) mean bits;
    totals: (4,) over the run; bits, bits_computed: means with and without the skipped part (engine.cost's)."""

    shares: np.ndarray
    by_step: np.ndarray
    totals: np.ndarray
    bits: float
    bits_computed: float


def facts(grid: Grid) -> Average:
    """Bits over the steps of one run, weighted by multiply-accumulates; a run without rows gives NaN."""
    bits = BITS[grid.decision]
    known = grid.decision != NOTHING
    weight = np.where(known, np.where(np.isfinite(grid.macs), grid.macs, 1.0), 0.0)
    parts = np.stack([(weight * (bits == size)).sum(axis=(0, 2)) for size in SIZES], axis=1)
    totals, sizes = parts.sum(axis=0), np.array(SIZES, float)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = parts / parts.sum(axis=1, keepdims=True)
        return Average(
            shares, shares @ sizes, totals / totals.sum(),
            float(totals @ sizes / totals.sum()), float(totals[1:] @ sizes[1:] / totals[1:].sum()),
        )  # fmt: skip


def at_step(grid: Grid, step: int) -> dict[str, int]:
    """How the blocks of one step were spent: {"computed", "skipped"}."""
    skipped = int(grid.skipped[:, step].sum())
    return {"skipped": skipped, "computed": len(grid.blocks) - skipped}
