"""Real tokens for the lessons on number formats: rows of values as they reach a quantized layer.

Two sources. `assets/lessons/tokens.parquet` holds whole tokens captured from the embedded model
(`python -m app.lessons.capture` made it). Without that file the probe trace's samples serve: each
is one real block of 16 values, and eight of a layer, from eight steps, are laid side by side as a
stand-in for a token of 128; `source` says which, and so does the page.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from app.lessons import numbers

CAPTURED, SAMPLES = "captured", "samples"
LINED_UP = 8


class Token(NamedTuple):
    """float32 (K,) values of one token at the input of one layer group, before any rotation."""

    values: np.ndarray
    group: str
    block: int
    step: int
    source: str


def read_tokens(path: Path) -> list[Token]:
    """Captured tokens, or none where the file is absent or unreadable (the lessons then use samples)."""
    if not path.is_file():
        return []
    try:
        table = pd.read_parquet(path)
        return [
            Token(np.asarray(row.values_, np.float32), str(row.group), int(row.block), int(row.step), CAPTURED)
            for row in table.rename(columns={"values": "values_"}).itertuples()
        ]
    except (OSError, ValueError, AttributeError, TypeError):
        return []


def from_samples(layers: pd.DataFrame) -> list[Token]:
    """Stand-in tokens of 128 values from a probe trace's `sample` column (lists of 16, or None)."""
    if layers.empty or "sample" not in layers:
        return []
    seen = layers[layers["sample"].notna()]
    found = []
    for (group, block), rows in seen.groupby(["layer", "block"], sort=False):
        rows = rows.sort_values("step")
        picked = rows.iloc[np.unique(np.linspace(0, len(rows) - 1, LINED_UP).round().astype(int))]
        if len(picked) == LINED_UP:
            values = np.concatenate([np.asarray(s, np.float32) for s in picked["sample"]])
            if np.isfinite(values).all() and values.any():
                found.append(Token(values, str(group), int(block), int(picked["step"].iloc[0]), SAMPLES))
    return found


def groups(tokens: list[Token]) -> list[str]:
    """The layer groups that have tokens, in the order in which they run."""
    return list(dict.fromkeys(token.group for token in tokens))


def calmest(tokens: list[Token]) -> Token | None:
    """The token with the smallest max/mean: the one on which a dragged outlier shows most."""
    usable = [token for token in tokens if len(token.values) % numbers.BLOCK == 0]
    return min(usable, key=lambda token: numbers.outlier_ratio(token.values), default=None)


def wildest(tokens: list[Token], group: str) -> Token | None:
    """The token of a group with the largest max/mean."""
    own = [token for token in tokens if token.group == group]
    return max(own, key=lambda token: numbers.outlier_ratio(token.values), default=None)
