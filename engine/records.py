"""The nouns of the method: what is decided, what it is decided from, and what calibration knows.

Nothing here computes anything and nothing imports torch, so that the policy, the what-if sliders, the lessons
and the tests read the same records as the live model.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from engine.files import known_fields, of_kind, parse_object, read_object, write_atomic

if TYPE_CHECKING:
    import pandas

NAN = float("nan")

BITS: Mapping[str, int] = {"nvfp4": 4, "int8": 8, "w4a16": 16, "stock": 16, "skipped": 0}
"""Activation bits of each precision. Weights are NVFP4 in all but `stock`; skipped counts 0, as the paper does."""

PRECISIONS = tuple(BITS)

DECIDED_BY = ("predictor", "first step", "resume", "uncalibrated", "policy", "outliers", "cache", "no signal")
"""Who settled a layer's precision. `no signal`: the value that the rule needs was not finite, or never observed."""

BLOCK_REASONS = (
    "reuse off", "first step", "warm-up", "final steps", "no history", "skip limit", "budget spent",
    "within budget", "signal not finite", "signal not observed",
)  # fmt: skip
"""Why a block was computed or skipped. `signal not observed` occurs in replays only."""

GROUP_REASONS = (
    "skipped", "first step", "resumed after skip", "uncalibrated", "predicted error above threshold",
    "predicted error within threshold", "outliers", "forced precision", "stock", "signal not finite",
    "signal not observed",
)  # fmt: skip
"""Why a layer group took its precision. `signal not observed` occurs in replays only."""


@dataclass(frozen=True)
class GroupDecision:
    """The precision of one layer group (layers that share an input) at one step.

    `predicted_error` is Ê = α·Γ(t−1) + β, NaN where the predictor was not asked; `outlier_ratio` is
    r = max|X| / mean|X| (paper Eq. 12), NaN where it was not measured.
    """

    precision: str
    decided_by: str
    reason: str
    predicted_error: float = NAN
    purified: bool = False
    outlier_ratio: float = NAN

    def row(self) -> dict:
        """The columns that this decision fills in `Trace.layers`."""
        return {
            "precision": self.precision, "predicted_error": self.predicted_error, "decided_by": self.decided_by,
            "reason": self.reason, "purified": self.purified, "outlier_ratio": self.outlier_ratio,
        }  # fmt: skip


@dataclass(frozen=True)
class BlockDecision:
    """What one block does at one step: reuse its cached delta (`skipped`) or compute, and how.

    `accumulated` is E_acc after the decision; `drift` the per-step drift that was weighed (NaN: none known);
    `gap` the steps since the block last computed, which is also the age of a reused delta (0: never computed);
    `refreshed`: computing, and the result replaces the cached delta.
    """

    skipped: bool
    refreshed: bool
    reason: str
    accumulated: float
    groups: Mapping[str, GroupDecision]
    drift: float = NAN
    gap: int = 0

    def row(self) -> dict:
        """The columns that this decision fills in `Trace.blocks`."""
        return {
            "skipped": self.skipped, "refreshed": self.refreshed, "reason": self.reason,
            "accumulated": self.accumulated, "drift": self.drift, "gap": self.gap,
        }  # fmt: skip


@dataclass(frozen=True)
class BlockState:
    """All that a decision may look at: one block's past in one branch of one run.

    Each field may also be a NumPy array with one element per block: the rules in `policy` are elementwise.
    `gamma_last` (Γ at the last computed step) and `drift` (c per step, the gap rule applied) are NaN until known.
    """

    computed: int = 0
    gamma_last: float = NAN
    drift: float = NAN
    accumulated: float = 0.0
    consecutive_skips: int = 0

    @property
    def steps_since_computed(self) -> int:
        """Steps from the last computed step to the one now to be decided (1: the previous step computed)."""
        return self.consecutive_skips + 1


class Coefficient(NamedTuple):
    """The fitted line of one group: predicted e₄ = `alpha`·Γ(t−1) + `beta`, with its R² and sample count.

    `weight` is what an error of this group does to the model's output, for what a bit there costs (`engine.probes`):
    MAC-weighted mean 1 over the groups, and 1 where it was not measured.
    """

    alpha: float
    beta: float
    r2: float
    samples: int
    weight: float = 1.0

    def row(self) -> dict:
        """Plain values; the weight is left out where it says nothing, so that older files keep their hash."""
        values = self._asdict()
        if self.weight == 1.0:
            del values["weight"]
        return values


class CalibrationError(ValueError):
    """A calibration that cannot be used, said in one sentence."""


@dataclass(frozen=True)
class Calibration:
    """One (α, β, R²), and a weight where it was measured, per group of each block of one model, fitted offline at one
    step count and guidance.

    `rows` maps (model component, block, group) to its line. `model_hash` names the weights it was fitted on.
    """

    model_hash: str
    steps: int
    guidance: float
    rows: Mapping[tuple[str, int, str], Coefficient] = field(default_factory=dict)
    prompts: int = 0
    created_by: str = ""

    @property
    def hash(self) -> str:
        """16 hex digits over everything that decides; the author's name does not."""
        document = self.to_dict()
        del document["created_by"]
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def weighed(self) -> bool:
        """Whether the groups' sensitivity was measured: some weight is not 1."""
        return any(line.weight != 1.0 for line in self.rows.values())

    def weighed_like(self, other: "Calibration | None") -> "Calibration":
        """These lines with the weights of `other`, where these have none and both are of the same model's weights.

        Sensitivity takes far longer to measure than lines do, and lines fitted anew do not change it.
        """
        if self.weighed or other is None or not other.weighed or other.model_hash != self.model_hash:
            return self
        rows = {
            key: line._replace(weight=other.rows[key].weight) if key in other.rows else line
            for key, line in self.rows.items()
        }
        return replace(self, rows=rows)

    def for_block(self, model: str, block: int) -> dict[str, Coefficient]:
        """The lines of one block's groups; a group without one is absent (uncalibrated)."""
        return {group: line for (name, index, group), line in self.rows.items() if (name, index) == (model, block)}

    def table(self) -> "pandas.DataFrame":
        """One row per group: model, block, group, alpha, beta, r2, samples, weight."""
        import pandas

        columns = ["model", "block", "group", *Coefficient._fields]
        return pandas.DataFrame([(*key, *line) for key, line in self.rows.items()], columns=columns)

    def to_dict(self) -> dict:
        """Plain JSON-ready values; `from_dict` is the inverse."""
        return {
            "kind": "6bit-calibration",
            "model_hash": self.model_hash,
            "steps": self.steps,
            "guidance": self.guidance,
            "prompts": self.prompts,
            "created_by": self.created_by,
            "rows": [
                {"model": model, "block": block, "group": group, **line.row()}
                for (model, block, group), line in self.rows.items()
            ],
        }

    @classmethod
    def from_dict(cls, document: Mapping) -> "Calibration":
        """Build from plain values; raises `CalibrationError` in one sentence for anything malformed."""
        fields = {"kind", "model_hash", "steps", "guidance", "prompts", "created_by", "rows"}
        known_fields(document, fields, "A calibration", CalibrationError)
        if document.get("kind") != "6bit-calibration":
            raise CalibrationError('This is not a calibration: expected "kind": "6bit-calibration"; calibrate again.')
        _check(document, "model_hash", str)
        _check(document, "steps", int, 1)
        _check(document, "guidance", float)
        _check({"prompts": 0, **document}, "prompts", int, 0)
        _check({"created_by": "", **document}, "created_by", str)
        listed = document.get("rows")
        if not isinstance(listed, list) or len(listed) > 20_000:
            raise CalibrationError("A calibration's rows must be a list of at most 20,000; calibrate again.")
        rows = {}
        for number, row in enumerate(listed):
            if not isinstance(row, dict):
                raise CalibrationError(f"Row {number} of the calibration is not an object; calibrate again.")
            known_fields(row, {"model", "block", "group", *Coefficient._fields}, "A calibration row", CalibrationError)
            _check(row, "model", str)
            _check(row, "group", str)
            _check(row, "block", int, 0)
            _check(row, "samples", int, 0)
            for name in ("alpha", "beta", "r2"):
                _check(row, name, float)
            weight = row.get("weight", 1.0)
            _check({"weight": weight}, "weight", float)
            if weight <= 0:
                raise CalibrationError(f"The calibration's weight must be above 0, got {weight!r}; calibrate again.")
            key = (row["model"], row["block"], row["group"])
            if key in rows:
                raise CalibrationError(
                    f"The calibration lists block {key[1]}, group {key[2]!r} twice; calibrate again."
                )
            numbers = (float(row[name]) for name in ("alpha", "beta", "r2"))
            rows[key] = Coefficient(*numbers, row["samples"], float(weight))
        return cls(
            model_hash=document["model_hash"],
            steps=document["steps"],
            guidance=float(document["guidance"]),
            rows=rows,
            prompts=document.get("prompts", 0),
            created_by=document.get("created_by", ""),
        )

    def to_json(self) -> str:
        """The calibration as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Calibration":
        """Parse JSON text; raises `CalibrationError` in one sentence."""
        return cls.from_dict(parse_object(text, "a calibration", CalibrationError))

    def save(self, path: str | os.PathLike) -> None:
        """Write the JSON file in one step (whole or not at all)."""
        write_atomic(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Calibration":
        """Read a JSON file; raises `CalibrationError` in one sentence."""
        return cls.from_dict(read_object(path, "a calibration file", error=CalibrationError))


def check_calibration(value: object) -> None:
    """Raise `CalibrationError` for what is no Calibration."""
    of_kind("calibration", value, Calibration, 'Calibration.load("model.json")', CalibrationError)


def _check(document: Mapping, name: str, kind: type, least: float = -math.inf) -> None:
    value = document.get(name)
    if kind is str:
        good, wanted = isinstance(value, str) and len(value) <= 200, "text of at most 200 characters"
    else:
        number = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
        good = number and abs(value) <= 1e9 and value >= least
        wanted = ("a finite number" if kind is float else "a whole number") + ("" if least < 0 else f" from {least}")
    if not good:
        shown = repr(value)[:60]
        raise CalibrationError(f"The calibration's {name} must be {wanted}, got {shown}; calibrate again.")
