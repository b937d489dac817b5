"""A draft is the recorded run, plus what changes from one estimate to the other.

A draft is computed from the signals of a probe, whose path differs a little from the run's. Set beside the run as it
was, it would also show where the two paths differ, which no knob did. So both policies are decided on the same signals,
and a cell for which they agree stays what it was in the run.
"""

from __future__ import annotations

import numpy as np

from app.figures import grid as grids
from engine.settings import Policy

# Reasons to compute that a policy settles by itself, whatever was measured.
SETTLED = ("reuse off", "first step", "warm-up", "final steps")


def on_record(recorded: grids.Grid, own: grids.Grid, draft: grids.Grid, policy: Policy) -> grids.Grid:
    """The draft's map: `recorded` wherever `own` (the run's policy decided on the draft's signals) and `draft` agree
    and the draft's policy could do what was recorded, else `draft`. Grids of another shape than `recorded` give
    `draft`."""
    if not (grids.same_shape(recorded, draft) and grids.same_shape(own, draft)):
        return draft
    return grids.merge(recorded, draft, ~_kept(recorded, own, draft, policy))


def _kept(recorded: grids.Grid, own: grids.Grid, draft: grids.Grid, policy: Policy) -> np.ndarray:
    """bool (B, S): the draft leaves the cell as it was."""
    same = (own.decision == draft.decision).all(axis=2) & (draft.decision != grids.UNKNOWN).all(axis=2)
    taken = np.isin(recorded.decision, np.unique(draft.decision)).all(axis=2)
    settled = np.isin(
        draft.block_reason, [draft.block_reasons.index(name) for name in SETTLED if name in draft.block_reasons]
    )
    return same & taken & ~(recorded.skipped & (settled | (in_a_row(recorded.skipped) > policy.max_skips)))


def in_a_row(skipped: np.ndarray) -> np.ndarray:
    """int (B, S): how many steps in a row, up to and including this one, were skipped."""
    count = np.zeros(skipped.shape, int)
    for step in range(skipped.shape[1]):
        count[:, step] = skipped[:, step] * (1 + (count[:, step - 1] if step else 0))
    return count
