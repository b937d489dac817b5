"""Probe traces as files, and what is fitted to them: lines, fixed mixtures, thresholds for a wanted number of bits.

A probe is a run of the 16-bit model in which everything was measured. The quality lab records a handful, one per
calibration prompt; every other number that a method needs in advance comes from them. No torch but in `record_probe`.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from engine.policy import PRESETS, Policy
from engine.records import Calibration, Coefficient
from engine.replay import replay
from engine.trace import Trace

COLUMNS = ["model", "block", "layer"]
LEAST_WEIGHT = 1e-3
"""Of a group whose error does not reach the output at all: it may take 4 bits wherever a prediction lets anything."""


def probe_path(folder: Path, number: int) -> Path:
    """Where probe `number` lies."""
    return Path(folder) / f"probe_{number:02d}.parquet"


def probes_there(folder, count: int | None = None) -> bool:
    """Whether `load_probes` would find them now."""
    folder = Path(folder)
    if count:
        return all(probe_path(folder, number).exists() for number in range(count))
    return any(folder.glob("probe_*.parquet"))


def load_probes(folder, count: int | None = None, wait: float = 0.0) -> list[Trace]:
    """The probe traces in `folder`, in order.

    Args:
        count: how many there will be; None takes those that are there.
        wait: seconds to wait for another process that is still recording them.
    """
    folder, until = Path(folder), time.monotonic() + wait
    paths = [probe_path(folder, number) for number in range(count)] if count else sorted(folder.glob("probe_*.parquet"))
    while not all(path.exists() for path in paths) and time.monotonic() < until:
        time.sleep(0.5)
    missing = [path.name for path in paths if not path.exists()]
    if missing or not paths:
        raise ValueError(
            f"{folder.name} lacks probe traces ({', '.join(missing[:3]) or 'it holds none'}); record them first with "
            "`python -m engine theory --record`."
        )
    return [Trace.load(path) for path in paths]


def mean_lines(probes: Sequence[Trace], like: Calibration) -> Calibration:
    """The static mixture: each group's mean e₄ as a constant prediction, so that nothing depends on the moment."""
    measured = _stacked(probes, "error_nvfp4")
    rows = {key: Coefficient(0.0, float(np.nanmean(values)), 0.0, len(values)) for key, values in measured.items()}
    return replace(like, rows=rows, created_by="static mix")


def weighted_lines(probes: Sequence[Trace], like: Calibration) -> Calibration:
    """An extension: the predicted error times the block's mean Γ, relative to the mean over blocks.

    An error of a block's change reaches the stream scaled by Γ, so a block that changes little may be coarser.
    """
    changes: dict[tuple[str, int], list[float]] = {}
    for probe in probes:
        for (model, block), rows in probe.blocks.groupby(["model", "block"], sort=False):
            changes.setdefault((str(model), int(block)), []).append(float(rows["gamma"].mean()))
    weight = {key: float(np.mean(values)) for key, values in changes.items()}
    middle = float(np.mean(list(weight.values())))
    rows = {
        key: line._replace(alpha=line.alpha * weight[key[:2]] / middle, beta=line.beta * weight[key[:2]] / middle)
        for key, line in like.rows.items()
    }
    return replace(like, rows=rows, created_by="weighted by change")


def sensitive_lines(
    probes: Sequence[Trace], like: Calibration, sensitivity: pd.DataFrame, static: bool = False
) -> Calibration:
    """The lines with the weights that `Policy(weighting="sensitivity")` multiplies predictions by: what an error of the
    group does to the model's output, for what a bit there costs.

    A group's weight is k = s / (ē₄·√MACs), scaled to a MAC-weighted mean of 1: ē₄ is its mean local error, s the
    relative error of the model's output with this group alone at NVFP4 (`engine.sensitivity`), less what its packed
    weight does by itself at 16 bits; so k²·e₄² is the squared output error saved per MAC at 8 bits. A group that was
    not measured keeps the weight 1.
    `static`: each group's mean error instead of its line (a static sensitivity-sorted mix, ViDiT-Q's idea).
    Raises ValueError for a table of another model.
    """
    base = mean_lines(probes, like) if static else like
    local = {key: float(np.nanmean(values)) for key, values in _stacked(probes, "error_nvfp4").items()}
    macs = {key: float(np.nanmean(values)) for key, values in _stacked(probes, "macs").items()}
    squares = sensitivity.assign(square=sensitivity["output_error"] ** 2)
    mean = squares.groupby([*COLUMNS, "precision"])["square"].mean()

    def weight(key) -> float:
        excess = max(mean[(*key, "nvfp4")] - mean[(*key, "w4a16")], 0.01 * mean[(*key, "nvfp4")])
        return float(np.sqrt(excess / macs[key])) / max(local[key], 1e-12)

    keys = [
        key for key in base.rows
        if (*key, "nvfp4") in mean.index and np.isfinite(local.get(key, np.nan)) and macs.get(key, 0.0) > 0
    ]
    if not keys:
        raise ValueError("The sensitivity table is of another model: none of the calibrated groups is in it.")
    weights = {key: weight(key) for key in keys}
    middle = sum(weights[key] * macs[key] for key in keys) / sum(macs[key] for key in keys)
    if not middle > 0:
        raise ValueError("No group at 4 bits changes the model's output, so there is nothing to weigh.")
    rows = {
        key: line._replace(weight=max(weights[key] / middle, LEAST_WEIGHT) if key in weights else 1.0)
        for key, line in base.rows.items()
    }
    return replace(like, rows=rows)


def threshold_for_bits(
    probes: Sequence[Trace], bits: float, calibration: Calibration, policy: Policy = PRESETS["dmpq"]
) -> float:
    """The smallest error_threshold at which the probes' replay spends at most `bits` on average where it computes.

    Raises ValueError where no threshold reaches it (the first step is INT8 whatever the threshold).
    """

    def spent(threshold: float) -> float:
        trial = replace(policy, error_threshold=threshold)
        return float(np.mean([replay(probe, trial, calibration).report.average_bits_computed for probe in probes]))

    low, high = 0.0, 1.0
    if spent(high) > bits:
        raise ValueError(f"No error threshold brings the average to {bits:g} bits; the least is {spent(high):.2f}.")
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (low, middle) if spent(middle) <= bits else (middle, high)
    return high


def record_probe(pipe, call, prompt: str, seed: int) -> Trace:
    """Run `call(prompt, seed)` on the attached `pipe` in 16 bits with every measurement on; returns the trace."""
    from engine.run import record

    with record(pipe, PRESETS["fp16"], probe=True) as run:
        call(prompt, seed)
    run.describe(prompt=prompt, seed=seed)
    return run.trace


def _stacked(probes: Sequence[Trace], column: str) -> dict[tuple[str, int, str], np.ndarray]:
    parts: dict[tuple[str, int, str], list[np.ndarray]] = {}
    for probe in probes:
        for (model, block, layer), rows in probe.layers.groupby(COLUMNS, sort=False):
            parts.setdefault((str(model), int(block), str(layer)), []).append(rows[column].to_numpy(float))
    return {key: np.concatenate(values) for key, values in parts.items()}
