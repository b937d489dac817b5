"""Benchmark tables of real-size models: `assets/benchmarks/<model>.csv`, one row per method and skipped share."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pandas as pd

NEEDED = ("method", "seconds_per_step")
COLUMNS = (
    "method",
    "skipped",
    "seconds_per_step",
    "peak_gb",
    "weights_gb",
    "cache_gb",
    "bits",
    "bits_computed",
    "device",
    "commit",
)
BASELINE = "stock"


class Benchmark(NamedTuple):
    """One file. rows: COLUMNS, plus `faster` = seconds of `stock` over one's own (NaN without a `stock` row)."""

    model: str
    device: str
    rows: pd.DataFrame


def read(folder: Path) -> list[Benchmark]:
    """All benchmark files of a folder, by name; files that are no such table are left out."""
    found = []
    for path in sorted(folder.glob("*.csv")):
        try:
            rows = pd.read_csv(path)
        except (OSError, ValueError):
            continue
        if rows.empty or not set(NEEDED) <= set(rows.columns):
            continue
        rows = rows.reindex(columns=[*COLUMNS, *[c for c in rows.columns if c not in COLUMNS]])
        for device, part in rows.groupby(rows["device"].astype(object).fillna(""), sort=False):
            found.append(Benchmark(path.stem, str(device), _with_speedup(part)))
    return found


def _with_speedup(rows: pd.DataFrame) -> pd.DataFrame:
    base = rows.loc[rows["method"] == BASELINE, "seconds_per_step"]
    reference = float(base.iloc[0]) if len(base) else float("nan")
    return rows.assign(faster=reference / rows["seconds_per_step"]).reset_index(drop=True)
