"""The sentences and figures of one look: what each knob does here, what the policy comes down to, what a draft buys."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from app.figures import grid as grids
from app.i18n import plain, sentences
from app.look import grid_of, kept_of, own_replay, views_of
from app.machine import spoken
from engine import cost
from engine.settings import Policy, preset_name, weighs
from engine.trace import Trace

BRIEF = ("bits", "skipped", "faster", "slower", "same_pace")  # what a narrow page keeps in sight while a knob moves
BITS_OF = np.nan_to_num(grids.BITS)


def about(value: Any) -> str:
    """A figure that was estimated, not measured; what could not be estimated stays a dash."""
    return f"≈ {value}" if value not in ("", "–") else value


class Counts(NamedTuple):
    """What the knobs' sentences count in one map; NaN where a draft hangs on signals that were never observed."""

    calls: int              # layer calls
    cells: int
    decided: float          # layer calls that the predictor decided
    four: float             # of those, at 4 bits
    skipped: float          # cells
    computed: float         # layer calls that were not skipped
    alarms: float           # layer calls


def tally(grid: grids.Grid) -> Counts:
    """The counts of one map as it is."""
    chooser = grid.deciders.index("predictor") if "predictor" in grid.deciders else 254
    chosen, skipped = grid.decided_by == chooser, int(grid.skipped.sum())
    four = int((chosen & (grid.decision == grids.NVFP4)).sum())
    calls = int(grid.decision.size)
    return Counts(
        calls,
        int(grid.skipped.size),
        int(chosen.sum()),
        four,
        skipped,
        calls - skipped * len(grid.groups),
        int(alarmed(grid).sum()),
    )


def counted(source, pair, which: str = "") -> Counts:
    """The counts of what is shown; a draft's move the run's by the estimated change, as `expected` does."""
    now = tally(grid_of(pair.shown, which))
    if not pair.draft:
        return now
    if pair.shown.meta.replay == "partial":
        return now._replace(**dict.fromkeys(("decided", "four", "skipped", "computed", "alarms"), math.nan))
    was, before = tally(grid_of(source.trace, which)), tally(grid_of(own_replay(source), which))
    most = {"decided": now.calls, "four": now.calls, "skipped": now.cells, "alarms": now.calls}
    moved = {
        name: getattr(was, name) + getattr(now, name) - getattr(before, name) if getattr(now, name) else 0
        for name in most
    }
    moved = {name: min(max(count, 0), most[name]) for name, count in moved.items()}
    if not pair.shown.meta.policy.get("tdc"):             # without skips, who decides hangs on nothing measured
        moved["decided"] = now.decided
    moved["four"] = min(moved["four"], moved["decided"])
    return now._replace(**moved, computed=now.calls - moved["skipped"] * (now.calls // max(1, now.cells)))


def knob_words(counts: Counts, policy: Policy, lang: str, draft: bool = False) -> dict[str, dict[str, Any]]:
    """Per knob: {"says": one live sentence, "off": whether it does nothing under this policy}. A draft's counts are
    estimates."""

    def told(count: float) -> str:
        text = str(count) if math.isfinite(count) else "–"
        return about(text) if draft else text

    dynamic = policy.precision == "dynamic"
    purifying = policy.tdc and policy.pdr and policy.precision in ("dynamic", "nvfp4", "int8")
    return {
        "error_threshold": {
            "off": not dynamic,
            "says": plain(
                lang,
                "lab.says.error_weighed" if weighs(policy) else "lab.says.error",
                decided=told(counts.decided),
                total=counts.calls,
                four=told(counts.four),
            )
            if dynamic
            else plain(lang, "lab.says.error_off", precision=plain(lang, f"lab.option.{policy.precision}")),
        },
        "tdc_threshold": {
            "off": not policy.tdc,
            "says": plain(lang, "lab.says.reuse", skipped=told(counts.skipped), total=counts.cells)
            if policy.tdc and counts.skipped
            else plain(lang, "lab.says.reuse_none")
            if policy.tdc
            else plain(lang, "lab.says.reuse_off"),
        },
        "outlier_threshold": {
            "off": not purifying,
            "says": plain(
                lang,
                "lab.says.outlier",
                bits=alarm_bits(policy),
                alarms=told(counts.alarms),
                total=told(counts.computed),
            )
            if purifying
            else plain(lang, "lab.says.outlier_off"),
        },
    }


def alarmed(grid: grids.Grid) -> np.ndarray:
    """bool (B, S, G): calls that an outlier alarm lifted, to 16 bits or to 8."""
    names = grid.group_reasons
    fired = grid.group_reason == names.index("outliers") if "outliers" in names else np.zeros(grid.shape, bool)
    return fired & (grid.decision != grids.UNKNOWN)


def alarm_bits(policy: Policy) -> int:
    """The bits that an alarm lifts a call to."""
    return 16 if policy.purify_to == "w4a16" else 8


def figures(source, pair, lang: str) -> dict[str, Any]:
    """The net figures of what is shown; beside each, under a draft, what it was."""
    policy, partial = Policy.from_dict(pair.shown.meta.policy), pair.shown.meta.replay == "partial"
    measured = totals(source.trace)
    now = UNKNOWN if partial else expected(source, pair, policy, measured) if pair.draft else totals(pair.shown)
    was = measured if pair.draft else None
    rows: list[dict[str, Any]] = []

    def add(key: str, value: str, old: str | None = None, tone: str = "", **values: str) -> None:
        if value:
            rows.append(
                {
                    "value": value,
                    "was": old,
                    "label": plain(lang, f"lab.net.{key}", **values),
                    "tone": tone,
                    "brief": plain(lang, f"lab.brief.{key.removesuffix('_estimate')}")
                    if key.removesuffix("_estimate") in BRIEF
                    else "",
                }
            )

    sure = not pair.draft or fixed(policy)
    told = str if sure else about
    add("bits", told(bits(now.bits)), bits(was.bits) if was else None, computed=told(bits(now.bits_computed)))
    add(
        "skipped",
        (about if pair.draft and policy.tdc else str)(share(now.skipped)),
        share(was.skipped) if was else None,
    )
    add(
        "predictor",
        (about if pair.draft and policy.precision == "dynamic" else str)(share(now.predictor)),
        share(was.predictor) if was else None,
    )
    original = policy.precision == "stock" and not policy.tdc         # beside itself, a speed would mislead
    faster = None if partial or original else speed(source, pair)
    if faster:
        key, value, tone = pace(faster)
        before = pace(source.seconds["reference"] / source.seconds["run"])
        word = plain(lang, f"lab.net.{before[0]}")
        old = f"{before[1]} {word}" if before[0] != key else before[1]
        add(
            f"{key}_estimate" if pair.draft else key,
            about(value) if pair.draft else value,
            old if pair.draft else None,
            tone,
        )
    memory = source.trace.meta.memory
    if memory.get("originals") and memory.get("packed") and policy.precision != "stock":
        stored, meta = 32 if "32" in source.trace.meta.dtype else 16, source.trace.meta
        add(
            "weights_cpu" if stored == 32 and meta.device.startswith("cpu") else "weights",
            shrunk(memory["originals"], memory["packed"]),
            stored=str(stored),
        )
    if memory.get("cache") and policy.tdc:
        add("cache", size(memory["cache"]))
    if not pair.draft and source.psnr is not None and math.isfinite(source.psnr):
        word, tone = closeness(source.psnr)
        add(word, f"{source.psnr:.1f} dB", tone=tone)
    alone = "reference" not in source.seconds and "a" not in source.video
    if not pair.draft and memory.get("peak") and alone:          # two lanes share their peak: it is neither's own
        add("peak", size(memory["peak"]))
    note = ""
    if policy.tdc and now.skipped == 0:
        note = plain(lang, "lab.net.no_skips")
    elif pair.draft:
        note = plain(lang, "lab.net.unknown_note") if partial else plain(lang, "lab.net.draft_note")
    elif source.machine:
        note = plain(lang, "lab.net.measured", machine=spoken(source.machine, lang))
    if not pair.draft and preset_name(policy) == "sixbit" and now.skipped:
        note = sentences(lang, plain(lang, "lab.net.why_bits"), note)
    return {
        "figures": rows,
        "note": note,
        "lead": "" if pair.draft or policy.precision == "stock" else lead(source, faster, lang),
    }


def lead(source, faster: float | None, lang: str) -> str:
    """What got cheaper and what it cost in one sentence; where nothing ran beside it, what the run did."""
    memory, run = source.trace.meta.memory, did(totals(source.trace), lang)
    if source.psnr is None or math.isnan(source.psnr):
        return plain(lang, "lab.net.lead_alone", did=run)
    if math.isinf(source.psnr):
        return plain(lang, "lab.net.lead_same", did=run)
    word = {"psnr": "hidden", "psnr_seen": "seen", "psnr_far": "far"}[closeness(source.psnr)[0]]
    loss = plain(lang, f"lab.net.loss_{word}", psnr=f"{source.psnr:.1f}")
    timed = source.busy and "reference" in source.seconds
    if not (faster or timed) or not (memory.get("originals") and memory.get("packed")):
        return plain(lang, "lab.net.lead_price", did=run, loss=loss)
    if not faster:
        return plain(lang, "lab.net.lead_busy", weights=shrunk(memory["originals"], memory["packed"]), loss=loss)
    return plain(lang, f"lab.net.lead_{'both' if faster >= 1.005 else 'weights'}", speed=f"{faster:.2f}",
                 weights=shrunk(memory["originals"], memory["packed"]), loss=loss)


def did(now: Totals, lang: str) -> str:
    """What a run took: bits and skips."""
    return plain(lang, "lab.net.did", bits=bits(now.bits), skipped=share(now.skipped))


def expected(source, pair, policy: Policy, measured: Totals) -> Totals:
    """A draft's figures: what was measured, plus what the policy changes from estimate to estimate, so that an error
    that both estimates share drops out. What the policy alone settles (no reuse, one precision) is taken as it is."""
    before, after = totals(own_replay(source)), totals(pair.shown)
    settled = {
        "skipped": not after.skipped,
        "predictor": not after.predictor or not policy.tdc,
        "bits": fixed(policy),
        "bits_computed": fixed(policy),
    }
    most = {"bits": 16.0, "bits_computed": 16.0, "skipped": 1.0, "predictor": 1.0}
    moved = {
        name: float(np.clip(getattr(measured, name) + getattr(after, name) - getattr(before, name), 0.0, top))
        for name, top in most.items()
    }
    return Totals(**{name: getattr(after, name) if settled[name] else moved[name] for name in most})


def fixed(policy: Policy) -> bool:
    """Nothing that is measured can change what this policy does."""
    return not policy.tdc and policy.precision != "dynamic"


def pace(faster: float) -> tuple[str, str, str]:
    """(word, figure, tone) of a ratio of times: 1.40× faster, 1.09× slower, or as fast."""
    if f"{faster:.2f}" == "1.00":
        return "same_pace", "1.00×", ""
    return ("faster", f"{faster:.2f}×", "") if faster > 1 else ("slower", f"{1 / faster:.2f}×", "warn")


def closeness(psnr: float) -> tuple[str, str]:
    """(word, tone) of a PSNR in dB against the model as it is."""
    return ("psnr", "") if psnr >= 30 else ("psnr_seen", "") if psnr >= 20 else ("psnr_far", "warn")


def speed(source, pair) -> float | None:
    """How many times faster than the reference: measured for a run, estimated for a draft (same trajectory assumed).

    None where a time is missing or was taken while other programs had the cores.
    """
    reference, run = source.seconds.get("reference"), source.seconds.get("run")
    if not reference or not run or source.busy:
        return None
    if not pair.draft:
        return reference / run
    kept = kept_of(source.trace)
    if "speeds" not in kept:
        kept["speeds"] = cost.measure_speeds(*[t for t in (source.trace, source.reference) if t])
    basis = source.trace if fixed(Policy.from_dict(pair.shown.meta.policy)) else own_replay(source)
    before, after = (estimate_seconds(trace, kept["speeds"]) for trace in (basis, pair.shown))
    if not (math.isfinite(before) and math.isfinite(after)):
        return None
    return reference / max(1e-9, run - before + after)


class Totals(NamedTuple):
    """The figures of `engine.cost.report` that the page shows, counted from the grids that are drawn anyway (a knob
    must answer in a few milliseconds); `tests/app/test_look.py` holds both equal."""

    bits: float
    bits_computed: float
    skipped: float
    predictor: float


UNKNOWN = Totals(math.nan, math.nan, math.nan, math.nan)


def totals(trace: Trace) -> Totals:
    """Average bits (skipped as 0, and computed only) and shares over all branches of a trace; NaN for an empty one."""
    return count([grid_of(trace, which) for which in views_of(trace)])


def count(drawn: list[grids.Grid]) -> Totals:
    """The totals of one or more grids."""
    macs = bits = computed = cells = skipped = calls = chosen = 0.0
    for grid in drawn:
        seen = grid.decision != grids.NOTHING
        weight = np.where(seen, grid.macs, 0.0)
        value = BITS_OF[grid.taken]
        macs += weight.sum()
        bits += (weight * value).sum()
        computed += (weight * (value > 0)).sum()
        cells += seen.any(axis=2).sum()
        skipped += (seen & (grid.taken == grids.SKIPPED)).any(axis=2).sum()
        calls += seen.sum()
        if "predictor" in grid.deciders:
            chosen += (grid.decided_by == grid.deciders.index("predictor")).sum()
    return Totals(*(_ratio(a, b) for a, b in ((bits, macs), (bits, computed), (skipped, cells), (chosen, calls))))


def brief(grid: grids.Grid, lang: str) -> dict[str, Any]:
    """The figures of a run in progress."""
    now = count([grid])
    rows = [
        {
            "value": bits(now.bits),
            "was": None,
            "label": plain(lang, "lab.net.bits", computed=bits(now.bits_computed)),
            "brief": plain(lang, "lab.brief.bits"),
        },
        {
            "value": share(now.skipped),
            "was": None,
            "label": plain(lang, "lab.net.skipped"),
            "brief": plain(lang, "lab.brief.skipped"),
        },
        {"value": share(now.predictor), "was": None, "label": plain(lang, "lab.net.predictor")},
    ]
    return {"figures": rows, "note": "", "lead": plain(lang, "lab.net.lead_live", did=did(now, lang))}


def estimate_seconds(trace: Trace, speeds: cost.Speeds) -> float:
    """`engine.cost.estimate_seconds`, from the grids; NaN where a cell's cost was never measured."""
    total = 0.0
    for which, view in views_of(trace).items():
        grid = grid_of(trace, which)
        weight = np.where(np.isfinite(grid.macs) & (grid.macs > 0), grid.macs, 1.0)
        weight = np.where(grid.decision == grids.NOTHING, 0.0, weight)
        whole = np.maximum(weight.sum(axis=2), 1e-300)
        for name, code in grids.CODES.items():
            took = grid.taken == code if name != "w4a16" else np.isin(grid.taken, (code, grids.PURIFIED))
            share = (weight * took).sum(axis=2) / whole
            costs = np.array(
                [speeds.milliseconds.get((view.model, block), {}).get(name, np.nan) for block in grid.blocks]
            )
            total += np.where(share > 0, share * costs[:, None], 0.0).sum()
    return float(total) / 1e3


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else math.nan


def summary(change, lang: str) -> str:
    """What the draft would do, in one line."""
    if change is None or not (change.first.any() or change.later.any()):
        return plain(lang, "lab.draft.same")
    first, later = int(change.first.sum()), int(change.later.sum())
    if not later:
        return plain(lang, "lab.draft.changed_plainly", cells=first)
    return sentences(
        lang,
        plain(lang, "lab.draft.changed", cells=first + later, first=first, later=later),
        plain(lang, "lab.draft.shift"),
    )


def bits(value: float) -> str:
    """4.4, or a dash where nothing was computed."""
    return f"{value:.1f}" if value is not None and math.isfinite(value) else "–"


def share(value: float) -> str:
    """A share as "50 %"."""
    return f"{100 * value:.0f} %" if value is not None and np.isfinite(value) else "–"


def shrunk(before: float, after: float) -> str:
    """Two counts of bytes as "56.6 → 8.5 MB", each with its unit where these differ."""
    was, now = size(before), size(after)
    return f"{was.split()[0]} → {now}" if was.split()[1] == now.split()[1] else f"{was} → {now}"


def size(count: float) -> str:
    """Bytes as MB or GB, decimal."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
