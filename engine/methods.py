"""What the quality lab compares: every method, the settings it is swept over, and the prompts. No torch here.

Three lists of (method, setting):

* `FRONTIER`: ours and what a user would pick instead, each over its own threshold.
* `DEFAULTS`: one setting of `sixbit` (or `dmpq`) changed at a time, to choose the defaults from.
* `TIMING`: the frontier again, run alone on a machine, for the seconds that the plots show.

Our methods are presets of `engine.policy` with some fields replaced. Three of them go beyond the paper and say so:
`static_mix` (the paper's rival: one precision per layer, fixed offline, as ViDiT-Q does), `dmpq_weighted` (the
predicted error weighted by how much the block changes the stream), and `target_bits` instead of an error threshold:
the threshold at which the probes' replay spends that many bits where it computes.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

from engine import vocabulary
from engine.policy import PRESETS, Policy
from engine.sweep import Task, setting

REUSE = (0.06, 0.12, 0.18, 0.26)
ERROR = 0.092
"""The error threshold of the dynamic methods while reuse is swept: about 6 bits where computed on the embedded model."""

_DYNAMIC_REUSE = tuple({"error_threshold": ERROR, "tdc_threshold": value} for value in REUSE)

OURS: Mapping[str, str] = {
    **{name: name for name in ("fp16", "w4a16", "w4a8", "w4a4", "dmpq", "tdc", "int8_tdc", "dmpq_tdc", "sixbit")},
    "static_mix": "dmpq",
    "dmpq_weighted": "dmpq",
}
"""Method → the preset that its settings change."""

CALIBRATED = frozenset({"dmpq", "dmpq_tdc", "sixbit", "static_mix", "dmpq_weighted"})
"""Methods that need probe traces, for their fitted lines."""

EXTENSIONS = frozenset({"dmpq_weighted"})
"""Ours beyond the paper, on trial: measured with the frontier, published beside it."""

FRONTIER: Mapping[str, tuple[dict, ...]] = {
    "fp16": ({},),
    "first_block_cache": tuple({"threshold": value} for value in (0.05, 0.08, 0.12, 0.20)),
    "taylorseer": tuple({"interval": value} for value in (2, 3, 4)),
    "mag_cache": tuple({"threshold": value} for value in (0.03, 0.06, 0.12, 0.24)),
    "pyramid_attention_broadcast": tuple({"skip_range": value} for value in (2, 3, 4)),
    "smoothquant_w8a8": ({},),
    "w4a16": ({},),
    "w4a8": ({},),
    "w4a4": ({},),
    "tdc": tuple({"tdc_threshold": value} for value in REUSE),
    "int8_tdc": tuple({"tdc_threshold": value} for value in REUSE),
    "dmpq": tuple({"error_threshold": value} for value in (0.08, ERROR, 0.10, 0.12)),
    "static_mix": ({"target_bits": 6.0},),
    "dmpq_weighted": ({"target_bits": 5.0}, {"target_bits": 6.0}),
    "dmpq_tdc": _DYNAMIC_REUSE,
    "sixbit": _DYNAMIC_REUSE,
}

BRIEF: Mapping[str, tuple[dict, ...]] = {
    "fp16": ({},),
    "w4a8": ({},),
    "w4a4": ({},),
    "sixbit": (_DYNAMIC_REUSE[2],),
    "int8_tdc": ({"tdc_threshold": REUSE[2]},),
    "first_block_cache": tuple({"threshold": value} for value in (0.08, 0.20)),
    "tdc": ({"tdc_threshold": REUSE[2]},),
    "dmpq": ({"error_threshold": ERROR},),
    "taylorseer": ({"interval": 2},),
    "mag_cache": ({"threshold": 0.06},),
    "smoothquant_w8a8": ({},),
    "static_mix": ({"target_bits": 6.0},),
    "dmpq_tdc": (_DYNAMIC_REUSE[2],),
    "pyramid_attention_broadcast": ({"skip_range": 2},),
    "w4a16": ({},),
}
"""The part of `FRONTIER` to run first where time is short."""

DEFAULTS: Mapping[str, tuple[dict, ...]] = {
    "int8_tdc": (
        *({"tdc_threshold": value} for value in (0.09, 0.15, 0.22)),
        *({"warmup_steps": value, "tdc_threshold": REUSE[2]} for value in (1, 2, 5, 8)),
        *({"protect_last": value, "tdc_threshold": REUSE[2]} for value in (0, 2, 3)),
        *({"max_skips": value, "tdc_threshold": REUSE[2]} for value in (1, 3, 4)),
        *({"gap": gap, "tdc_threshold": value} for gap in ("linear", "none") for value in REUSE[:3]),
    ),
    "sixbit": tuple(
        {"error_threshold": ERROR, **change}
        for change in (
            *({"resume": "last_gamma", "tdc_threshold": value} for value in REUSE[1:3]),
            *({"outlier_threshold": value, "tdc_threshold": REUSE[2]} for value in (15.0, 40.0, 60.0)),
            *({"gap": gap, "tdc_threshold": value} for gap in ("linear", "none") for value in REUSE[1:3]),
        )
    ),
}


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
    grid: Mapping[str, tuple[dict, ...]], pairs: Iterable[tuple[str, int]], steps: int, guidance: float, model: str
) -> list[Task]:
    """Every setting of every method for the first (prompt, seed), then for the next: cut short, it stays fair."""
    return [
        Task(method, setting(**values), prompt, seed, steps, guidance, model)
        for prompt, seed in pairs
        for method, settings in grid.items()
        for values in settings
    ]


def chosen(grid: Mapping[str, tuple[dict, ...]], names: Iterable[str] | None) -> Mapping[str, tuple[dict, ...]]:
    """The part of `grid` with these methods; all of it for None. Raises ValueError for a name in no grid."""
    if names is None:
        return grid
    names, known = set(names), {**FRONTIER, **DEFAULTS}
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise ValueError(f"There is no method {unknown!r} here; choose from {', '.join(known)}.")
    return {name: grid[name] for name in grid if name in names}


def policy_of(method: str, values: Mapping, error_threshold: float | None = None) -> Policy:
    """The policy of one of our methods. `error_threshold` answers `target_bits`, where the setting has it."""
    fields = {name: value for name, value in values.items() if name != "target_bits"}
    if error_threshold is not None:
        fields["error_threshold"] = error_threshold
    return replace(PRESETS[OURS[method]], **fields)
