"""One question, one answer: how does this run look under that policy?

Pure: a source and a wish in, plain JSON-ready values out (map, knobs, figures, sentences). The page asks it at every
movement of a knob, so replays and grids are kept per trace.
"""

from __future__ import annotations

import base64
import json
import weakref
from typing import Any, NamedTuple

import numpy as np

from app.drafts import on_record
from app.figures import decision_map as maps
from app.figures import grid as grids
from app.figures import palette
from app.figures.knob_histogram import knobs as histograms
from app.i18n import plain, said, sentences
from app.session import Source
from app.settings import ROOT
from app.weights import lent, weights
from engine.policy import predict
from engine.replay import lay_out, replay
from engine.settings import BREAK_IT, Policy, needs_calibration, preset_name, unweighed, warnings, weighs
from engine.trace import Trace

AGREEMENT = ROOT / "assets" / "quality" / "replay_agreement.json"
REPLAYS = 4          # kept per trace
VIEWS = ("decision", "gamma", "drift", "outliers", "verdict")
PRESET_ORDER = (
    "fp16",
    "w4a4",
    "w4a8",
    "sixbit",
    "break",
    "w4a16",
    "dmpq",
    "dmpq_sensitive",
    "tdc",
    "dmpq_tdc",
    "int8_tdc",
)


class Close(NamedTuple):
    """How far estimated totals may be off and still be called trustworthy: bits, and a share of all cells."""

    bits: float
    share: float


CLOSE = Close(1.0, 0.10)


class Wish(NamedTuple):
    """What the page asks for."""

    policy: Policy
    view: str = "decision"
    against: str = "draft"
    which: str = ""


class Drawn(NamedTuple):
    """The traces behind one look: what is shown, and what it is compared with (None: nothing)."""

    shown: Trace
    before: Trace | None
    draft: bool


def named(name: str) -> Policy:
    """A preset of the page, the engine's presets and "break". Raises ValueError for an unknown one."""
    return BREAK_IT if name == "break" else Policy.preset(name)


def preset_of(policy: Policy) -> str:
    """The preset's name, "break", or "" for a policy of one's own."""
    return "break" if policy == BREAK_IT else preset_name(policy) or ""


def label_of(policy: Policy | None) -> str:
    """The text key that names a pane by what decides in it; None is the model as it is."""
    name = "fp16" if policy is None else preset_of(policy)
    shown = {
        "fp16": "lab.race.fp16",
        "sixbit": "lab.race.policy",
        "break": "lab.race.broken_policy",
        "": "lab.race.own",
    }
    return shown.get(name, f"lab.preset.{name}")


_kept: "weakref.WeakKeyDictionary[Trace, dict]" = weakref.WeakKeyDictionary()


def kept_of(trace: Trace) -> dict:
    """What was worked out from a trace, kept as long as the trace is."""
    return _kept.setdefault(trace, {})


def views_of(trace: Trace) -> dict[str, grids.View]:
    """The trace's (model, branch) pairs by their label, in order, found once per trace."""
    kept = kept_of(trace)
    if "views" not in kept:
        kept["views"] = {label(view): view for view in grids.views(trace.blocks)}
    return kept["views"]


def grid_of(trace: Trace, which: str = "") -> grids.Grid:
    """The trace's grid for one "model · branch" (default: the first), computed once per trace."""
    views, kept = views_of(trace), kept_of(trace)
    which = which if which in views else next(iter(views), "")
    if ("grid", which) not in kept:
        view = views.get(which)
        where = None if view is None else places_of(trace, which, view)
        kept["grid", which] = grids.build(trace.blocks, trace.layers, view, trace.meta.steps or None, where)
    return kept["grid", which]


def label(view: grids.View) -> str:
    """How a (model, branch) pair is shown."""
    return " · ".join(part for part in view if part)


def drawn(source: Source, policy: Policy, rivals: dict[str, Source | None], against: str) -> Drawn:
    """Choose the traces. The run's own policy shows what really happened; another one a replay, beside that run."""
    draft = policy != source.policy
    basis = source.signals or source.trace
    shown = replayed(basis, policy, calibration_of(source)) if draft else source.trace
    if draft and against == "draft":
        return Drawn(shown, source.trace, True)
    rival = rivals.get(against)
    return Drawn(shown, rival.trace if rival else None, draft)


def replayed(basis: Trace, policy: Policy, calibration) -> Trace:
    """`engine.replay`, keeping the last few answers: a knob's new place is asked for by the map, then by the cell."""
    kept = kept_of(basis).setdefault("replays", {})
    found = kept.get(policy)
    if found is None or found[1] is not calibration:
        found = again(basis, policy, calibration), calibration
        for old in list(kept)[: max(0, len(kept) - REPLAYS + 1)]:
            kept.pop(old, None)
        kept[policy] = found
    return found[0]


def again(basis: Trace, policy: Policy, calibration) -> Trace:
    """`engine.replay`; what no policy changes is worked out once for all replays of a trace."""
    kept = kept_of(basis)
    if "laid out" not in kept:
        kept["laid out"] = None if basis.blocks.empty else lay_out(basis)
    made = replay(basis, policy, calibration, kept["laid out"])
    kept_of(made)["views"] = views_of(basis)
    for which, view in views_of(basis).items():
        kept_of(made)["places", which] = places_of(basis, which, view)
    return made


def places_of(trace: Trace, which: str, view: grids.View) -> grids.Places:
    """Where the rows of a trace are in its grid, found once per trace and its replays."""
    kept = kept_of(trace)
    if ("places", which) not in kept:
        kept["places", which] = grids.places(trace.blocks, trace.layers, view, trace.meta.steps or None)
    return kept["places", which]


def calibration_of(source: Source):
    """The predictor's lines that decided in the run, else those of its probe, else None; weighed where that is
    known."""
    kept = kept_of(source.trace)
    if "calibration" not in kept:
        lines = source.trace.meta.calibration or (source.signals.meta.calibration if source.signals else None)
        kept["calibration"] = lent(lines, source.policy)
    return kept["calibration"]


def weights_of(source: Source, policy: Policy, grid: grids.Grid, which: str = "") -> np.ndarray:
    """`app.weights.weights` of a grid of this source."""
    views = views_of(source.signals or source.trace)
    view = views.get(which) or next(iter(views.values()), None)
    return weights(grid, calibration_of(source), policy, view.model if view else "")


def as_weighed(signals: grids.Grid, source: Source, policy: Policy, which: str = "") -> grids.Grid:
    """The signals, with measured 4-bit errors multiplied by what `policy` multiplies predicted ones by."""
    if not weighs(policy):
        return signals
    return signals._replace(error_nvfp4=signals.error_nvfp4 * weights_of(source, policy, signals, which))


def own_replay(source: Source) -> Trace:
    """The run's own policy on the same signals that drafts are computed from."""
    if source.signals is None:
        return source.trace
    kept = kept_of(source.trace)
    if "own" not in kept:
        kept["own"] = again(source.signals, source.policy, calibration_of(source))
    return kept["own"]


def map_of(source: Source, shown: Trace, policy: Policy, which: str = "") -> grids.Grid:
    """What the map shows of `shown`: a run as it was; a draft as `app.drafts` sets it on the run that it is a draft of.
    Without signals apart from the run's own, both policies are decided on the run itself, and the draft is all."""
    if policy == source.policy or source.signals is None:
        return grid_of(shown, which)
    kept = kept_of(shown)
    if ("map", which) not in kept:
        kept["map", which] = on_record(
            grid_of(source.trace, which), grid_of(own_replay(source), which), grid_of(shown, which), policy
        )
    return kept["map", which]


def look(source: Source, wish: Wish, lang: str, rivals: dict[str, Source | None] | None = None) -> dict[str, Any]:
    """Everything that depends on the policy and the view, ready for the browser."""
    from app.look_words import counted, figures, knob_words, summary  # words are a file of their own

    rivals = rivals or {}
    pair = drawn(source, wish.policy, rivals, wish.against)
    here = map_of(source, pair.shown, wish.policy, wish.which)
    basis = source.signals or source.trace
    signals = grid_of(basis, wish.which)
    run = grid_of(source.trace, wish.which)
    if not grids.same_shape(run, here):                     # it ended before its first step
        run = grid_of(own_replay(source), wish.which)
    before = None if pair.before is None else run if pair.before is source.trace else grid_of(pair.before, wish.which)
    comparable = before is not None and grids.same_shape(before, here)
    change = maps.changes(before, here) if comparable else None
    if change is not None and not (change.first.any() or wish.against != "draft"):
        change = None
    moved = None
    if pair.draft:                        # what the draft would do is told against this run, whatever the outlines show
        moved = change if wish.against == "draft" else maps.changes(run, here)
    policy_preset = preset_of(wish.policy)
    note = "" if before is None or comparable else plain(lang, "lab.versus.differs")
    predicted = _with_predictions(signals, source, here, wish)
    told = counted(source, pair, wish.which)
    words = knob_words(told, wish.policy, lang, pair.draft)
    cuts = histograms(predicted, source.policy, wish.policy)
    return {
        "map": _map(source, pair, here, signals, change, wish, lang, note, rivals),
        "knobs": [
            {**k._asdict(), "key": source.key, "value": getattr(wish.policy, k.name), **words[k.name]} for k in cuts
        ],
        "net": figures(source, pair, lang),
        "draft": summary(moved, lang) if pair.draft else None,
        "band": _band(source, pair, lang),
        "policy": wish.policy.to_dict(),
        "preset": policy_preset,
        "presets": list(PRESET_ORDER),
        "source": source.key,
        "about": {
            "title": source.title,
            "prompt": source.prompt,
            "seed": source.seed,
            "key": source.key,
            "signals": source.signals is not None,
            "videos": {pane: label_of(policy) for pane, policy in source.lanes.items() if pane in source.video},
        },
        "warning": _warning(wish.policy, source, lang),
        "measure": pair.shown.meta.replay == "partial"
        or (needs_calibration(wish.policy) and calibration_of(source) is None),
    }


def payload(grid: grids.Grid, change: maps.Changes | None, view: str, lang: str, *, signals: grids.Grid | None = None,
            threshold: float = 0.0, draft: bool = True) -> dict[str, Any]:
    """The map of one grid in one view: figures, cells for hover and table, legend. `draft`: `change` tells what a draft
    would change; otherwise how two runs differ."""
    titles = plain(lang, "lab.axis.step"), plain(lang, "lab.axis.block")
    source = signals if signals is not None and grids.same_shape(signals, grid) else grid
    extra: dict[str, Any] = {}
    if view == "decision" or not grid.blocks:
        figure = maps.decision_map(grid, change, titles)
        extra["legend"] = _legend(grid, change, draft)
    elif view == "verdict":
        figure = maps.verdict_map(grid, maps.verdicts(grid, source, threshold), titles)
        extra["legend"] = [["lab.verdict.right", palette.RIGHT, "fill"], ["lab.verdict.waste", palette.WASTE, "fill"],
                           ["lab.verdict.miss", palette.MISS, "fill"], ["lab.verdict.forced", palette.LINE, "fill"],
                           ["common.skipped", palette.SKIPPED, "fill"]]
    else:
        values = {"gamma": source.gamma, "drift": source.drift, "outliers": source.outlier}[view]
        figure = maps.signal_map(grid, values, change, titles, reach=90 if view == "drift" else 98)
        top = figure.pop("top")
        extra["scale"] = f"{top:.0f} ×" if view == "outliers" else f"{100 * top:.0f} %"
        extra["legend"] = [["lab.legend.unseen", palette.SKIPPED, "fill"]] if not np.isfinite(values).all() else []
    reasons = [plain(lang, f"lab.reason.{name.replace(' ', '_').replace('-', '_')}") for name in grid.block_reasons]
    return {**figure, **extra, "view": view, "blocks": list(grid.blocks), "steps": grid.steps,
            "groups": [plain(lang, f"lab.group.{g}") if g in SHORT else g for g in grid.groups],
            "cells": _b64(grid.decision), "reasons": {"codes": _b64(grid.block_reason), "names": reasons}}


def telling_cell(grid: grids.Grid) -> list[int] | None:
    """A cell that shows much at once, to begin with: purified after a skip, else purified, else skipped."""
    purified = (grid.decision == grids.PURIFIED).any(axis=2)
    after_skip = np.zeros_like(purified)
    after_skip[:, 1:] = grid.skipped[:, :-1]
    for cells in (purified & after_skip, purified, grid.skipped):
        rows, columns = np.nonzero(cells)
        if rows.size:
            middle = np.argmin(np.abs(columns - grid.steps / 2) + np.abs(rows - len(grid.blocks) / 2))
            return [int(rows[middle]), int(columns[middle])]
    return None


SHORT = ("qkv", "out", "up", "down", "self_qkv", "self_out", "cross_q", "cross_out")


def _map(source, pair, here, signals, change, wish, lang, note, rivals) -> dict[str, Any]:
    truth = as_weighed(signals, source, wish.policy, wish.which)
    out = payload(here, change, wish.view, lang, signals=truth, threshold=wish.policy.error_threshold,
                  draft=wish.against == "draft")
    note = note or plain(
        lang, f"lab.view.{wish.view}.{'weighed' if wish.view == 'verdict' and weighs(wish.policy) else 'what'}"
    )
    pairs = list(views_of(pair.shown))
    if wish.view == "verdict":
        note = score(source, pair, signals, wish, note, lang)
    return {
        **out,
        "versus": ["draft", *[k for k, s in rivals.items() if s is not None]],
        "against": wish.against,
        "whiches": pairs,
        "which": wish.which or (pairs[0] if pairs else ""),
        "note": note,
        "suggest": telling_cell(here),
    }


def score(source: Source, pair: Drawn, signals: grids.Grid, wish: Wish, note: str, lang: str) -> str:
    """The note below "was it right?", led by how many of the choices between 4 and 8 bits were; of a draft, an estimate
    whose total is the number that the first knob's sentence tells."""
    from app.look_words import about, counted

    if not np.isfinite(signals.error_nvfp4).any():
        return plain(lang, "lab.verdict.none")

    def counts(trace: Trace, policy: Policy) -> tuple[int, int]:
        return judged(
            grid_of(trace, wish.which), as_weighed(signals, source, policy, wish.which), policy.error_threshold
        )

    right, total = counts(pair.shown, wish.policy)
    told = str
    if pair.draft and pair.shown.meta.replay != "partial":
        was, before = (counts(trace, source.policy) for trace in (source.trace, own_replay(source)))
        share = right / max(1, total) + was[0] / max(1, was[1]) - before[0] / max(1, before[1])
        total = int(counted(source, pair, wish.which).decided)
        right, told = round(total * min(max(share, 0.0), 1.0)), about
    return sentences(
        lang, plain(lang, "lab.verdict.score", right=told(right), total=told(total)) if total else "", note
    )


def judged(grid: grids.Grid, signals: grids.Grid, threshold: float) -> tuple[int, int]:
    """(right, all) choices between 4 and 8 bits, by the errors measured in `signals`."""
    found = maps.verdicts(grid, signals if grids.same_shape(signals, grid) else grid, threshold)
    return int((found == maps.V_RIGHT).sum()), int(np.isin(found, (maps.V_RIGHT, maps.V_WASTE, maps.V_MISS)).sum())


def _legend(grid: grids.Grid, change, draft: bool) -> list[list[str]]:
    present = np.bincount(grid.decision.ravel(), minlength=8)
    rows = [["common.skipped", palette.SKIPPED, "fill"], ["common.nvfp4", palette.NVFP4, "fill"],
            ["common.int8", palette.INT8, "fill"]]
    if present[grids.PURIFIED]:
        rows.append(["common.w4a16", palette.W4A16, "fill"])
    if present[grids.W4A16]:
        rows.append(["lab.legend.w4a16", palette.W4A16, "fill"])
    if present[grids.STOCK]:
        rows.append(["common.stock", palette.STOCK, "fill"])
    if present[grids.UNKNOWN]:
        rows.append(["lab.legend.unknown", palette.UNKNOWN, "fill"])
    if change is not None:
        rows.append(["lab.legend.first" if draft else "lab.legend.differs", palette.ACCENT, "outline"])
        if change.later.any():
            rows.append(["lab.legend.later" if draft else "lab.legend.differs_later", palette.ACCENT, "dotted"])
        rows.append(["lab.legend.same", palette.INT8, "faded"])
    return rows


def _with_predictions(signals: grids.Grid, source: Source, here: grids.Grid, wish: Wish) -> grids.Grid:
    """The signals with what is set against the 4-bit tolerance: Ê = α·Γ(t−1)+β wherever Γ(t−1) was observed and a line
    was fitted, weighed where the policy weighs."""
    calibration, basis = calibration_of(source), source.signals or source.trace
    if calibration is None or not signals.blocks:
        return signals._replace(predicted=here.predicted)
    kept = kept_of(basis)
    if ("predicted", wish.which) not in kept:
        model = (wish.which.split(" · ")[0] if wish.which else str(basis.blocks["model"].iloc[0]))
        predicted = np.full(signals.shape, np.nan)
        for b, block in enumerate(signals.blocks):
            lines = calibration.for_block(model, block)
            for g, group in enumerate(signals.groups):
                if group in lines:
                    predicted[b, 1:, g] = predict(lines[group].alpha, lines[group].beta, signals.gamma[b, :-1])
        kept["predicted", wish.which] = predicted
    charged = weights_of(source, wish.policy, signals, wish.which) if weighs(wish.policy) else 1.0
    return signals._replace(predicted=kept["predicted", wish.which] * charged)


def _band(source: Source, pair: Drawn, lang: str) -> str:
    """How far the draft may be trusted."""
    if not pair.draft or pair.shown.meta.replay not in ("open loop", "partial"):
        return ""
    if pair.shown.meta.replay == "partial":
        return plain(lang, "lab.replay.partial")
    probed = (source.signals or source.trace).meta.probe
    return plain(lang, "lab.replay.open_loop", agreement=agreement(lang, probed)).strip()


def agreement(lang: str, probed: bool = True) -> str:
    """The measured agreement of estimates with real re-runs, or nothing where it was not measured: of estimates from a
    run that measured everything, or from one that measured what its own policy needed."""
    try:
        found = json.loads(AGREEMENT.read_text(encoding="utf-8"))["probe" if probed else "run"]
        low, _, high = found["skips"]
        off, share = found["bits_error"][1], found["skipped_error"][1]
        measured = plain(lang, "lab.replay.measured", runs=int(found["runs"]), policies=int(found["policies"]),
                         low=round(100 * low), high=round(100 * high), bits=f"{off:.1f}", share=round(100 * share))
        trust = "lab.replay.totals" if off <= CLOSE.bits and share <= CLOSE.share else "lab.replay.direction"
        return sentences(lang, plain(lang, trust), measured)
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return ""


def _warning(policy: Policy, source: Source, lang: str) -> str:
    """What the engine would warn of if this policy were run, but for what the knobs themselves say."""
    if needs_calibration(policy) and calibration_of(source) is None:
        return plain(lang, "lab.notice.uncalibrated")
    warned = [*unweighed(policy, calibration_of(source)), *warnings(policy, source.trace.meta.steps)]
    return sentences(lang, *(said(lang, notice) for notice in warned if not notice.key.startswith("alarm_")))


def _b64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
