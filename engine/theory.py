"""Does the paper's reasoning hold on this model? Probe traces in, tables out; no torch.

* `predictor`: does Γ(t−1) predict e₄? Slope, R², R² on prompts that the line has not seen, hits and misses.
* `drift_growth`: how alike are deltas 1, 2 and 3 steps apart, and which `gap` rule does their growth call for?
* `outliers`: how often does each group cross r > threshold, and is r high where the quantization error is?
* `reuse_gain`: what does the purified refresh buy as τ grows? What do `gap`, `resume`, warm-up do? From frontier rows.

What the Hadamard rotation does per layer needs the tensors themselves: `engine.sensitivity.rotation`.
"""

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd

from engine.trace import Trace

LAYER = ["model", "block", "layer"]
THRESHOLDS = (10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 60.0)


def predictor(probes: Sequence[Trace], error_threshold: float = 0.12) -> pd.DataFrame:
    """One row per group of each block: how well e₄(t) follows Γ(t−1).

    Columns: alpha, beta, r2 (least squares over all probes), r2_held_out (lines fitted on every other probe, judged
    on the rest; below 0 is worse than the mean), rank_correlation (Spearman), error_nvfp4, error_int8 (means),
    and the shares right, needless (8 bits where 4 were within `error_threshold`) and missed (4 where they were not).
    """
    rows = []
    for key, pairs in _pairs(probes).items():
        whole = np.concatenate([points for points in pairs if len(points)])
        if len(whole) < 3:
            continue
        x, y = whole[:, 0], whole[:, 1]
        alpha, beta = _line(x, y)
        predicted_high, high = alpha * x + beta > error_threshold, y > error_threshold
        rows.append({
            **dict(zip(LAYER, key)), "alpha": alpha, "beta": beta, "r2": _r2(y, alpha * x + beta),
            "r2_held_out": _held_out(pairs), "rank_correlation": _spearman(x, y), "samples": len(whole),
            "error_nvfp4": float(y.mean()), "error_int8": float(np.nanmean(whole[:, 2])),
            "right": float((predicted_high == high).mean()), "needless": float((predicted_high & ~high).mean()),
            "missed": float((~predicted_high & high).mean()),
        })  # fmt: skip
    return pd.DataFrame(rows)


def points(probes: Sequence[Trace]) -> pd.DataFrame:
    """The cloud behind `predictor`: model, block, layer, prompt, step, gamma_before, error_nvfp4, error_int8, r."""
    parts = [_joined(probe).assign(prompt=number) for number, probe in enumerate(probes)]
    table = pd.concat(parts, ignore_index=True)
    columns = [*LAYER, "prompt", "step", "gamma_before", "error_nvfp4", "error_int8", "outlier_ratio"]
    return table[columns].astype({name: "float32" for name in columns[5:]})


def drift_growth(probes: Sequence[Trace]) -> pd.DataFrame:
    """One row per (block, step): mean drift over 1, 2, 3 steps and `exponent`, the power of the distance it grows by.

    exponent 1 calls for gap = "linear", 0.5 for "sqrt", 0 for "none". Γ beside it.
    """
    names = ["gamma", "drift_1", "drift_2", "drift_3"]
    parts = [probe.blocks[["model", "block", "step", *names]] for probe in probes]
    table = pd.concat(parts).groupby(["model", "block", "step"], sort=True)[names].mean().reset_index()
    logs = np.log(table[["drift_1", "drift_2", "drift_3"]].to_numpy(float).clip(1e-12))
    distance = np.log([1.0, 2.0, 3.0])
    centred = distance - distance.mean()
    table["exponent"] = (logs * centred).sum(1) / (centred**2).sum()
    return table


def outliers(probes: Sequence[Trace]) -> pd.DataFrame:
    """One row per group of each block: r's quantiles, the share of calls over each threshold, and whether r tells.

    rank_nvfp4 and rank_int8: Spearman correlation of r with e₄ and e₈ within the group; near 0 means that r does not
    see the error that purifying is meant to avoid.
    """
    rows = []
    table = pd.concat([_joined(probe) for probe in probes], ignore_index=True)
    for key, group in table.groupby(LAYER, sort=False):
        ratio = group["outlier_ratio"].to_numpy(float)
        over = {f"over_{threshold:g}": float((ratio > threshold).mean()) for threshold in THRESHOLDS}
        rows.append({
            **dict(zip(LAYER, key)), "median": float(np.nanmedian(ratio)), "p95": float(np.nanquantile(ratio, 0.95)),
            **over, "rank_nvfp4": _spearman(ratio, group["error_nvfp4"].to_numpy(float)),
            "rank_int8": _spearman(ratio, group["error_int8"].to_numpy(float)),
        })  # fmt: skip
    return pd.DataFrame(rows)


def pair_keys(rows: pd.DataFrame) -> list[str]:
    """What two runs must have in common to be compared: the prompt, the seed and, where it is known, the device."""
    return [name for name in ("prompt", "seed", "device") if name in rows]


def paired(
    rows: pd.DataFrame, base: tuple[str, str], metrics: Sequence[str] = ("psnr", "ssim", "bits", "skipped"),
    resamples: int = 1000, seed: int = 0,
) -> pd.DataFrame:  # fmt: skip
    """Every (method, setting) against `base` on the same prompts: mean difference and its 95 % bootstrap interval.

    Columns method, setting, prompts, and for each metric `<metric>`, `<metric>_low`, `<metric>_high`.
    """
    method, values = base
    keys = pair_keys(rows)
    anchor = rows[(rows["method"] == method) & (rows["setting"] == values)][[*keys, *metrics]]
    generator, found = np.random.default_rng(seed), []
    for (name, config), group in rows.groupby(["method", "setting"], sort=False):
        both = group.merge(anchor, on=keys, suffixes=("", "_base"))
        line = {"method": name, "setting": config, "prompts": len(both)}
        for metric in metrics:
            change = (both[metric].clip(upper=100) - both[f"{metric}_base"].clip(upper=100)).to_numpy(float)
            change = change[np.isfinite(change)]
            if len(change) == 0:
                continue
            means = generator.choice(change, (resamples, len(change))).mean(1)
            low, high = np.quantile(means, [0.025, 0.975])
            line.update({metric: change.mean(), f"{metric}_low": low, f"{metric}_high": high})
        found.append(line)
    return pd.DataFrame(found)


def reuse_gain(rows: pd.DataFrame, with_it: str = "sixbit", without: str = "dmpq_tdc") -> pd.DataFrame:
    """What the purified refresh buys at each τ: `with_it` minus `without` on the same prompts (see `paired`)."""
    settings = sorted(
        set(rows.loc[rows["method"] == without, "setting"]), key=lambda text: json.loads(text)["tdc_threshold"]
    )
    found = []
    for values in settings:
        both = rows[rows["method"].isin([with_it, without]) & (rows["setting"] == values)]
        gain = paired(both, (without, values))
        line = gain[gain["method"] == with_it]
        found.append(line.assign(tdc_threshold=json.loads(values)["tdc_threshold"]))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=["tdc_threshold", "psnr"])


def _joined(probe: Trace) -> pd.DataFrame:
    keys = ["call", "model", "branch", "block", "step"]
    before = probe.blocks[[*keys, "gamma"]].rename(columns={"gamma": "gamma_before"})
    before["step"] += 1
    return probe.layers.merge(before, on=keys, how="left")


def _pairs(probes: Sequence[Trace]) -> dict[tuple, list[np.ndarray]]:
    found: dict[tuple, list[np.ndarray]] = {}
    for number, probe in enumerate(probes):
        for key, rows in _joined(probe).groupby(LAYER, sort=False):
            values = rows[["gamma_before", "error_nvfp4", "error_int8"]].to_numpy(float)
            values = values[np.isfinite(values[:, :2]).all(1)]
            found.setdefault(key, [np.empty((0, 3))] * len(probes))[number] = values
    return found


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    spread = ((x - x.mean()) ** 2).sum()
    alpha = float(((x - x.mean()) * (y - y.mean())).sum() / spread) if spread > 0 else 0.0
    return alpha, float(y.mean() - alpha * x.mean())


def _r2(y: np.ndarray, predicted: np.ndarray) -> float:
    spread = ((y - y.mean()) ** 2).sum()
    return float(1 - ((y - predicted) ** 2).sum() / spread) if spread > 0 else float("nan")


def _held_out(pairs: list[np.ndarray]) -> float:
    known, unseen = np.concatenate(pairs[::2]), pairs[1::2]
    if len(known) < 3 or not unseen or len(np.concatenate(unseen)) < 3:
        return float("nan")
    alpha, beta = _line(known[:, 0], known[:, 1])
    rest = np.concatenate(unseen)
    return _r2(rest[:, 1], alpha * rest[:, 0] + beta)


def _spearman(x: np.ndarray, y: np.ndarray) -> float:
    good = np.isfinite(x) & np.isfinite(y)
    if good.sum() < 3:
        return float("nan")
    a, b = (pd.Series(values[good]).rank().to_numpy() for values in (x, y))
    spread = a.std() * b.std()
    return float(((a - a.mean()) * (b - b.mean())).mean() / spread) if spread > 0 else float("nan")
