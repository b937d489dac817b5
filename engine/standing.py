"""Who is better at equal cost? One method against another on the same prompts, with paired intervals. No torch.

Two methods are swept over different knobs, so their settings never cost the same. A setting of one is compared with
the other's quality at that very cost, interpolated between its two neighbouring settings, prompt by prompt; the
interval is a bootstrap over prompts of the differences. Costs outside the other's range are not compared. Runs on
different devices are never paired: the same seed in bfloat16 on a GPU and in float32 on a CPU gives clips that differ
more than two methods do.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from engine.theory import pair_keys

DUELS: tuple[tuple[str, str, str], ...] = (
    ("tdc", "first_block_cache", "skipped"),
    ("tdc_extrapolated", "first_block_cache", "skipped"),
    ("tdc_extrapolated", "taylorseer", "skipped"),
    ("tdc_extrapolated", "mag_cache", "skipped"),
    ("tdc", "mag_cache", "skipped"),
    ("tdc_extrapolated", "tdc", "skipped"),
    ("int8_tdc", "w4a8_first_block_cache", "skipped"),
    ("int8_tdc_extrapolated", "w4a8_first_block_cache", "skipped"),
    ("int8_tdc_extrapolated", "int8_tdc", "skipped"),
    ("sixbit", "w4a8_first_block_cache", "skipped"),
    ("sixbit", "w4a8_first_block_cache", "bits"),
    ("sixbit", "int8_tdc", "bits"),
    ("sixbit", "dmpq_tdc", "bits"),
    ("sixbit_lean", "sixbit", "bits"),
    ("sixbit_lean", "int8_tdc", "bits"),
    ("sixbit_extended", "sixbit", "bits"),
    ("sixbit_extended", "int8_tdc_extrapolated", "bits"),
    ("sixbit_extended", "w4a8_first_block_cache", "bits"),
    ("dmpq_tdc_sensitive", "int8_tdc", "bits"),
    ("dmpq_tdc_sensitive", "int8_tdc_extrapolated", "bits"),
    ("dmpq_tdc_sensitive", "dmpq_tdc", "bits"),
    ("dmpq_tdc_sensitive", "w4a8_first_block_cache", "bits"),
    ("sixbit_sensitive", "sixbit", "bits"),
    ("sixbit_sensitive", "int8_tdc", "bits"),
    ("dmpq", "static_mix", "bits_computed"),
    ("dmpq", "static_sensitive", "bits_computed"),
    ("dmpq", "dmpq_sensitive", "bits_computed"),
    ("dmpq", "dmpq_weighted", "bits_computed"),
    ("dmpq_sensitive", "static_sensitive", "bits_computed"),
)
"""(method, rival, at equal what): cache rule against cache rule, bit rule against bit rule."""

COLUMNS = ("method", "rival", "equal", "quality", "at", "setting", "of", "prompts", "gain", "low", "high")


def standing(
    rows: pd.DataFrame, duels: Sequence[tuple[str, str, str]] = DUELS,
    qualities: Sequence[str] = ("psnr", "psnr_same_weights", "ssim", "same_ticks"),
) -> pd.DataFrame:  # fmt: skip
    """One row per duel, quality and setting at which both can be compared.

    rows: of the frontier, one per (method, setting, prompt, seed). Columns of the result: method, rival; equal: the
    cost that is equal, and `at` its value; setting: the one that was run, `of` the method whose it is (the other side
    is interpolated); gain: mean over prompts of method − rival, with its 95 % interval low … high.
    """
    found = []
    for method, rival, cost in duels:
        for quality in (name for name in qualities if name in rows):
            sides = {name: _curve(rows, name, cost, quality) for name in (method, rival)}
            for of, other, sign in ((method, rival, 1.0), (rival, method, -1.0)):
                for at, setting, values in sides[of]:
                    expected = _at(sides[other], at)
                    gains = sign * (values - expected).dropna() if expected is not None else ()
                    if len(gains):
                        found.append((method, rival, cost, quality, at, setting, of, len(gains), *_interval(gains)))
    return pd.DataFrame(found, columns=list(COLUMNS))


def _curve(rows: pd.DataFrame, method: str, cost: str, quality: str) -> list[tuple[float, str, pd.Series]]:
    """(mean cost, setting, quality by prompt, seed and device) of each setting, by rising cost."""
    curve, keys = [], pair_keys(rows)
    for setting, group in rows[rows["method"] == method].groupby("setting", sort=False):
        values = group.set_index(keys)[quality].astype(float).clip(upper=100.0).dropna()
        if len(values):
            curve.append((float(group[cost].mean()), str(setting), values))
    return sorted(curve, key=lambda point: point[0])


def _at(curve: list[tuple[float, str, pd.Series]], cost: float, slack: float = 0.01) -> pd.Series | None:
    """Quality by prompt at `cost`, on the line between the neighbouring settings; None outside the curve.

    A point within a hundredth of `cost` stands for it, so that a method with one setting can be met.
    """
    near = [point for point in curve if abs(point[0] - cost) <= slack * max(abs(cost), 1e-12)]
    if near:
        return min(near, key=lambda point: abs(point[0] - cost))[2]
    for (low, _, before), (high, _, after) in zip(curve, curve[1:]):
        if low < cost < high:
            share = (cost - low) / (high - low)
            return before * (1 - share) + after * share
    return None


def _interval(gains: pd.Series, resamples: int = 1000, seed: int = 0) -> tuple[float, float, float]:
    values = gains.to_numpy(float)
    means = np.random.default_rng(seed).choice(values, (resamples, len(values))).mean(1)
    return float(values.mean()), *(float(bound) for bound in np.quantile(means, [0.025, 0.975]))
