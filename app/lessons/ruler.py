"""Lesson 2, sixteen numbers and one ruler: what one large value does to the values around it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.lessons import numbers

MOST = 40.0          # the largest value that can be dragged to, in multiples of the block's own range
SPAN = 1.2           # the linear part of the axis, in multiples of the block's largest value


class Format(NamedTuple):
    """One format's view of the dragged token.

    snapped: float32 (16,), the shown block as stored; lines: the ruler's marks within the linear
    part of the axis; blocks: relative error of each block of 16; neighbours, rest: relative error of
    the 15 neighbours and of all other blocks, as (recorded, dragged).
    """

    snapped: np.ndarray
    lines: np.ndarray
    blocks: np.ndarray
    neighbours: tuple[float, float]
    rest: tuple[float, float]


class Ruler(NamedTuple):
    """Facts of the lesson. `ratio` is max|x|/mean|x| of the whole token; `largest` its largest other value."""

    values: np.ndarray
    original: np.ndarray
    block: int
    index: int
    span: float
    ratio: float
    ratio_before: float
    largest: float
    formats: dict[str, Format]


def typical_block(token: np.ndarray) -> int:
    """The block of 16 whose largest value is the median of all blocks' largest values."""
    largest = np.abs(token.reshape(-1, numbers.BLOCK)).max(1)
    return int(np.argsort(largest, kind="stable")[len(largest) // 2])


def tallest(block: np.ndarray) -> int:
    """Where a block of 16 has its largest positive value (its largest magnitude if none is positive)."""
    return int(block.argmax() if block.max() > 0 else np.abs(block).argmax())


def facts(token: np.ndarray, index: int | None = None, value: float | None = None) -> Ruler:
    """Drag value `index` of the token's typical block to `value` (default: leave all as recorded)."""
    token = np.asarray(token, np.float32)
    block = typical_block(token)
    start = block * numbers.BLOCK
    original = token[start : start + numbers.BLOCK].copy()
    index = tallest(original) if index is None else index
    span = float(np.abs(original).max()) * SPAN or 1.0
    dragged = token.copy()
    if value is not None:
        dragged[start + index] = np.clip(value, -MOST * span, MOST * span)
    everything = np.arange(len(token))
    own = (everything >= start) & (everything < start + numbers.BLOCK)
    neighbours, rest = own & (everything != start + index), ~own

    def measure(quantize) -> Format:
        before, after = quantize(token), quantize(dragged)
        unit = after.ruler[start]
        marks = numbers.E2M1 if quantize is numbers.nvfp4 else np.arange(128, dtype=np.float32)
        marks = np.unique(np.concatenate((-marks, marks))) * unit
        wrong = (after.values - dragged).reshape(-1, numbers.BLOCK)
        size = np.linalg.norm(dragged.reshape(-1, numbers.BLOCK), axis=1)
        # The dragged value itself must not hide how its neighbours fare.
        wrong[block, index] = 0.0
        size[block] = np.linalg.norm(dragged[neighbours])
        return Format(
            after.values[own], marks[np.abs(marks) <= span],
            np.divide(np.linalg.norm(wrong, axis=1), size, out=np.zeros_like(size), where=size > 0),
            _pair(before.values, token, after.values, dragged, neighbours),
            _pair(before.values, token, after.values, dragged, rest),
        )  # fmt: skip

    return Ruler(
        dragged[own], original, block, index, span, numbers.outlier_ratio(dragged), numbers.outlier_ratio(token),
        float(np.abs(np.delete(dragged, start + index)).max()),
        {"nvfp4": measure(numbers.nvfp4), "int8": measure(numbers.int8)},
    )  # fmt: skip


def _pair(before, token, after, dragged, where) -> tuple[float, float]:
    return (
        numbers.relative_error(before[where], token[where]),
        numbers.relative_error(after[where], dragged[where]),
    )
