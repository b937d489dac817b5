"""Lesson 3, who needs rotation? The Hadamard transform spreads an outlier over its neighbours."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from app.lessons import numbers
from app.lessons.tokens import Token, wildest

FORMATS = ("int8", "nvfp4")


class Rotation(NamedTuple):
    """Facts of the lesson.

    token: the group's token with the largest outlier; before, after: float32, the stretch of it that
    holds the outlier (one rotation block), as it is and rotated; ratio: its max/mean as (plain, rotated);
    table: rows (group, format, plain, rotated, tokens) of mean relative errors over all tokens.
    """

    token: Token
    before: np.ndarray
    after: np.ndarray
    ratio: tuple[float, float]
    table: pd.DataFrame


def table(tokens: list[Token]) -> pd.DataFrame:
    """Mean relative error of every group's tokens in both formats, without and with rotation."""
    rows = []
    for token in tokens:
        turned = numbers.hadamard(token.values)
        for name in FORMATS:
            quantize = getattr(numbers, name)
            rows.append({
                "group": token.group, "format": name,
                "plain": numbers.relative_error(quantize(token.values).values, token.values),
                "rotated": numbers.relative_error(quantize(turned).values, turned),
            })  # fmt: skip
    if not rows:
        return pd.DataFrame(columns=["group", "format", "plain", "rotated", "tokens"])
    grouped = pd.DataFrame(rows).groupby(["group", "format"], sort=False)
    return grouped.mean().assign(tokens=grouped.size()).reset_index()


def facts(tokens: list[Token], group: str, errors: pd.DataFrame) -> Rotation | None:
    """The lesson for one group; None where no token of it was recorded."""
    token = wildest(tokens, group)
    if token is None:
        return None
    width = numbers.hadamard_block(len(token.values))
    start = int(np.abs(token.values).argmax()) // width * width
    turned = numbers.hadamard(token.values)
    return Rotation(
        token, token.values[start : start + width], turned[start : start + width],
        (numbers.outlier_ratio(token.values), numbers.outlier_ratio(turned)), errors,
    )  # fmt: skip


def gain(errors: pd.DataFrame, name: str, group: str | None = None) -> float:
    """How many times smaller rotation makes a format's error (1 = no change), over one or all groups."""
    rows = errors[errors["format"] == name]
    rows = rows if group is None else rows[rows["group"] == group]
    rotated = rows["rotated"].mean()
    return float(rows["plain"].mean() / rotated) if rotated else float("nan")
