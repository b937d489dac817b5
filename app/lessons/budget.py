"""Lesson 5, spend the drift budget: E_acc of one block, and what more budget does to all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from engine.replay import replay
from engine.settings import Policy
from engine.trace import Trace

TOLERANCES = tuple(round(0.02 * n, 2) for n in range(16))       # 0 … 0.30


class Budget(NamedTuple):
    """One block under one budget.

    rows: step, drift (the per-step drift that was weighed), accumulated (E_acc after the step), skipped, reason;
    skipped, predictor: shares of all block steps and of all layer calls; bits, bits_computed: averages;
    replay: "exact", "open loop" or "partial".
    """

    rows: pd.DataFrame
    skipped: float
    predictor: float
    bits: float
    bits_computed: float
    replay: str


def with_budget(policy: Policy, tolerance: float) -> Policy:
    """The policy with reuse on and this budget."""
    return replace(policy, tdc=True, tdc_threshold=tolerance, tuned_steps=None)


def facts(probe: Trace, policy: Policy, block: int) -> Budget:
    """Replay the probe under `policy` and follow block number `block` (of the first branch)."""
    done = replay(probe, policy)
    blocks = done.blocks
    if len(blocks):
        first = blocks.iloc[0]
        blocks = blocks[(blocks["model"] == first["model"]) & (blocks["branch"] == first["branch"])]
        blocks = blocks[(blocks["call"] == blocks["call"].max()) & (blocks["block"] == block)]
    rows = blocks.sort_values("step")[["step", "drift", "accumulated", "skipped", "reason"]].reset_index(drop=True)
    report = done.report
    return Budget(
        rows, report.skipped_share, report.predictor_share, report.average_bits, report.average_bits_computed,
        done.meta.replay or "exact",
    )  # fmt: skip


def curve(probe: Trace, policy: Policy) -> pd.DataFrame:
    """What every budget of `TOLERANCES` does: tolerance, skipped, predictor, bits, bits_computed."""
    rows = []
    for tolerance in TOLERANCES:
        report = replay(probe, with_budget(policy, tolerance)).report
        rows.append((tolerance, report.skipped_share, report.predictor_share, report.average_bits,
                     report.average_bits_computed))  # fmt: skip
    return pd.DataFrame(rows, columns=["tolerance", "skipped", "predictor", "bits", "bits_computed"])


def typical(probe: Trace, policy: Policy, blocks: list[int]) -> int:
    """The block with the median number of skips: neither the laziest nor the busiest, to begin with."""
    done = replay(probe, policy).blocks
    skips = [int(done.loc[done["block"] == block, "skipped"].sum()) for block in blocks]
    return blocks[int(np.argsort(skips, kind="stable")[len(skips) // 2])] if blocks else 0
