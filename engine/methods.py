"""What the quality lab compares: every method, the settings it is swept over, and the prompts. No torch here.

Lists of (method, setting), in the order in which a sweep that may be cut short should run them:

* `FRONTIER`: ours and what a user would pick instead, each over its own threshold. Two classes stand in it, and
  `WEIGHTS` names a method's: 16-bit weights (`tdc` is our cache rule alone, against diffusers' caches), and packed
  NVFP4 weights, 3.3 times smaller (`int8_tdc` against diffusers' first-block cache on the same packed weights). So
  cache rule meets cache rule, and what the dynamic parts buy stands apart from what the weights cost.
* `EXTENDED`: our extensions beyond the paper, on trial.
* `DEFAULTS`: one setting of `sixbit` or `int8_tdc` changed at a time, to choose the defaults from.
* `FINE`: more thresholds of the same methods.
* `SENSITIVE_REUSE`: the bits chosen by measured sensitivity, under reuse.
* `BRIEF` and `ACCURACY`: parts of the first two, to run first, and to run on more prompts.

Our methods are presets of `engine.policy` with some fields replaced; the rest of what they know comes from probes:
`static_mix` and `static_sensitive` (the paper's rival: one precision per layer, fixed offline, as ViDiT-Q does),
`dmpq_weighted` (the predicted error weighted by how much the block changes the stream) and those of `SENSITIVE` (by how
much the model's output minds it: `Policy(weighting="sensitivity")`). `target_bits` instead of an error threshold means
the threshold at which the probes' replay spends that many bits where it computes.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

from engine import vocabulary
from engine.policy import PRESETS, Policy
from engine.sweep import Task, setting

Grid = Mapping[str, tuple[dict, ...]]

REUSE = (0.08, 0.12, 0.18)
ERROR = 0.092
"""The error threshold of the dynamic methods while reuse is swept: about 6 bits where the embedded model computes."""

_REUSE = tuple({"tdc_threshold": value} for value in REUSE)
_DYNAMIC_REUSE = tuple({"error_threshold": ERROR, **values} for values in _REUSE)
_AHEAD = (
    {"extrapolation": 0.8, "tdc_threshold": 0.12},
    {"extrapolation": 0.8, "tdc_threshold": 0.18},
    {"extrapolation": 0.8, "tdc_threshold": 0.26, "max_skips": 3},
)
_LEAN = {"resume": "last_gamma", "purify_to": "int8"}

OURS: Mapping[str, str] = {
    **{
        name: name
        for name in ("fp16", "w4a16", "w4a8", "w4a4", "dmpq", "dmpq_sensitive", "tdc", "int8_tdc", "dmpq_tdc", "sixbit")
    },
    **dict.fromkeys(("static_mix", "dmpq_weighted"), "dmpq"),
    "static_sensitive": "dmpq_sensitive",
    "dmpq_tdc_sensitive": "dmpq_tdc",
    "sixbit_sensitive": "sixbit",
    "tdc_extrapolated": "tdc",
    "int8_tdc_extrapolated": "int8_tdc",
    "sixbit_lean": "sixbit",
    "sixbit_extended": "sixbit",
}
"""Method → the preset that its settings change."""

CALIBRATED = frozenset(name for name, preset in OURS.items() if PRESETS[preset].precision == "dynamic")
"""Methods that need probe traces, for their fitted lines."""

SENSITIVE = frozenset({"static_sensitive", "dmpq_sensitive", "dmpq_tdc_sensitive", "sixbit_sensitive"})
"""Methods that weigh by the measured sensitivity of the layers, and need it."""

EXTENSIONS = frozenset({
    "dmpq_weighted", "dmpq_sensitive", "dmpq_tdc_sensitive", "sixbit_sensitive", "tdc_extrapolated",
    "int8_tdc_extrapolated", "sixbit_lean", "sixbit_extended",
})  # fmt: skip
"""Ours beyond the paper, on trial: measured with the frontier, named as extensions."""

FRONTIER: Grid = {
    "fp16": ({},),
    "first_block_cache": tuple({"threshold": value} for value in (0.05, 0.12, 0.20)),
    "tdc": _REUSE,
    "taylorseer": tuple({"interval": value} for value in (2, 3)),
    "mag_cache": tuple({"threshold": value} for value in (0.06, 0.12, 0.24)),
    "pyramid_attention_broadcast": ({"skip_range": 2},),
    "smoothquant_w8a8": ({},),
    "w4a16": ({},),
    "w4a8": ({},),
    "w4a4": ({},),
    "int8_tdc": _REUSE,
    "w4a8_first_block_cache": tuple({"threshold": value} for value in (0.05, 0.12, 0.20)),
    "dmpq": tuple({"error_threshold": value} for value in (0.085, ERROR, 0.097)),
    "dmpq_tdc": (_DYNAMIC_REUSE[2],),
    "sixbit": _DYNAMIC_REUSE,
    "static_mix": ({"target_bits": 6.0},),
    "static_sensitive": ({"target_bits": 6.0},),
}

EXTENDED: Grid = {
    "tdc_extrapolated": _AHEAD,
    "int8_tdc_extrapolated": _AHEAD,
    "sixbit_lean": ({**_LEAN, **_DYNAMIC_REUSE[2]},),
    "sixbit_extended": tuple({"error_threshold": ERROR, **values} for values in _AHEAD),
    "dmpq_sensitive": ({"target_bits": 6.0},),
}

BRIEF: Grid = {
    "fp16": ({},),
    "tdc": _REUSE,
    "first_block_cache": FRONTIER["first_block_cache"],
    "tdc_extrapolated": _AHEAD,
    "mag_cache": FRONTIER["mag_cache"],
    "taylorseer": FRONTIER["taylorseer"],
    "w4a16": ({},),
    "w4a8": ({},),
    "w4a4": ({},),
    "dmpq": ({"error_threshold": ERROR},),
    "sixbit": (_DYNAMIC_REUSE[2],),
    "int8_tdc": _REUSE,
    "w4a8_first_block_cache": FRONTIER["w4a8_first_block_cache"],
    "int8_tdc_extrapolated": _AHEAD[:2],
    "dmpq_tdc": (_DYNAMIC_REUSE[2],),
    "static_mix": ({"target_bits": 6.0},),
    "dmpq_sensitive": ({"target_bits": 6.0},),
}
"""The part of `FRONTIER` and `EXTENDED` to run first where time is short: what the README's lines rest on."""

ACCURACY: Grid = {
    "fp16": ({},),
    "w4a8": ({},),
    "dmpq": ({"error_threshold": ERROR},),
    "sixbit": (_DYNAMIC_REUSE[2],),
    "int8_tdc": (_REUSE[2],),
    "int8_tdc_extrapolated": (_AHEAD[1],),
    "dmpq_sensitive": ({"target_bits": 6.0},),
}
"""Presets at their own thresholds, for more prompts than the frontier has: prompt accuracy counts clips one by one."""

SENSITIVE_REUSE: Grid = {
    "dmpq_sensitive": tuple({"target_bits": value} for value in (6.0, 5.0, 7.0)),
    "dmpq_tdc_sensitive": (
        {"target_bits": 6.0, **_REUSE[2]},
        {"target_bits": 5.0, **_REUSE[2]},
        {"extrapolation": 0.8, "target_bits": 6.0, **_REUSE[2]},
        {"extrapolation": 0.8, "target_bits": 7.0, **_REUSE[2]},
    ),
    "sixbit_sensitive": (
        {"target_bits": 6.0, **_REUSE[2]},
        {"extrapolation": 0.8, "target_bits": 6.0, **_REUSE[2]},
        {"target_bits": 6.0, **_LEAN, **_REUSE[2]},
    ),
}
"""Weighting by sensitivity under reuse: `target_bits` is met without it."""

DEFAULTS: Grid = {
    "dmpq_tdc": _DYNAMIC_REUSE[:2],
    "int8_tdc": (
        *({"gap": gap, **values} for gap in ("linear", "none") for values in _REUSE[1:]),
        *({"warmup_steps": value, **_REUSE[2]} for value in (2, 5)),
        *({"protect_last": value, **_REUSE[2]} for value in (0, 2)),
        *({"max_skips": value, **_REUSE[2]} for value in (1, 3)),
    ),
    "sixbit": tuple(
        {**_DYNAMIC_REUSE[2], **change}
        for change in (
            {"resume": "last_gamma"},
            {"outlier_threshold": 60.0},
            {"purify_to": "int8"},
            {"gap": "linear"},
            {"extrapolation": 0.8},
            {"extrapolation": 0.8, **_LEAN},
            {"gap": "linear", "outlier_threshold": 60.0, "resume": "last_gamma"},
        )
    ),
}

FINE: Grid = {
    "dmpq_weighted": ({"target_bits": 6.0},),
    "dmpq_sensitive": ({"target_bits": 5.0},),
    "tdc": ({"tdc_threshold": 0.05}, {"tdc_threshold": 0.26}),
    "int8_tdc": ({"tdc_threshold": 0.05}, {"tdc_threshold": 0.26}),
    "first_block_cache": ({"threshold": 0.08}, {"threshold": 0.30}),
    "w4a8_first_block_cache": ({"threshold": 0.08}, {"threshold": 0.30}),
    "sixbit": ({"error_threshold": ERROR, "tdc_threshold": 0.26},),
    "dmpq": ({"error_threshold": 0.075}, {"error_threshold": 0.11}),
    "taylorseer": ({"interval": 4},),
    "mag_cache": ({"threshold": 0.03},),
    "pyramid_attention_broadcast": ({"skip_range": 3},),
    "tdc_extrapolated": (
        *({"extrapolation": value, **_REUSE[2]} for value in (0.6, 1.0)),
        {"extrapolation": 0.8, "tdc_threshold": 0.50, "max_skips": 4},
    ),
}

GRIDS: Mapping[str, Grid] = {
    "frontier": FRONTIER, "extended": EXTENDED, "brief": BRIEF, "defaults": DEFAULTS, "fine": FINE,
    "accuracy": ACCURACY, "sensitive": SENSITIVE_REUSE,
}  # fmt: skip


def weights_of(method: str) -> str:
    """The weights that a method runs: "16-bit", "int8" or "nvfp4" (packed, 3.3 times smaller than 16 bits)."""
    if method == "smoothquant_w8a8":
        return "int8"
    if method in OURS:
        return "16-bit" if PRESETS[OURS[method]].precision == "stock" else "nvfp4"
    return "nvfp4" if method.startswith("w4") else "16-bit"


def prompts(count: int, seed: int = 2026, held_out: bool = True) -> list[tuple[str, int]]:
    """`count` (prompt, seed) pairs: plain and scenic, one and two objects in turn, the same on every machine.

    With `held_out`, every prompt holds a combination that training never showed; without, none does (for calibration).
    """
    kinds = [(dialect, objects) for objects in (1, 2) for dialect in vocabulary.DIALECTS]
    generator, found = random.Random(f"{seed} quality {held_out}"), []
    while len(found) < count:
        scene = vocabulary.random_scene(generator, *kinds[len(found) % len(kinds)])
        if vocabulary.is_held_out(scene) == held_out:
            found.append((vocabulary.render(scene), len(found) + (1000 if held_out else 0)))
    return found


def tasks(
    grid: Grid, pairs: Iterable[tuple[str, int]], steps: int, guidance: float, model: str
) -> list[Task]:
    """Every setting of every method for the first (prompt, seed), then for the next: cut short, it stays fair."""
    return [
        Task(method, setting(**values), prompt, seed, steps, guidance, model)
        for prompt, seed in pairs
        for method, settings in grid.items()
        for values in settings
    ]


def chosen(grid: Grid, names: Iterable[str] | None) -> Grid:
    """The part of `grid` with these methods; all of it for None. Raises ValueError for a name in no grid."""
    if names is None:
        return grid
    names, known = set(names), list(dict.fromkeys(name for grid in GRIDS.values() for name in grid))
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise ValueError(f"There is no method {unknown!r} here; choose from {', '.join(known)}.")
    return {name: grid[name] for name in grid if name in names}


def policy_of(method: str, values: Mapping, error_threshold: float | None = None) -> Policy:
    """The policy of one of our methods. `error_threshold` answers `target_bits`, where the setting has it."""
    fields = {name: value for name, value in values.items() if name != "target_bits"}
    if method in SENSITIVE:
        fields["weighting"] = "sensitivity"
    if error_threshold is not None:
        fields["error_threshold"] = error_threshold
    return replace(PRESETS[OURS[method]], **fields)
