"""The sentences and figures of one look: what each knob does here, what the policy comes down to, what a draft buys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from app.figures import grid as grids
from app.i18n import plain
from engine import cost
from engine.settings import Policy
from engine.trace import Trace

_speeds: dict[str, tuple[Trace, cost.Speeds]] = {}


def knob_words(grid: grids.Grid, policy: Policy, lang: str) -> dict[str, dict[str, Any]]:
    """Per knob: {"says": one live sentence, "off": whether it does nothing under this policy}."""
    total_calls, total_cells = int(grid.decision.size), int(grid.skipped.size)
    chooser = grid.deciders.index("predictor") if "predictor" in grid.deciders else 254
    decided = int((grid.decided_by == chooser).sum())
    four = int(((grid.decided_by == chooser) & (grid.decision == grids.NVFP4)).sum())
    skipped, purified = int(grid.skipped.sum()), int((grid.decision == grids.PURIFIED).sum())
    dynamic = policy.precision == "dynamic"
    purifying = policy.tdc and policy.pdr and policy.precision in ("dynamic", "nvfp4", "int8")
    return {
        "error_threshold": {
            "off": not dynamic,
            "says": plain(lang, "lab.says.error", decided=decided, total=total_calls, four=four) if dynamic
            else plain(lang, "lab.says.error_off", precision=plain(lang, f"lab.option.{policy.precision}")),
        },
        "tdc_threshold": {
            "off": not policy.tdc,
            "says": plain(lang, "lab.says.reuse", skipped=skipped, total=total_cells) if policy.tdc and skipped
            else plain(lang, "lab.says.reuse_none") if policy.tdc else plain(lang, "lab.says.reuse_off"),
        },
        "outlier_threshold": {
            "off": not purifying,
            "says": plain(lang, "lab.says.outlier", purified=purified, total=total_calls - skipped * len(grid.groups))
            if purifying else plain(lang, "lab.says.outlier_off"),
        },
    }


def figures(source, pair, lang: str) -> dict[str, Any]:
    """The net figures of what is shown; beside each, under a draft, what it was."""
    now = cost.report(pair.shown)
    was = cost.report(pair.before) if pair.draft and pair.before is not None else None
    rows: list[dict[str, Any]] = []

    def add(key: str, value: str, old: str | None = None, tone: str = "", **values: str) -> None:
        if value:
            rows.append({"value": value, "was": old, "label": plain(lang, f"lab.net.{key}", **values), "tone": tone})

    computed = bits(now.average_bits_computed)
    add("bits", bits(now.average_bits), bits(was.average_bits) if was else None, computed=computed)
    add("skipped", share(now.skipped_share), share(was.skipped_share) if was else None)
    add("predictor", share(now.predictor_share), share(was.predictor_share) if was else None)
    faster = speed(source, pair)
    if faster:
        add("faster_estimate" if pair.draft else "faster", f"{faster:.2f}×")
    memory = source.trace.meta.memory
    if memory.get("originals") and memory.get("packed"):
        add("weights", f"{size(memory['originals'])} → {size(memory['packed'])}")
    if not pair.draft and source.psnr is not None and math.isfinite(source.psnr):
        add("psnr", f"{source.psnr:.1f} dB")
    if not pair.draft and memory.get("peak") and "reference" not in source.seconds:
        add("peak", size(memory["peak"]))
    note = ""
    if source.trace.meta.policy.get("tdc") and now.skipped_share == 0:
        note = plain(lang, "lab.net.no_skips")
    elif pair.draft:
        note = plain(lang, "lab.net.draft_note")
    elif source.machine:
        note = plain(lang, "lab.net.measured", machine=source.machine)
    return {"figures": rows, "note": note}


def speed(source, pair) -> float | None:
    """How many times faster than the reference: measured for a run, estimated for a draft (same trajectory assumed)."""
    reference, run = source.seconds.get("reference"), source.seconds.get("run")
    if not reference or not run:
        return None
    if not pair.draft:
        return reference / run
    speeds = _speeds.get(source.key)
    if speeds is None or speeds[0] is not source.trace:
        speeds = _speeds[source.key] = (source.trace, cost.measure_speeds(*[t for t in (source.trace, source.reference) if t]))
        while len(_speeds) > 64:
            _speeds.pop(next(iter(_speeds)))
    before, after = (cost.estimate_seconds(trace, speeds[1]) for trace in (source.trace, pair.shown))
    if not (math.isfinite(before) and math.isfinite(after)):
        return None
    return reference / max(1e-9, run - before + after)


def summary(pair, change, lang: str) -> str:
    """What the draft would do, in one line."""
    if change is None or not (change.first.any() or change.later.any()):
        return plain(lang, "lab.draft.same")
    first, later = int(change.first.sum()), int(change.later.sum())
    return plain(lang, "lab.draft.changed", cells=first + later, first=first, later=later)


def bits(value: float) -> str:
    """4.4, or a dash where nothing was computed."""
    return f"{value:.1f}" if value is not None and math.isfinite(value) else "–"


def share(value: float) -> str:
    """A share as "50 %"."""
    return f"{100 * value:.0f} %" if value is not None and np.isfinite(value) else "–"


def size(count: float) -> str:
    """Bytes as MB or GB, decimal."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
