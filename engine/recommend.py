"""From measured rows to defaults: where does the curve of quality over savings bend?

The rule: sort the settings by what they save, keep those that no other beats in both, and take the one farthest above
the chord from the first to the last (both axes scaled to 0 … 1). Beyond the bend a further saving costs more quality
than it did before. Quality never falls below `floor`, a loss that one has to accept knowingly.
"""

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd

from engine.sweep import summary


def front(saving: Sequence[float], quality: Sequence[float]) -> np.ndarray:
    """Indices of the settings that no other beats in both saving and quality, by rising saving."""
    saving, quality = np.asarray(saving, float), np.asarray(quality, float)
    order = np.lexsort((-quality, -saving))
    kept, best = [], -np.inf
    for index in order:
        if quality[index] > best:
            kept.append(index)
            best = quality[index]
    return np.array(kept[::-1], dtype=int)


def bend(saving: Sequence[float], quality: Sequence[float], floor: float = -np.inf) -> int:
    """Index of the setting at the bend. Raises ValueError if every quality is below `floor`."""
    saving, quality = np.asarray(saving, float), np.asarray(quality, float)
    allowed = np.flatnonzero(quality >= floor)
    if len(allowed) == 0:
        raise ValueError(f"No setting reaches a quality of {floor:g}; the best is {quality.max():g}.")
    kept = allowed[front(saving[allowed], quality[allowed])]
    if len(kept) < 3:
        return int(kept[-1])
    x, y = saving[kept], quality[kept]
    width, height = x[-1] - x[0], y[0] - y[-1]
    above = (x - x[0]) / width + (y - y[-1]) / height
    return int(kept[int(np.argmax(above))])


def table(
    rows: pd.DataFrame, metrics: Sequence[str] = ("psnr", "ssim", "same_ticks", "prompt_accuracy")
) -> pd.DataFrame:
    """One line per (method, setting): means with 95 % intervals of `metrics`, means of what was spent."""
    found = None
    for metric in [name for name in metrics if name in rows.columns]:
        part = summary(rows, metric).rename(columns={"mean": metric, "low": f"{metric}_low", "high": f"{metric}_high"})
        part = part.drop(columns="runs") if found is not None else part
        found = part if found is None else found.merge(part, on=["method", "setting"], how="left")
    spent = [name for name in ("bits", "bits_computed", "skipped", "purified", "predictor_share", "seconds", "flicker",
                               "error_threshold") if name in rows.columns]  # fmt: skip
    means = rows.groupby(["method", "setting"], sort=False)[spent].mean().reset_index()
    return found.merge(means, on=["method", "setting"], how="left")


def recommend(lines: pd.DataFrame, method: str, field: str, saving: str = "skipped", quality: str = "psnr") -> dict:
    """The value of `field` at the bend among the `lines` (from `table`) of `method` that set nothing but it
    (and a fixed error_threshold).

    Returns field, value, saving, quality, and the curve that was looked at; {} where fewer than two points exist.
    """
    curve = []
    for _, line in lines[lines["method"] == method].iterrows():
        values = json.loads(line["setting"])
        if field in values and set(values) <= {field, "error_threshold"}:
            spent = line[saving] if saving == "skipped" else -line[saving]
            curve.append((values[field], float(spent), float(line[quality])))
    if len(curve) < 2:
        return {}
    curve.sort(key=lambda point: point[1])
    at = bend([point[1] for point in curve], [point[2] for point in curve])
    return {"method": method, "field": field, "value": curve[at][0], "saving": curve[at][1], "quality": curve[at][2],
            "curve": curve}  # fmt: skip
