"""A trace's rows laid out as arrays over (step, row of the map[, group]), and back.

A *row of the map* is one block in one branch of one model in one call. Cells that the trace does not have (a
cancelled run, a second transformer that starts half way) are absent: `present` is False there.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from engine.trace import Trace, TraceError

CELL_LIMIT = 20_000_000
"""Most cells of a layout: a few rows that claim far-apart keys must not allocate the machine's memory."""


@dataclass(frozen=True)
class Grid:
    """Where each row of `blocks` (`block_at`) and of `layers` (`layer_at`) stands in arrays of `shape`.

    `shape` is (steps, rows); `models` and `blocks` name the component and the block index of each row of the map.
    """

    shape: tuple[int, int]
    models: list[str]
    blocks: list[int]
    groups: list[str]
    block_at: tuple[np.ndarray, np.ndarray]
    layer_at: tuple[np.ndarray, np.ndarray, np.ndarray]

    @property
    def present(self) -> np.ndarray:
        """(steps, rows) bool: the trace has this cell."""
        found = np.zeros(self.shape, bool)
        found[self.block_at] = True
        return found

    def cells(self, values: np.ndarray, absent: float | bool | int) -> np.ndarray:
        """A column of `blocks` as (steps, rows)."""
        grid = np.full(self.shape, absent, dtype=values.dtype)
        grid[self.block_at] = values
        return grid

    def calls(self, values: np.ndarray, absent: float | bool | int) -> np.ndarray:
        """A column of `layers` as (steps, rows, groups)."""
        grid = np.full((*self.shape, len(self.groups)), absent, dtype=values.dtype)
        grid[self.layer_at] = values
        return grid


def layout(trace: Trace) -> Grid:
    """Lay out a trace; raises `TraceError` for one whose keys are too scattered to be a run."""
    call, step, block = (_joined(trace, name) for name in ("call", "step", "block"))
    (model, models), (branch, _) = (_named(trace, name) for name in ("model", "branch"))
    passes = _combine(call, model, branch)
    row, row_first = _dense(_combine(passes, block))
    # Steps are numbered within each pass by their order, so that a model that joins late starts at its own zero.
    moment, moment_first = _dense(_combine(passes, step))
    pass_of = passes[moment_first]
    position = np.arange(len(pass_of))
    begins = np.r_[True, pass_of[1:] != pass_of[:-1]][: len(pass_of)]
    column = (position - np.maximum.accumulate(np.where(begins, position, 0)))[moment]
    group, groups = pd.factorize(trace.layers["layer"])
    shape = (int(column.max(initial=-1)) + 1, len(row_first))
    if shape[0] * shape[1] * max(len(groups), 1) > CELL_LIMIT:
        raise TraceError("The trace's steps and blocks are too scattered to be one run; record it again.")
    n = len(trace.blocks)
    return Grid(
        shape=shape,
        models=[models[code] for code in model[row_first]],
        blocks=block[row_first].tolist(),
        groups=list(groups),
        block_at=(column[:n], row[:n]),
        layer_at=(column[n:], row[n:], group),
    )


def _joined(trace: Trace, name: str) -> np.ndarray:
    """A key of all block rows, then of all layer rows."""
    return np.concatenate([trace.blocks[name].to_numpy(), trace.layers[name].to_numpy()])


def _named(trace: Trace, name: str) -> tuple[np.ndarray, list[str]]:
    """A text key of all block rows, then of all layer rows, as codes, and what the codes stand for."""
    codes, names = [], {}
    for table in (trace.blocks, trace.layers):
        local, values = pd.factorize(table[name])
        known = np.array([names.setdefault(value, len(names)) for value in values], dtype=np.int64)
        codes.append(known[local])
    return np.concatenate(codes), list(names)


def _combine(*keys: np.ndarray) -> np.ndarray:
    """One number per combination, ordered by the first key, then the next."""
    total = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        total = total * (int(key.max(initial=0)) + 1) + key
    return total


def _dense(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rank of each value among the distinct ones, index of the first row of each distinct value)."""
    _, first, rank = np.unique(values, return_index=True, return_inverse=True)
    return rank, first
