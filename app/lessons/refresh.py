"""Lesson 6, a copy of a copy: how much rounding error the cache passes on, with and without purifying."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from app.figures.grid import INT8, NVFP4, PURIFIED, W4A16, Grid, build
from engine.replay import replay
from engine.settings import Policy
from engine.trace import Trace


class Refresh(NamedTuple):
    """Facts of the lesson; every pair is (without, with) purifying.

    share: part of the computed arithmetic that purifying raised to 16 bits; bits: averages of what is computed;
    carried: total error handed on, each refresh counted once for its own step and once per later copy;
    alarm: rows (group, rings) = share of the group's computed calls with r above the limit;
    block, group: the layer (position in the grid) with the most purified calls; series: its kept error per step.
    """

    share: float
    bits: tuple[float, float]
    carried: tuple[float, float]
    alarm: pd.DataFrame
    block: int
    group: int
    series: tuple[np.ndarray, np.ndarray]

    @property
    def removed(self) -> float:
        """Share of the carried error that purifying removes; NaN where none was measured."""
        return 1.0 - self.carried[1] / self.carried[0] if self.carried[0] > 0 else float("nan")


def facts(probe: Trace, policy: Policy) -> Refresh:
    """Replay the probe with `policy`, once with PDR off and once on."""
    source = build(probe.blocks, probe.layers, None, probe.meta.steps or None)
    traces = [replay(probe, replace(policy, tdc=True, pdr=on)) for on in (False, True)]
    without, purified = (build(t.blocks, t.layers, None, probe.meta.steps or None) for t in traces)
    chosen = purified.decision == PURIFIED
    computed = ~purified.skipped[:, :, None] & (purified.decision > 1)
    weight = np.where(np.isfinite(purified.macs), purified.macs, 1.0)
    rings = computed & (source.outlier > policy.outlier_threshold)
    per_layer = chosen.sum(axis=1)
    block, group = np.unravel_index(int(per_layer.argmax()), per_layer.shape) if per_layer.size else (0, 0)
    kept = [kept_error(grid, source) for grid in (without, purified)]
    total = float((weight * computed).sum())
    return Refresh(
        share=float((weight * chosen).sum()) / total if total else float("nan"),
        bits=(traces[0].report.average_bits_computed, traces[1].report.average_bits_computed),
        carried=(float(np.nansum(kept[0])), float(np.nansum(kept[1]))),
        alarm=pd.DataFrame({
            "group": list(source.groups),
            "rings": [float(rings[:, :, g].sum() / max(1, computed[:, :, g].sum())) for g in range(len(source.groups))],
        }),
        block=int(block), group=int(group), series=(kept[0][block, :, group], kept[1][block, :, group]),
    )  # fmt: skip


def kept_error(grid: Grid, source: Grid) -> np.ndarray:
    """(B, S, G): the activation error in the delta that is in use at each step, as measured when it was computed.

    A 16-bit call rounds nothing here; a skipped step uses the error of the step it copies. NaN: not measured.
    """
    made = np.full(grid.shape, np.nan)
    for code, error in ((NVFP4, source.error_nvfp4), (INT8, source.error_int8)):
        made = np.where(grid.decision == code, error, made)
    made = np.where((grid.decision == PURIFIED) | (grid.decision == W4A16), 0.0, made)
    last = np.full((grid.shape[0], grid.shape[2]), np.nan)
    kept = np.empty(grid.shape)
    for step in range(grid.steps):
        last = np.where(grid.skipped[:, step, None], last, made[:, step])
        kept[:, step] = last
    return kept


class Measured(NamedTuple):
    """PSNR against FP16 over the same prompts, in dB: means without and with PDR, and the number of prompts."""

    without: float
    with_: float
    prompts: int


def measured(frontier: pd.DataFrame | None) -> Measured | None:
    """The quality sweep's own answer, paired over settings, prompts and seeds; None where it was not measured."""
    if frontier is None or frontier.empty:
        return None
    keys = ["setting", "prompt", "seed"]
    pair = [frontier[frontier["method"] == name] for name in ("dmpq_tdc", "sixbit")]
    if any(rows.empty for rows in pair):
        return None
    means = [rows.assign(psnr=rows["psnr"].clip(upper=100.0)).groupby(keys)["psnr"].mean() for rows in pair]
    joined = pd.concat(means, axis=1, keys=["without", "with_"]).dropna()
    if joined.empty:
        return None
    prompts = joined.index.get_level_values("prompt").nunique()
    return Measured(float(joined["without"].mean()), float(joined["with_"].mean()), prompts)
