"""The last page: two knobs, one goal, and what measured runs reached under it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from engine.replay import replay
from engine.settings import Policy
from engine.trace import Trace

GOAL = 5.0


class Turn(NamedTuple):
    """A replay at the chosen setting and its figures."""

    trace: Trace
    policy: Policy
    bits: float
    bits_computed: float
    skipped: float


def facts(probe: Trace, policy: Policy, precision: float, reuse: float) -> Turn:
    """`policy` with these two thresholds, replayed on the probe."""
    chosen = replace(policy, error_threshold=precision, tdc=True, tdc_threshold=reuse, tuned_steps=None)
    done = replay(probe, chosen)
    report = done.report
    return Turn(done, chosen, report.average_bits, report.average_bits_computed, report.skipped_share)


class Best(NamedTuple):
    """Settings measured below the goal, the best prompt accuracy among them, and FP16's own."""

    count: int
    accuracy: float
    reference: float


def best(frontier: pd.DataFrame | None) -> Best | None:
    """From the quality sweep; None where it, or its FP16 row, is absent."""
    if frontier is None or frontier.empty:
        return None
    means = frontier.groupby(["method", "setting"])[["bits", "prompt_accuracy"]].mean().reset_index()
    reference = means[means["method"].isin(("fp16", "stock"))]["prompt_accuracy"]
    below = means[(means["bits"] < GOAL) & means["prompt_accuracy"].notna()]
    if below.empty or reference.empty:
        return None
    return Best(len(below), float(below["prompt_accuracy"].max()), float(reference.iloc[0]))
