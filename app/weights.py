"""How much each layer matters, for policies that weigh predicted errors by it (`Policy(weighting="sensitivity")`).

Everything that sets an error against the 4-bit tolerance under such a policy (the first knob's histogram, "was it
right?", the explanation of a cell) multiplies it by these weights first, as `engine.policy.weigh` does.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from app.figures.grid import Grid
from app.settings import EMBEDDED
from engine.records import Calibration, CalibrationError
from engine.settings import Policy, weighs


def weights(grid: Grid, calibration: Calibration | None, policy: Policy, model: str) -> np.ndarray:
    """(B, 1, G): what `policy` multiplies a layer's error by before it compares it; ones where it does not weigh.

    model: the transformer that `grid` is of, as the calibration names it.
    """
    known = calibration.rows if calibration is not None and weighs(policy) else {}
    found = [[known.get((model, block, group)) for group in grid.groups] for block in grid.blocks]
    values = [[1.0 if line is None else line.weight for line in lines] for lines in found]
    return np.array(values, float).reshape(len(grid.blocks), 1, len(grid.groups))


def lent(calibration: Calibration | None, policy: Policy) -> Calibration | None:
    """The lines that a run under `policy` was made with; of the embedded model, with today's weights where the run
    had no use for weights. One that weighed by lines without them counted every layer as 1, and is told so."""
    return calibration if calibration is None or weighs(policy) else calibration.weighed_like(_embedded())


@cache
def _embedded() -> Calibration | None:
    try:
        return Calibration.load(EMBEDDED / "calibration.json")
    except (CalibrationError, OSError):
        return None
