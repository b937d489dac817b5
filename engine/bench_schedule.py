"""Skips and precisions of a recorded run, stretched over another model's blocks and another number of steps.

Random weights have signals that mean nothing, so a benchmark on them follows decisions that the method took on a
trained model: the embedded one, whose recordings come with the repository.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pandas as pd

from engine.records import GroupDecision
from engine.replay import replay
from engine.settings import Policy
from engine.trace import Trace


@dataclass(frozen=True)
class Schedule:
    """Block × step tables of one recorded call. origin: where they come from, in words."""

    skipped: pd.DataFrame
    precision: dict[str, pd.DataFrame]
    origin: str = ""

    @classmethod
    def from_trace(cls, trace: Trace, origin: str = "") -> "Schedule":
        """One call and branch of `trace`."""
        blocks, layers = trace.blocks, trace.layers
        first = (blocks["call"] == blocks["call"].min()) & (blocks["branch"] == blocks["branch"].iloc[0])
        skipped = blocks[first].pivot(index="block", columns="step", values="skipped")
        first = (layers["call"] == layers["call"].min()) & (layers["branch"] == layers["branch"].iloc[0])
        tables = {
            str(name): rows.pivot(index="block", columns="step", values="precision")
            for name, rows in layers[first].groupby("layer", sort=False)
        }
        return cls(skipped, tables, origin)

    @classmethod
    def from_probe(cls, trace: Trace, share: float, blocks: int, steps: int, name: str) -> "Schedule":
        """What `sixbit` decides on the signals of a probed run, with the reuse tolerance that skips about `share` of
        `blocks` × `steps` cells. Raises ValueError for a share outside (0, 0.6] or a trace that cannot be replayed."""
        if not 0 < share <= 0.6:
            raise ValueError(
                f"The skipped share must lie in (0, 0.6], got {share:g}: two skips in three steps are the most."
            )
        stored = Policy.from_dict(trace.meta.policy) if trace.meta.policy else Policy.preset("sixbit")
        base = replace(Policy.preset("sixbit"), error_threshold=stored.error_threshold)
        low, high, best = 0.0, 1.0, None
        for _ in range(12):
            tolerance = (low + high) / 2
            made = cls.from_trace(replay(trace, replace(base, tdc_threshold=tolerance)))
            found = made.share(blocks, steps)
            if best is None or abs(found - share) < abs(best[0] - share):
                best = (found, tolerance, made)
            low, high = (tolerance, high) if found < share else (low, tolerance)
        found, tolerance, made = best
        return replace(made, origin=f"skips of {name}, replayed at reuse tolerance {tolerance:.3f}, stretched")

    def cell(self, table: pd.DataFrame, block: int, blocks: int, step: int, steps: int):
        """The recorded value whose place in the recording is nearest to this place."""
        row = min(len(table) - 1, int((block + 0.5) / blocks * len(table)))
        column = min(table.shape[1] - 1, int((step + 0.5) / steps * table.shape[1]))
        return table.iat[row, column]

    def skips(self, block: int, blocks: int, step: int, steps: int) -> bool:
        """Whether this cell is skipped; never before two steps have filled the cache."""
        return step >= 2 and bool(self.cell(self.skipped, block, blocks, step, steps))

    def share(self, blocks: int, steps: int) -> float:
        """The skipped share of blocks × steps cells."""
        cells = [self.skips(block, blocks, step, steps) for block in range(blocks) for step in range(steps)]
        return sum(cells) / len(cells)

    def overrule(self, policy: Policy) -> Callable:
        """A function for `record(overrule=...)` that follows this schedule under `policy`."""

        def decide(position, plan):
            decided = []
            for index, decision in enumerate(plan):
                place = (index, len(plan), position.step, position.steps)
                skip = policy.tdc and self.skips(*place)
                groups = {name: self._group(name, place, policy, skip) for name in decision.groups}
                reason = "within budget" if skip else "no history"
                decided.append(
                    replace(decision, skipped=skip, refreshed=policy.tdc and not skip, reason=reason, groups=groups)
                )
            return decided

        return decide

    def _group(self, name: str, place: tuple, policy: Policy, skip: bool) -> GroupDecision:
        if skip:
            return GroupDecision("skipped", "cache", "skipped")
        if policy.precision != "dynamic":
            return GroupDecision(policy.precision, "policy", "forced precision")
        found = self.cell(self.precision[name], *place) if name in self.precision else "int8"
        # A cell that was skipped there and is computed here resumes after a skip, which means 8 bits.
        return GroupDecision(found if found in ("nvfp4", "w4a16") else "int8", "predictor", "forced precision")
