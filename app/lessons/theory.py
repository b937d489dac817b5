"""The quality lab's theory tables, as far as the lessons use them.

`python -m engine theory` writes them to assets/quality: `theory_rotation` (error of every layer with and without
the Hadamard rotation), `theory_predictor` (R² of the predictor's lines, also on unseen prompts) and `theory_reuse`
(what purifying buys at each reuse tolerance). Each may be absent; a lesson then says only what its recording shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pandas as pd

COLUMNS = {
    "theory_rotation": {"quantized", "precision", "layer", "rotated", "error"},
    "theory_predictor": {"alpha", "r2", "r2_held_out"},
    "theory_reuse": {"tdc_threshold", "psnr", "psnr_low", "psnr_high", "prompts"},
}


class Theory(NamedTuple):
    """The three tables, each None where it was not measured."""

    rotation: pd.DataFrame | None = None
    predictor: pd.DataFrame | None = None
    reuse: pd.DataFrame | None = None


def read(folder: Path) -> Theory:
    """Read what is there; a file that is no such table counts as absent."""
    return Theory(*(_table(folder / f"{name}.parquet", wanted) for name, wanted in COLUMNS.items()))


def rotation_errors(measured: pd.DataFrame) -> pd.DataFrame:
    """`theory_rotation` in the form of `lessons.rotation.table`: group, format, plain, rotated, tokens.

    `tokens` counts the measurements behind a mean: blocks x steps.
    """
    rows = measured[(measured["quantized"] == "activations") & measured["precision"].isin(("int8", "nvfp4"))]
    grouped = rows.groupby(["layer", "precision", "rotated"], sort=False)["error"]
    wide = grouped.mean().unstack("rotated").rename(columns={False: "plain", True: "rotated"})
    counts = grouped.size().unstack("rotated")[True].rename("tokens")
    table = wide.join(counts).reset_index().rename(columns={"layer": "group", "precision": "format"})
    return table[["group", "format", "plain", "rotated", "tokens"]].rename_axis(columns=None)


def _table(path: Path, wanted: set[str]) -> pd.DataFrame | None:
    if not path.is_file():
        return None
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError):
        return None
    return table if wanted <= set(table.columns) and len(table) else None
