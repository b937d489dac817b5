"""The quality sweep's rows → one point per (method, setting), with confidence intervals.

`assets/quality/frontier.parquet` has one row per run: method, setting (JSON), prompt, seed, psnr, ssim,
flicker, prompt_accuracy, seconds, bits, bits_computed, skipped; `seconds_device` where times were taken alone.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from engine.methods import EXTENSIONS, OURS
from engine.settings import PRESETS, Policy
from engine.sweep import COLUMNS, summary

QUALITIES = ("psnr", "ssim", "prompt_accuracy", "flicker")
COSTS = ("seconds", "bits", "bits_computed", "skipped")
LOWER_IS_BETTER = ("flicker", "seconds", "bits", "bits_computed")
REFERENCES = ("fp16", "stock")
EXACT = 99.9          # dB: the reference against itself, clipped to a number by the summary


class Points(NamedTuple):
    """table: method, setting, cost, mean, low, high, runs, ours, sorted by method and cost.

    reference: the untouched model's (cost, quality), NaN where it was not measured; quality, cost: column names.
    """

    table: pd.DataFrame
    reference: tuple[float, float]
    quality: str
    cost: str


class Sweep:
    """The sweep's rows, with what is expensive about them (bootstrap intervals) computed once per question."""

    def __init__(self, rows: pd.DataFrame):
        self.rows = rows
        self._summaries: dict[str, pd.DataFrame] = {}

    def summary(self, quality: str) -> pd.DataFrame:
        """`engine.sweep.summary` of one measure: method, setting, mean, low, high, runs."""
        if quality not in self._summaries:
            self._summaries[quality] = summary(self.rows, quality)
        return self._summaries[quality]

    @cached_property
    def ablation(self) -> pd.DataFrame:
        """The table of `ablation`."""
        return ablation(self)

    @cached_property
    def timed_on(self) -> str:
        """The device on which `seconds` were taken alone; "" where they were not."""
        known = self.rows["seconds_device"].dropna() if "seconds_device" in self.rows else []
        return str(known.iloc[0]) if len(known) else ""

    @cached_property
    def threads(self) -> int:
        """Threads of each process that was timed; 1 where the rows do not say."""
        known = self.rows["threads"].dropna() if "threads" in self.rows else []
        return int(known.iloc[0]) if len(known) else 1

    @cached_property
    def prompts(self) -> int:
        """How many different prompts were run."""
        return self.rows["prompt"].nunique() if len(self.rows) else 0


def read(path: Path) -> pd.DataFrame:
    """The sweep's rows; an empty table where there is no such file or it is no sweep."""
    empty = pd.DataFrame(columns=list(COLUMNS))
    if not path.is_file():
        return empty
    try:
        rows = pd.read_parquet(path)
    except (OSError, ValueError):
        return empty
    return rows if set(COLUMNS) <= set(rows.columns) else empty


def policy_of(method: str, setting: str) -> Policy | None:
    """The policy behind a point of ours: the preset `method`, changed by the policy fields in `setting`.

    None for a peer, whose method is no policy of this engine.
    """
    if method not in PRESETS:
        return None
    try:
        given = json.loads(setting or "{}")
        changes = (
            {k: v for k, v in given.items() if k in Policy.__dataclass_fields__} if isinstance(given, dict) else {}
        )
        return Policy.from_dict({**PRESETS[method].to_dict(), **changes})
    except ValueError:
        return None


def simulated(method: str, device: str) -> bool:
    """Whether `method`'s arithmetic was simulated on `device` ("cpu", "cuda" or a card's name).

    4-bit products were, on everything measured so far (no card with FP4 tensor cores is among it); a CPU sums the
    INT8 codes in float32 too.
    """
    preset = OURS.get(method.removesuffix("_host"))
    precision = PRESETS[preset].precision if preset else ""
    return precision in ("dynamic", "nvfp4") or (device == "cpu" and precision == "int8")


def points(sweep: Sweep, quality: str, cost: str) -> Points:
    """One point per method and setting: mean quality with its 95 % bootstrap interval over runs, mean cost."""
    nothing = pd.DataFrame(columns=["method", "setting", "cost", "mean", "low", "high", "runs", "ours"])
    rows = sweep.rows
    if rows.empty:
        return Points(nothing, (float("nan"), float("nan")), quality, cost)
    quality_of = sweep.summary(quality)
    costs = rows.groupby(["method", "setting"], sort=False)[cost].mean().rename("cost").reset_index()
    table = quality_of.merge(costs, on=["method", "setting"])
    table["ours"] = table["method"].isin([*PRESETS, *EXTENSIONS])
    known = table[table["method"].isin(REFERENCES)]
    reference = (
        (float("nan"), float("nan")) if known.empty else (float(known["cost"].iloc[0]), float(known["mean"].iloc[0]))
    )
    table = table[~table["method"].isin(REFERENCES)]
    table = table[np.isfinite(table["mean"]) & np.isfinite(table["cost"])]
    table = table.sort_values(["ours", "method", "cost"], kind="stable").reset_index(drop=True)
    return Points(table, reference, quality, cost)


def unbeaten(found: Points) -> pd.Series:
    """bool per row: no *peer* is at least as good in both quality and cost and better in one."""
    up = -1.0 if found.quality in LOWER_IS_BETTER else 1.0
    right = 1.0 if found.cost in LOWER_IS_BETTER else -1.0
    mean, cost = found.table["mean"].to_numpy() * up, found.table["cost"].to_numpy() * right
    peer = ~found.table["ours"].to_numpy(bool)
    better = (mean[None] >= mean[:, None]) & (cost[None] <= cost[:, None])
    strictly = (mean[None] > mean[:, None]) | (cost[None] < cost[:, None])
    return pd.Series(~(better & strictly & peer[None]).any(axis=1), index=found.table.index)


def ablation(sweep: Sweep) -> pd.DataFrame:
    """One row per preset, in the paper's order: method, setting, runs, and mean, low, high of every measure.

    A preset that was swept is shown at its own thresholds; if those were not run, at the setting with most runs.
    """
    rows, out = sweep.rows, []
    for method, preset in PRESETS.items():
        mine = rows[rows["method"] == method]
        if mine.empty:
            continue
        settings = list(dict.fromkeys(mine["setting"]))
        own = [s for s in settings if same_rules(policy_of(method, s), preset)]
        chosen = own[0] if own else max(settings, key=lambda s: int((mine["setting"] == s).sum()))
        mine = mine[mine["setting"] == chosen]
        row: dict[str, object] = {"method": method, "setting": chosen, "runs": len(mine)}
        for name in (*QUALITIES, *COSTS):
            known = sweep.summary(name)
            known = known[(known["method"] == method) & (known["setting"] == chosen)]
            row[name] = tuple(known[["mean", "low", "high"]].iloc[0]) if len(known) else (float("nan"),) * 3
        out.append(row)
    return pd.DataFrame(out)


def same_rules(policy: Policy | None, preset: Policy) -> bool:
    """Equal but for the note of how many steps it was tuned at."""
    if policy is None:
        return False
    mine, theirs = policy.to_dict(), preset.to_dict()
    return all(mine[name] == theirs[name] for name in theirs if name != "tuned_steps")
