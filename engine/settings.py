"""What a person can set: the policy, its ranges, the presets of the paper's ablation, and warnings in sentences.

What the settings mean, rule by rule, is `engine.policy`.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any

from engine.files import known_fields, of_kind, parse_object, read_object, shown, write_atomic
from engine.notice import Notice, notice
from engine.records import Calibration

PRECISION_CHOICES = ("dynamic", "nvfp4", "int8", "w4a16", "stock")
GAP_CHOICES = ("linear", "sqrt", "none")
RESUME_CHOICES = ("int8", "last_gamma")
PURIFY_CHOICES = ("w4a16", "int8")
WEIGHTING_CHOICES = ("none", "sensitivity")

RANGES: Mapping[str, tuple[float, float]] = {
    "error_threshold": (0.0, 1.0),
    "tdc_threshold": (0.0, 10.0),
    "max_skips": (0, 100),
    "outlier_threshold": (1.0, 1_000_000.0),
    "extrapolation": (0.0, 1.0),
    "warmup_steps": (0, 10_000),
    "protect_last": (0, 10_000),
    "tuned_steps": (1, 10_000),
}


class PolicyError(ValueError):
    """A policy that cannot be, said in one sentence that names the field, the value and its range."""


@dataclass(frozen=True)
class Policy:
    """Everything that a person can set. The defaults are the full method, the preset `sixbit`.

    * precision: "dynamic" (DMPQ) or one forced precision; "stock" is the model's own 16-bit weights and code.
    * error_threshold: the largest predicted relative error that NVFP4 may make (0 to 1), as `weighting` weighs it.
    * tdc, tdc_threshold, max_skips, warmup_steps, protect_last, gap: block reuse; thresholds are relative drift.
    * pdr, outlier_threshold: 16 bits for groups with r above it, in blocks that refresh the cache.
    * resume: what decides right after a skip.
    * purify_to, extrapolation, weighting: our extensions to PDR, TDC and DMPQ, off by default ("w4a16", 0, "none"); see
      `engine.policy`.
    * tuned_steps: the number of steps that tdc_threshold was tuned at; None: not tuned.

    The default thresholds were measured on the embedded model at its 30 steps: there 0.092 is the smallest multiple of
    0.002 with DMPQ alone under 6 bits (5.5); from 0.12 to 0.18 the skips rise from 37 to 47 % for 0.1 dB of PSNR to
    FP16 (2.0 dB to the same weights), with as many of 64 clips right as in FP16. What else was measured, and where
    these rules lose: assets/quality/README.md.

    Raises `PolicyError` (a ValueError) for a value out of range and for a field that there is not. Values are never
    clipped in silence.
    """

    precision: str = "dynamic"
    error_threshold: float = 0.092
    tdc: bool = True
    tdc_threshold: float = 0.18
    max_skips: int = 2
    pdr: bool = True
    outlier_threshold: float = 25.0
    gap: str = "sqrt"
    resume: str = "int8"
    purify_to: str = "w4a16"
    extrapolation: float = 0.0
    weighting: str = "none"
    warmup_steps: int = 3
    protect_last: int = 1
    tuned_steps: int | None = 30

    def __new__(cls, *values: Any, **fields: Any) -> "Policy":
        # Before the generated __init__, whose TypeError would name nothing that there is.
        known_fields(fields, set(cls.__dataclass_fields__), "A policy", PolicyError)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, choices in (
            ("precision", PRECISION_CHOICES), ("gap", GAP_CHOICES), ("resume", RESUME_CHOICES),
            ("purify_to", PURIFY_CHOICES), ("weighting", WEIGHTING_CHOICES),
        ):  # fmt: skip
            _one_of(name, getattr(self, name), choices)
        for name in ("tdc", "pdr"):
            _one_of(name, getattr(self, name), (True, False))
            object.__setattr__(self, name, bool(getattr(self, name)))
        for name in ("error_threshold", "tdc_threshold", "outlier_threshold", "extrapolation"):
            object.__setattr__(self, name, _in_range(name, getattr(self, name), whole=False))
        for name in ("max_skips", "warmup_steps", "protect_last", "tuned_steps"):
            if name != "tuned_steps" or self.tuned_steps is not None:
                object.__setattr__(self, name, _in_range(name, getattr(self, name), whole=True))

    @classmethod
    def preset(cls, name: str) -> "Policy":
        """One of `PRESETS` by name."""
        _one_of("preset", name, tuple(PRESETS))
        return PRESETS[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Policy":
        """Build from plain values; absent fields take their defaults, unknown ones are refused."""
        known_fields(values, set(cls.__dataclass_fields__), "A policy", PolicyError)
        return cls(**values)

    def to_json(self) -> str:
        """The policy as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Policy":
        """Parse JSON text; raises `PolicyError` in one sentence."""
        return cls.from_dict(parse_object(text, "a policy", PolicyError))

    def save(self, path: str | os.PathLike) -> None:
        """Write a JSON file in one step (whole or not at all); an OSError in one sentence where that fails."""
        write_atomic(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Policy":
        """Read a JSON file; raises `PolicyError` in one sentence."""
        return cls.from_dict(read_object(path, "a policy file", limit=100_000, error=PolicyError))


def check_policy(value: object) -> None:
    """Raise `PolicyError` for what is no Policy."""
    of_kind("policy", value, Policy, 'Policy.preset("sixbit")', PolicyError)


def _one_of(name: str, value: object, choices: Sequence) -> None:
    if not isinstance(value, (str, bool)) or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise PolicyError(notice("one_of", "{name} must be one of {choices}; got {given}.", name=name, choices=listed,
                                 given=shown(value)))


def _in_range(name: str, value: object, whole: bool) -> int | float:
    low, high = RANGES[name]
    # NaN and infinity are outside every range, and an integer too large for a float is never turned into one.
    number = isinstance(value, Real) and not isinstance(value, bool) and low <= value <= high
    if number and whole:
        number = isinstance(value, Integral) or float(value).is_integer()
    if not number:
        raise PolicyError(out_of_range(name, whole, f"{low:g}", f"{high:,.0f}", shown(value)))
    return int(value) if whole else float(value)


def out_of_range(name: str, whole: bool, low: str, high: str, given: str) -> Notice:
    """The sentence for a number that is none, or is too small or too large."""
    values = {"name": name, "low": low, "high": high, "given": given}
    if whole:
        return notice("range_whole", "{name} must be a whole number from {low} to {high}; got {given}.", **values)
    return notice("range", "{name} must be a number from {low} to {high}; got {given}.", **values)


_NO_REUSE = {"tdc": False, "pdr": False}

PRESETS: Mapping[str, Policy] = {
    "fp16": Policy(precision="stock", **_NO_REUSE),
    "w4a16": Policy(precision="w4a16", **_NO_REUSE),
    "w4a8": Policy(precision="int8", **_NO_REUSE),
    "w4a4": Policy(precision="nvfp4", **_NO_REUSE),
    "dmpq": Policy(**_NO_REUSE),
    "dmpq_sensitive": Policy(weighting="sensitivity", error_threshold=0.055, **_NO_REUSE),
    "tdc": Policy(precision="stock", pdr=False),
    "dmpq_tdc": Policy(pdr=False),
    "sixbit": Policy(),
    "int8_tdc": Policy(precision="int8", pdr=False),
}
"""The paper's ablation and `dmpq_sensitive`, an extension of ours: `dmpq` weighed by measured sensitivity, with the
threshold that gives 6.0 bits on the embedded model. `int8_tdc` is what a CPU or a card without FP4 tensor cores should
use."""

BREAK_IT = Policy(precision="nvfp4", tdc_threshold=1.0, max_skips=6, pdr=False, warmup_steps=1, protect_last=0)
"""Loose reuse of noisy deltas, to see what the limits protect from. No preset: not for use."""


def needs_calibration(policy: Policy) -> bool:
    """Whether the policy asks the predictor; uncalibrated, it would run INT8 everywhere."""
    return policy.precision == "dynamic"


def weighs(policy: Policy) -> bool:
    """Whether the policy compares weight · Ê with its error threshold, instead of Ê itself."""
    return policy.precision == "dynamic" and policy.weighting == "sensitivity"


def unweighed(policy: Policy, calibration: Calibration | None) -> list[Notice]:
    """The sentence for a policy that weighs by weights which the calibration does not have; none without a calibration,
    where there is a louder one."""
    if not weighs(policy) or calibration is None or not calibration.rows or calibration.weighed:
        return []
    return [notice(
        "unweighed", "This policy weighs errors by measured sensitivity, but this model's was never measured, so every "
        "weight is 1; run `python -m engine calibrate --sensitivity` once.")]


def signals_needed(policy: Policy) -> frozenset[str]:
    """The signals that decide ("gamma", "delta_change", "outlier_ratio"): to be measured wherever a block computes."""
    wanted = {
        "gamma": policy.precision == "dynamic",
        "delta_change": policy.tdc,
        "outlier_ratio": policy.tdc and policy.pdr and bool(set(purifiable(policy)) & set(_taken(policy))),
    }
    return frozenset(name for name, wants in wanted.items() if wants)


def purifiable(policy: Policy) -> tuple[str, ...]:
    """The precisions that an alarm lifts to `purify_to`."""
    return ("nvfp4", "int8") if policy.purify_to == "w4a16" else ("nvfp4",)


def _taken(policy: Policy) -> tuple[str, ...]:
    return ("nvfp4", "int8") if policy.precision == "dynamic" else (policy.precision,)


def preset_name(policy: Policy) -> str | None:
    """The preset that equals this policy, if one does."""
    return next((name for name, preset in PRESETS.items() if preset == policy), None)


def warnings(policy: Policy, steps: int) -> list[Notice]:
    """Sentences about settings that are allowed but probably not meant, for a run of `steps` evaluations."""
    found = []
    if policy.tdc:
        free = steps - max(policy.warmup_steps, 2) - policy.protect_last
        if policy.max_skips == 0 or free <= 0:
            found.append(notice(
                "no_skips", "Nothing can be skipped: with {steps} steps, warm-up {warmup}, last {last} and at most "
                "{most} skips in a row, every block computes.",
                steps=steps, warmup=policy.warmup_steps, last=policy.protect_last, most=policy.max_skips))
        if policy.tuned_steps not in (None, steps):
            found.append(notice(
                "tuned_steps", "The reuse tolerance was tuned at {tuned} steps; at {steps} steps the drift between "
                "steps differs, so tune it again.", tuned=policy.tuned_steps, steps=steps))
        tuned = Policy.tdc_threshold
        if policy.tdc_threshold > 2 * tuned:
            found.append(notice(
                "loose_reuse", "A reuse tolerance of {given} is more than twice the default {default}: expect smeared "
                "or frozen motion.", given=f"{policy.tdc_threshold:g}", default=f"{tuned:g}"))
        if policy.warmup_steps < Policy.warmup_steps:
            found.append(
                notice(
                    "warmup",
                    "A warm-up of {given} is shorter than {least}: reuse in the first steps can smear the picture "
                    "or stop the motion, because there the whole layout is decided.",
                    given=policy.warmup_steps, least=Policy.warmup_steps,
                )  # fmt: skip
            )
    if policy.pdr and "outlier_ratio" not in signals_needed(policy):
        idle, cause = "alarm_without_reuse", "reuse is off"
        if policy.tdc:
            idle, cause = "alarm_at_16_bits", "the layers already take 16 bits"
            if policy.precision == "int8":
                idle, cause = "alarm_at_8_bits", "it lifts to 8 bits, which all layers already take"
        found.append(notice(
            idle, f"The outlier alarm does nothing here: it acts when a cache is refreshed, but {cause}."))
    return found
