"""A trace as arrays: what the map, the knobs and the explanations read.

A trace is long (one row per block and step, one per layer group); a picture is a grid. `Grid` holds both tables of
one model and one branch as dense arrays, with NaN or code 0 where nothing has been recorded (yet).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

# Codes of a cell. 0 is "nothing here"; 6 is a 16-bit call that an outlier asked
# for; 7 is a cell of a what-if that hangs on a signal never observed.
NOTHING, SKIPPED, NVFP4, INT8, W4A16, STOCK, PURIFIED, UNKNOWN = range(8)
CODES = {"skipped": SKIPPED, "nvfp4": NVFP4, "int8": INT8, "w4a16": W4A16, "stock": STOCK}
BITS = np.array([np.nan, 0.0, 4.0, 8.0, 16.0, 16.0, 16.0, np.nan])


class Grid(NamedTuple):
    """One run, dense. B blocks, S steps, G layer groups; float arrays are float64 with NaN for "not observed"."""

    blocks: tuple[int, ...]
    steps: int
    groups: tuple[str, ...]
    decision: np.ndarray        # uint8 (B, S, G): the codes above
    taken: np.ndarray           # uint8 (B, S, G): the same, with the guess in place of UNKNOWN
    block_reason: np.ndarray    # uint8 (B, S): index into block_reasons, 255 = nothing
    block_reasons: tuple[str, ...]
    group_reason: np.ndarray    # uint8 (B, S, G): index into group_reasons, 255 = nothing
    group_reasons: tuple[str, ...]
    decided_by: np.ndarray      # uint8 (B, S, G): index into deciders, 255 = nothing
    deciders: tuple[str, ...]
    gamma: np.ndarray           # (B, S)
    drift: np.ndarray           # (B, S): c as measured, across `gap` steps
    weighed: np.ndarray         # (B, S): the per-step drift that the decision weighed
    accumulated: np.ndarray     # (B, S)
    milliseconds: np.ndarray    # (B, S)
    outlier: np.ndarray         # (B, S, G)
    predicted: np.ndarray       # (B, S, G)
    error_nvfp4: np.ndarray     # (B, S, G), probe runs only
    error_int8: np.ndarray      # (B, S, G), probe runs only
    macs: np.ndarray            # (B, S, G)

    @property
    def skipped(self) -> np.ndarray:
        """bool (B, S): the whole block reused its last change."""
        return (self.decision == SKIPPED).any(axis=2)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.decision.shape  # type: ignore[return-value]


class View(NamedTuple):
    """One picture's worth of a trace: Wan 2.2 has two models, and separate guidance branches have their own."""

    model: str
    branch: str


def views(blocks: pd.DataFrame) -> list[View]:
    """The (model, branch) pairs in a trace, in order of appearance."""
    if blocks.empty:
        return []
    (model, models), (branch, branches) = (pd.factorize(blocks[name]) for name in ("model", "branch"))
    if len(models) == len(branches) == 1:
        return [View(str(models[0]), str(branches[0]))]
    pairs = pd.unique(model * len(branches) + branch)
    return [View(str(models[pair // len(branches)]), str(branches[pair % len(branches)])) for pair in pairs]


class Places(NamedTuple):
    """Where the rows of one view of a trace are in its grid: what all replays of a trace have in common."""

    blocks: tuple[int, ...]
    steps: int
    groups: tuple[str, ...]
    block_rows: np.ndarray | None          # bool, the rows of the table that count; None: all
    layer_rows: np.ndarray | None
    at_block: tuple[np.ndarray, ...]       # (block, step) of every such row
    at_layer: tuple[np.ndarray, ...]       # (block, step, group)


def places(blocks: pd.DataFrame, layers: pd.DataFrame, view: View | None = None, steps: int | None = None) -> Places:
    """The places of the last call in a trace that is not empty, of `view` or of the first pair found."""
    pairs = views(blocks)
    wanted = view if view in pairs else pairs[0]
    block_rows, layer_rows = _only(blocks, wanted), _only(layers, wanted)
    blocks, layers = _rows(blocks, block_rows), _rows(layers, layer_rows)
    names = tuple(int(v) for v in np.unique(blocks["block"].to_numpy()))
    layer, groups = pd.factorize(layers["layer"])
    index = np.full(max(names) + 1, -1)
    index[list(names)] = np.arange(len(names))
    return Places(
        names,
        max(int(blocks["step"].max()) + 1, steps or 0),
        tuple(str(name) for name in groups),
        block_rows,
        layer_rows,
        (index[blocks["block"].to_numpy(int)], blocks["step"].to_numpy(int)),
        (index[layers["block"].to_numpy(int)], layers["step"].to_numpy(int), layer),
    )


def build(blocks: pd.DataFrame, layers: pd.DataFrame, view: View | None = None, steps: int | None = None,
          where: Places | None = None) -> Grid:
    """Make the grid of the last call in a trace, of `view` or of the first pair found.

    `steps` widens the grid to a planned number of steps, so that a live map does not grow under the reader. `where` is
    `places(…)` of the same rows, for a caller who has it.
    """
    if blocks.empty:
        return _empty(steps or 0)
    where = where or places(blocks, layers, view, steps)
    blocks, layers = _rows(blocks, where.block_rows), _rows(layers, where.layer_rows)
    names, count, groups, at_block, at_layer = where.blocks, where.steps, where.groups, where.at_block, where.at_layer
    B, S, G = len(names), count, len(groups)

    def plane(column: str) -> np.ndarray:
        return _scatter(blocks, column, (B, S), at_block)

    def volume(column: str) -> np.ndarray:
        return _scatter(layers, column, (B, S, G), at_layer)

    decision = np.zeros((B, S, G), np.uint8)
    taken, precisions = pd.factorize(layers["precision"])
    chosen = np.array([CODES[str(name)] for name in precisions], np.uint8)[taken]
    purified = layers["purified"].to_numpy(bool) & (chosen == W4A16)      # an alarm may also ask for 8 bits: INT8 then
    chosen = np.where(purified, np.uint8(PURIFIED), chosen)
    taken_codes = decision.copy()
    taken_codes[at_layer] = chosen
    if "known" in layers:
        chosen = np.where(layers["known"].to_numpy(bool), chosen, np.uint8(UNKNOWN))
    decision[at_layer] = chosen
    block_reason, block_reasons = _labels(blocks, "reason", (B, S), at_block)
    group_reason, group_reasons = _labels(layers, "reason", (B, S, G), at_layer)
    decided_by, deciders = _labels(layers, "decided_by", (B, S, G), at_layer)
    return Grid(
        names,
        count,
        groups,
        decision,
        taken_codes,
        block_reason,
        block_reasons,
        group_reason,
        group_reasons,
        decided_by,
        deciders,
        plane("gamma"),
        plane("delta_change"),
        plane("drift"),
        plane("accumulated"),
        plane("milliseconds"),
        volume("outlier_ratio"),
        volume("predicted_error"),
        volume("error_nvfp4"),
        volume("error_int8"),
        volume("macs"),
    )


def same_shape(a: Grid, b: Grid) -> bool:
    """Two grids can be compared cell by cell."""
    return a.shape == b.shape and a.groups == b.groups and a.blocks == b.blocks


def merge(kept: Grid, other: Grid, where: np.ndarray) -> Grid:
    """`kept`, with `other` in the cells `where`, bool (B, S), is true. Both grids have one shape."""
    fields = {}
    for codes, names in (
        ("block_reason", "block_reasons"),
        ("group_reason", "group_reasons"),
        ("decided_by", "deciders"),
    ):
        known = getattr(kept, names)
        fields[names] = known + tuple(name for name in getattr(other, names) if name not in known)
        place = np.full(256, 255, np.uint8)
        place[: len(getattr(other, names))] = [fields[names].index(name) for name in getattr(other, names)]
        fields[codes] = _pick(where, place[getattr(other, codes)], getattr(kept, codes))
    arrays = [name for name, value in kept._asdict().items() if isinstance(value, np.ndarray) and name not in fields]
    return kept._replace(**fields, **{name: _pick(where, getattr(other, name), getattr(kept, name)) for name in arrays})


def block_bits(grid: Grid) -> np.ndarray:
    """(B, S) mean bits over the groups of a cell, weighted by their multiply-accumulates where those are known."""
    bits = BITS[grid.decision]
    weight = np.where(np.isfinite(grid.macs) & (grid.macs > 0), grid.macs, 1.0)
    weight = np.where(np.isfinite(bits), weight, 0.0)
    total = weight.sum(axis=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(total > 0, np.nansum(np.nan_to_num(bits) * weight, axis=2) / total, np.nan)


def _pick(where: np.ndarray, then: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    return np.where(where if then.ndim == 2 else where[:, :, None], then, otherwise)


def _only(frame: pd.DataFrame, view: View) -> np.ndarray | None:
    keep = np.ones(len(frame), bool)
    for column, value in (("model", view.model), ("branch", view.branch)):
        codes, names = pd.factorize(frame[column])
        if len(names) > 1:
            keep &= codes == [str(name) for name in names].index(value)
    calls = frame["call"].to_numpy()
    keep &= calls == calls.max()
    return None if keep.all() else keep


def _rows(frame: pd.DataFrame, keep: np.ndarray | None) -> pd.DataFrame:
    return frame if keep is None else frame[keep]


def _scatter(frame: pd.DataFrame, column: str, shape: tuple[int, ...], at: tuple) -> np.ndarray:
    out = np.full(shape, np.nan)
    if column in frame:
        out[at] = frame[column].to_numpy(float)
    return out


def _labels(frame: pd.DataFrame, column: str, shape: tuple[int, ...], at: tuple) -> tuple[np.ndarray, tuple[str, ...]]:
    out = np.full(shape, 255, np.uint8)
    codes, names = pd.factorize(frame[column])
    out[at] = codes.astype(np.uint8)
    return out, tuple(str(name) for name in names)


def _empty(steps: int) -> Grid:
    flat, deep = np.zeros((0, steps)), np.zeros((0, steps, 0))
    return Grid(
        (),
        steps,
        (),
        deep.astype(np.uint8),
        deep.astype(np.uint8),
        flat.astype(np.uint8),
        (),
        deep.astype(np.uint8),
        (),
        deep.astype(np.uint8),
        (),
        flat,
        flat,
        flat,
        flat,
        flat,
        deep,
        deep,
        deep,
        deep,
        deep,
    )
