"""The trace of a run: every decision, the signals it was made from, and what was measured besides.

Two tables. `blocks` has one row per (call, model, branch, step, block); `layers` one row per group of each of
those, present for skipped blocks too. Absent numbers are NaN, never filled in.

* call: ordinal of the pipeline call in the run; model: component name ("transformer", "transformer_2");
  branch: guidance branch ("" where both are batched in one forward).
* step, steps: ordinal of this model evaluation and how many are planned (2N−1 for a Heun scheduler).
* gamma: Γ(t) measured after computing. delta_change: the drift c as measured across `gap` steps, not divided.
* drift: the per-step drift that the decision weighed. accumulated: E_acc after the decision.
* drift_1 … drift_3 (probe): c against the delta 1 … 3 steps back, all of them computed.
* known: False only in replays, where the decision hangs on a signal that was never observed.
* milliseconds: wall time of this block in this step. macs: multiply-accumulates of the group if computed.
* error_nvfp4, error_int8 (probe): e₄ and e₈, activation-only relative errors, the worst member's.
* sample (probe): one real block of 16 input values as they reach the layer, before the rotation;
  sample_absmax: the largest magnitude in the sample's whole token, from which token scales follow.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from engine.records import Calibration

if TYPE_CHECKING:
    from engine.cost import Report

SCHEMA = 1

KEYS = ("call", "model", "branch", "step", "block")

BLOCK_COLUMNS: Mapping[str, type] = {
    "call": int, "model": str, "branch": str, "step": int, "block": int, "steps": int, "timestep": float,
    "gamma": float, "delta_change": float, "gap": int, "drift": float, "accumulated": float,
    "skipped": bool, "refreshed": bool, "reason": str, "known": bool, "milliseconds": float,
    "drift_1": float, "drift_2": float, "drift_3": float,
}  # fmt: skip

LAYER_COLUMNS: Mapping[str, type] = {
    "call": int, "model": str, "branch": str, "step": int, "block": int, "layer": str,
    "precision": str, "predicted_error": float, "outlier_ratio": float, "purified": bool,
    "decided_by": str, "reason": str, "known": bool, "macs": float,
    "error_nvfp4": float, "error_int8": float, "sample": list, "sample_absmax": float,
}  # fmt: skip

SAMPLE = 16
"""Values in a sample: one NVFP4 block."""

_NAN = float("nan")
_OPTIONAL = {"gap": 0, "accumulated": 0.0, "purified": False, "known": True, "sample": None}


class TraceError(ValueError):
    """A trace that cannot be used, said in one sentence."""


@dataclass(frozen=True)
class TraceMeta:
    """What was run, and with what. `model` is a name to show, never a folder of the machine.

    `policy` holds `Policy.to_dict()` and `calibration` the α, β table that decided. `replay` is None for a real
    run, else "exact", "open loop" or "partial". `seconds` maps stage → s, `memory` maps name → bytes.
    """

    model: str = ""
    family: str = ""
    policy: Mapping[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = None
    steps: int = 0
    guidance: float | None = None
    seed: int | None = None
    prompt: str = ""
    negative_prompt: str = ""
    height: int | None = None
    width: int | None = None
    frames: int | None = None
    fps: float | None = None
    dtype: str = ""
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    created: str = ""
    probe: bool = False
    replay: str | None = None
    schema: int = SCHEMA

    @property
    def calibration_hash(self) -> str:
        """Hash of the calibration that decided, "" without one."""
        return self.calibration.hash if self.calibration else ""

    def to_dict(self) -> dict:
        """Plain JSON-ready values."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        mappings = {name: dict(values[name]) for name in ("policy", "versions")}
        for name in ("seconds", "memory"):  # a figure that is not finite was not measured
            mappings[name] = {k: float(v) for k, v in values[name].items() if np.isfinite(v)}
        calibration = self.calibration.to_dict() if self.calibration else None
        return {**values, **mappings, "calibration": calibration}


@dataclass(frozen=True, eq=False)
class Trace:
    """`blocks` and `layers` as described above (columns BLOCK_COLUMNS, LAYER_COLUMNS in this order), and `meta`."""

    blocks: pd.DataFrame
    layers: pd.DataFrame
    meta: TraceMeta

    @property
    def report(self) -> "Report":
        """Average bits, shares and times (`engine.cost.report`)."""
        from engine.cost import report

        return report(self)

    @property
    def groups(self) -> list[str]:
        """The layer groups in the order in which they run."""
        return list(dict.fromkeys(self.layers["layer"]))

    def with_meta(self, **changes: Any) -> "Trace":
        """The same rows under changed meta fields."""
        return replace(self, meta=replace(self.meta, **changes))

    def save(self, path: str | os.PathLike) -> None:
        """Write one Parquet file in one step (whole or not at all); an OSError in one sentence where that fails."""
        from engine.tracefile import write

        write(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike, max_bytes: int = 256_000_000, max_rows: int = 2_000_000) -> "Trace":
        """Read a trace file; raises `TraceError` in one sentence for a truncated, foreign, false or too large one."""
        from engine.tracefile import read

        return read(path, max_bytes, max_rows)


def empty_trace(meta: TraceMeta | None = None) -> Trace:
    """A trace without rows: what figures are tested against, and a run cancelled before its first step."""
    return Trace(frame([], BLOCK_COLUMNS), frame([], LAYER_COLUMNS), meta or TraceMeta())


class Recorder:
    """Collects rows during a run, cheaply (a dict and an append), and turns them into frames on demand.

    One thread writes. Another may read `since` at any time: it sees whole rows only.
    """

    def __init__(self, meta: TraceMeta):
        self.meta = meta
        self._blocks: list[dict] = []
        self._layers: list[dict] = []

    def block(self, **row: Any) -> None:
        """Append one block row: the keys, `steps`, `**decision.row()`, and what was measured. The rest is NaN."""
        self._blocks.append(_complete(row, _BLOCK_DEFAULTS, "block"))

    def layer(self, **row: Any) -> None:
        """Append one layer row: the keys, `layer`, `macs`, `**group_decision.row()`, and what was measured."""
        self._layers.append(_complete(row, _LAYER_DEFAULTS, "layer"))

    def since(self, mark: tuple[int, int] = (0, 0)) -> tuple[pd.DataFrame, pd.DataFrame, tuple[int, int]]:
        """The rows appended after `mark`, as (blocks, layers, new mark)."""
        now = (len(self._blocks), len(self._layers))
        blocks = frame(self._blocks[mark[0] : now[0]], BLOCK_COLUMNS)
        layers = frame(self._layers[mark[1] : now[1]], LAYER_COLUMNS)
        return blocks, layers, now

    def trace(self, **meta: Any) -> Trace:
        """All rows so far; `meta` changes fields that were not known at the start (seconds, memory)."""
        blocks, layers, _ = self.since()
        described = replace(self.meta, **meta)
        # The number of steps is known to the scheduler only, once the pipeline runs.
        if not described.steps and self._blocks:
            described = replace(described, steps=self._blocks[-1]["steps"])
        return Trace(blocks, layers, described)


def frame(rows: list[dict], columns: Mapping[str, type]) -> pd.DataFrame:
    """A typed frame from complete rows: int64, float64, bool, str; `sample` holds a list of 16 floats or None."""
    return pd.DataFrame({name: column([row[name] for row in rows], kind) for name, kind in columns.items()})


def column(values: Any, kind: type) -> Any:
    """`values` as one typed column; the pandas `str` type for text, so that nothing depends on a category order."""
    if kind is str:
        return pd.array(values, dtype="str")
    if kind is list:
        cells = np.empty(len(values), dtype=object)
        cells[:] = [None if value is None else [float(x) for x in value] for value in values]
        return cells
    return np.asarray(values, dtype={int: np.int64, float: np.float64, bool: np.bool_}[kind])


_REQUIRED = object()
_BLOCK_REQUIRED = {*KEYS, "steps", "skipped", "refreshed", "reason"}
_LAYER_REQUIRED = {*KEYS, "layer", "precision", "decided_by", "reason"}
_BLOCK_DEFAULTS = {n: _REQUIRED if n in _BLOCK_REQUIRED else _OPTIONAL.get(n, _NAN) for n in BLOCK_COLUMNS}
_LAYER_DEFAULTS = {n: _REQUIRED if n in _LAYER_REQUIRED else _OPTIONAL.get(n, _NAN) for n in LAYER_COLUMNS}


def _complete(row: dict, defaults: dict, what: str) -> dict:
    whole = {**defaults, **row}
    if len(whole) != len(defaults):
        unknown = next(name for name in row if name not in defaults)
        raise ValueError(f"A {what} row has no column {unknown!r}; its columns are {', '.join(defaults)}.")
    for name, value in whole.items():
        if value is _REQUIRED:
            raise ValueError(f"A {what} row needs {name!r}, which was not given.")
    return whole
