"""Two traces side by side: which cells of the map differ, and what that comes to.

Works on any two traces, a recording and its what-if as well as two recordings; cells that only one of them has are
left out.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from engine.trace import KEYS, Trace

CELL = [*KEYS, "layer"]


def diff(a: Trace, b: Trace) -> pd.DataFrame:
    """The layer calls whose precision differs, in the order of the map.

    Columns: the keys, `layer`, `before` and `after` (precisions), `reason` (why b decided so), `known` (False: b
    could not know), `first` (the first step at which this block differs at all; later ones may be knock-ons), and
    `reuse` (the block went from computed to skipped or back).
    """
    before, after = _paired(a, b)
    old, new = before["precision"].to_numpy(object), after["precision"].to_numpy(object)
    at = np.flatnonzero(old != new)
    changed = after.iloc[at][[*CELL, "reason", "known"]]
    changed = changed.assign(before=old[at], after=new[at])
    changed["reuse"] = (changed["before"] == "skipped") != (changed["after"] == "skipped")
    row = changed.groupby(["call", "model", "branch", "block"], sort=False)["step"]
    changed["first"] = changed["step"] == row.transform("min")
    return changed.sort_values(["call", "model", "branch", "step", "block"], kind="stable", ignore_index=True)


@dataclass(frozen=True)
class Net:
    """What a change comes to. Counts of layer calls, except for `cells` and `skips`, which count blocks × steps.

    `moved` maps precision → calls gained (negative: lost). `cells` differ in any group; `unknown` cells are those
    that b could not decide. Bits are MAC-weighted: skipped as 0, and over computed calls only.
    """

    cells: int
    compared: int
    unknown: int
    skips: int
    moved: dict[str, int]
    bits: tuple[float, float]
    bits_computed: tuple[float, float]


def net(a: Trace, b: Trace) -> Net:
    """Net figures of going from `a` to `b`, over the cells that both have."""
    from engine.cost import average_bits

    before, after = _paired(a, b)
    old, new = before["precision"].to_numpy(object), after["precision"].to_numpy(object)
    keys = after[list(KEYS)]
    cells = keys.assign(changed=old != new, unknown=~after["known"].to_numpy(), skipped=(new == "skipped").astype(int))
    cells["skipped"] -= old == "skipped"
    by_cell = cells.groupby(list(KEYS), sort=False).agg(
        changed=("changed", "any"), unknown=("unknown", "any"), skipped=("skipped", "max")
    )
    words, counts = np.unique(np.r_[old, new].astype(str), return_counts=False), {}
    for word in words:
        gained = int((new == word).sum() - (old == word).sum())
        if gained:
            counts[str(word)] = gained
    bits = [average_bits(table) for table in (before, after)]
    return Net(
        cells=int(by_cell["changed"].sum()),
        compared=len(by_cell),
        unknown=int(by_cell["unknown"].sum()),
        skips=int(by_cell["skipped"].sum()),
        moved=counts,
        bits=(bits[0][0], bits[1][0]),
        bits_computed=(bits[0][1], bits[1][1]),
    )


def _paired(a: Trace, b: Trace) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The layer rows of both, the same cell in the same place."""
    left, right = a.layers, b.layers
    if len(left) == len(right) and all(
        left[name].array is right[name].array or left[name].equals(right[name]) for name in CELL
    ):
        return left, right
    numbered = [table[CELL].assign(row=np.arange(len(table))) for table in (left, right)]
    both = numbered[0].merge(numbered[1], on=CELL, suffixes=("_a", "_b"))
    return left.iloc[both["row_a"]].reset_index(drop=True), right.iloc[both["row_b"]].reset_index(drop=True)
