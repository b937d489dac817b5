"""Synthetic traces with plausible signals, for tests and for figures before a model has run.

The figures follow a trial on a small model: drift around .07–.12 for half of all cells with a long tail, Γ falling
over the steps, r > 25 mostly in the FFN's down projection, and e₄ that often falls as Γ rises.
"""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from engine.policy import Policy, advance, plan, purify, signals_needed
from engine.records import BlockState, Calibration, Coefficient
from engine.trace import BLOCK_COLUMNS, LAYER_COLUMNS, Recorder, Trace, TraceMeta, column

GROUPS = ("qkv", "out", "up", "down")
_MACS = {"qkv": 3.0, "out": 1.0, "up": 4.0, "down": 4.0}
_OUTLIERS = {"qkv": 14.0, "out": 12.0, "up": 11.0, "down": 23.0}


@dataclass(frozen=True)
class Signals:
    """What a model would show, whatever is decided: arrays over (step, block[, group]).

    `drift[g − 1]` is c against the delta g steps back, NaN where there is none.
    """

    gamma: np.ndarray
    drift: np.ndarray
    outlier_ratio: np.ndarray
    error_nvfp4: np.ndarray
    error_int8: np.ndarray
    sample: np.ndarray
    alpha: np.ndarray
    beta: np.ndarray
    groups: tuple[str, ...]


def signals(
    blocks: int = 12, steps: int = 30, groups: tuple[str, ...] = GROUPS, seed: int = 0, gaps: int = 3
) -> Signals:
    """Draw the signals of one imaginary run; `gaps` is the longest distance over which drift is known."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 1, steps)[:, None] if steps > 1 else np.zeros((1, 1))
    level = rng.lognormal(np.log(0.22), 0.5, blocks)
    gamma = level * (0.35 + 0.65 * np.exp(-2.2 * t)) * rng.lognormal(0, 0.05, (steps, blocks))
    calm = rng.lognormal(np.log(0.085), 0.35, blocks) * (30 / max(steps, 1)) ** 0.6
    step_drift = calm * (1 + 1.6 * np.exp(-9 * t) + 0.8 * np.exp(9 * (t - 1))) * rng.lognormal(0, 0.18, (steps, blocks))
    drift = np.stack([step_drift * g**0.75 * rng.lognormal(0, 0.08, (steps, blocks)) for g in range(1, gaps + 1)])
    for g in range(1, gaps + 1):
        drift[g - 1, : min(g, steps)] = np.nan
    shape = (steps, blocks, len(groups))
    center = np.array([_OUTLIERS.get(name, 13.0) for name in groups])
    ratio = center * rng.lognormal(0, 0.22, (blocks, len(groups))) * rng.lognormal(0, 0.08, shape)
    alpha = rng.normal(-0.12, 0.15, (blocks, len(groups)))
    beta = rng.normal(0.125, 0.015, (blocks, len(groups))) - alpha * gamma.mean(0)[:, None]
    previous = np.concatenate([gamma[:1], gamma[:-1]])[:, :, None]
    error = np.clip(alpha * previous + beta + rng.normal(0, 0.006, shape), 0.03, 0.4)
    return Signals(
        gamma=gamma,
        drift=drift,
        outlier_ratio=ratio,
        error_nvfp4=error,
        error_int8=error * rng.uniform(0.07, 0.11, shape),
        sample=np.round(rng.standard_t(3, (*shape, 16)), 4),
        alpha=alpha,
        beta=beta,
        groups=groups,
    )


def calibration(drawn: Signals, steps: int, model: str = "transformer", guidance: float = 5.0) -> Calibration:
    """The lines that the signals were drawn around, each with a weight, which only policies that weigh look at."""
    rng, heavy = np.random.default_rng(len(drawn.groups)), np.random.default_rng(7)
    rows = {
        (model, block, group): Coefficient(
            float(drawn.alpha[block, g]), float(drawn.beta[block, g]), float(rng.uniform(0.05, 0.95)), 4 * steps,
            float(heavy.lognormal(0, 0.5)),
        )
        for block in range(drawn.alpha.shape[0])
        for g, group in enumerate(drawn.groups)
    }
    return Calibration(model_hash="synthetic", steps=steps, guidance=guidance, rows=rows, prompts=4)


def meta(policy: dict, drawn: Signals, steps: int, seed: int, **more: object) -> TraceMeta:
    """The description of a synthetic run."""
    return TraceMeta(
        model="synthetic", family="cogvideox", policy=policy, calibration=calibration(drawn, steps), steps=steps,
        guidance=5.0, seed=seed, prompt="a large red star bounces in a sunset room", height=128, width=128,
        frames=17, fps=8.0, dtype="float32", device="cpu", created="2026-11-30T00:00:00+00:00", **more,
    )  # fmt: skip


def macs(group: str) -> float:
    """Multiply-accumulates of one group call."""
    return 1e8 * _MACS.get(group, 1.0)


def probe_trace(
    blocks: int = 12,
    steps: int = 30,
    groups: tuple[str, ...] = GROUPS,
    seed: int = 0,
    branches: tuple[str, ...] = ("",),
    drawn: Signals | None = None,
) -> Trace:
    """A probe-mode trace of the stock model: everything computed, every signal measured, nothing decided.

    `drawn` replaces the signals (of every branch).
    """
    policy = {"precision": "stock", "tdc": False, "pdr": False}
    by_branch = [drawn or signals(blocks, steps, groups, seed + 1000 * b) for b in range(len(branches))]
    steps = by_branch[0].gamma.shape[0]
    tables = [_probe_tables(one, name) for one, name in zip(by_branch, branches, strict=True)]
    block_rows = pd.concat([first for first, _ in tables], ignore_index=True)
    layer_rows = pd.concat([second for _, second in tables], ignore_index=True)
    return Trace(block_rows, layer_rows, meta(policy, by_branch[0], steps, seed, probe=True))


def _probe_tables(drawn: Signals, branch: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    steps, blocks = drawn.gamma.shape
    rng = np.random.default_rng(blocks * steps)
    keys = {"call": 0, "model": "transformer", "branch": branch}
    step, block = (grid.ravel() for grid in np.mgrid[:steps, :blocks])
    nan = np.full(step.shape, np.nan)
    cells = {
        **keys, "step": step, "block": block, "steps": steps, "timestep": 999.0 * (1 - step / steps),
        "gamma": drawn.gamma.ravel(), "delta_change": drawn.drift[0].ravel(), "gap": (step > 0).astype(int),
        "drift": nan, "accumulated": 0.0, "skipped": False, "refreshed": False, "reason": "reuse off",
        "known": True, "milliseconds": rng.normal(18.0, 0.6, step.shape),
        **{f"drift_{g}": drawn.drift[g - 1].ravel() if g <= len(drawn.drift) else nan for g in (1, 2, 3)},
    }  # fmt: skip
    step, block, group = (grid.ravel() for grid in np.mgrid[:steps, :blocks, : len(drawn.groups)])
    names = np.array(drawn.groups, dtype=object)[group]
    sample = drawn.sample.reshape(-1, 16)
    calls = {
        **keys, "step": step, "block": block, "layer": names, "precision": "stock",
        "predicted_error": np.nan, "outlier_ratio": drawn.outlier_ratio.ravel(), "purified": False,
        "decided_by": "policy", "reason": "stock", "known": True, "macs": [macs(name) for name in names],
        "error_nvfp4": drawn.error_nvfp4.ravel(), "error_int8": drawn.error_int8.ravel(),
        "sample": list(sample), "sample_absmax": np.abs(sample).max(1),
    }  # fmt: skip
    return _typed(cells, BLOCK_COLUMNS), _typed(calls, LAYER_COLUMNS)


def _typed(values: dict, columns: dict) -> pd.DataFrame:
    rows = max(len(v) for v in values.values() if isinstance(v, (np.ndarray, list)))
    wide = {k: v if isinstance(v, (np.ndarray, list)) else [v] * rows for k, v in values.items()}
    return pd.DataFrame({name: column(wide[name], kind) for name, kind in columns.items()})


def live_trace(
    policy: Policy, blocks: int = 12, steps: int = 30, groups: tuple[str, ...] = GROUPS, seed: int = 0,
    drawn: Signals | None = None, lines: Calibration | None = None, done: int | None = None,
) -> Trace:  # fmt: skip
    """A run as the live engine records it: decide, measure what the policy needs, advance; step by step.

    `drawn` replaces the signals; `lines` the calibration; `done` < steps is a cancelled run.
    """
    drawn = drawn or signals(blocks, steps, groups, seed, gaps=policy.max_skips + 1)
    (steps, blocks), groups = drawn.gamma.shape, drawn.groups
    about = meta(policy.to_dict(), drawn, steps, seed)
    about = about if lines is None else replace(about, calibration=lines)
    needed = signals_needed(policy)
    recorder, states = Recorder(about), [BlockState() for _ in range(blocks)]
    found = [about.calibration.for_block("transformer", i) for i in range(blocks)]
    coefficients = [{group: by_group.get(group) for group in groups} for by_group in found]
    for step in range(steps if done is None else done):
        for i, decision in enumerate(plan(policy, states, step, steps, coefficients)):
            key = {"call": 0, "model": "transformer", "branch": "", "step": step, "block": i}
            gamma = change = None
            if not decision.skipped:
                gamma = float(drawn.gamma[step, i]) if "gamma" in needed else None
                if "delta_change" in needed and decision.gap:
                    change = float(drawn.drift[decision.gap - 1, step, i])
            for g, group in enumerate(groups):
                ratio = float(drawn.outlier_ratio[step, i, g])
                asked = "outlier_ratio" in needed and not decision.skipped
                taken = purify(policy, decision, group, ratio) if asked else decision.groups[group]
                recorder.layer(**key, layer=group, macs=macs(group), **taken.row())
            recorder.block(**key, steps=steps, **decision.row(), timestep=float(999 * (1 - step / steps)),
                           gamma=gamma, delta_change=change,
                           milliseconds=0.5 if decision.skipped else 12.0 + i / 100)  # fmt: skip
            states[i] = advance(policy, states[i], decision, gamma, change)
    return recorder.trace()
