"""What would another policy have decided? The recorded signals, decided anew, without a model.

`replay` runs the rules of `engine.policy` over a trace: a loop over the steps, all blocks at once. It assumes that
the trajectory stays as recorded, and says how far that carries (`meta.replay`):

* "exact": every decision equals the recorded one, so the assumption holds by itself. Always so with the recording's
  own policy and calibration.
* "open loop": decisions differ, and every signal that they need was observed on the recorded trajectory.
* "partial": some decision needs a signal that was never observed (`engine.signals` says what is). It is not guessed.

A cell whose decision needs an unobserved signal gets `known = False`, the reason "signal not observed", NaN for the
numbers and no opinion of its own: it skips if the recording skipped there (and the skip limit lets it), else
computes at INT8. What follows from an unknown cell is unknown too: from then on the block's debt, gap and Γ hang on
a guess, so its cells stay marked until a rule that ignores the past (the final steps) makes it compute. Two such steps
in a row make its drift known again.
"""

from dataclasses import dataclass, fields, replace

import numpy as np
import pandas as pd

from engine import policy as rules
from engine.difference import Net, diff, net
from engine.files import of_kind
from engine.grid import Grid, layout
from engine.records import (
    BLOCK_REASONS,
    DECIDED_BY,
    GROUP_REASONS,
    NAN,
    PRECISIONS,
    BlockState,
    Calibration,
    check_calibration,
)
from engine.settings import Policy, check_policy
from engine.signals import Observed, observe
from engine.trace import Trace, column

__all__ = ["LaidOut", "Net", "diff", "lay_out", "net", "replay"]

_WITHIN_BUDGET, _SKIP_LIMIT, _NOT_OBSERVED = (
    BLOCK_REASONS.index(word) for word in ("within budget", "skip limit", "signal not observed")
)
# Reasons to compute that hold whatever the block did before. (Before its second computation nothing can skip.)
_PAST_FREE = np.isin(BLOCK_REASONS, ("reuse off", "first step", "warm-up", "final steps", "no history"))
_STATE = tuple(field.name for field in fields(BlockState))


@dataclass(frozen=True)
class LaidOut:
    """A recording's cells and signals as arrays: the part of a replay that no policy changes."""

    grid: Grid
    seen: Observed


def lay_out(trace: Trace) -> LaidOut:
    """Prepare a recording for many replays. Raises TraceError for one that cannot be laid out."""
    grid = layout(trace)
    return LaidOut(grid, observe(trace, grid))


def replay(
    trace: Trace, policy: Policy, calibration: Calibration | None = None, laid_out: LaidOut | None = None
) -> Trace:
    """Decide `trace` anew under `policy`; same rows, same schema, `meta.replay` says how much to believe.

    `calibration` replaces the recording's own α, β and weights. Signals are NaN where the replayed policy skips, as in
    a real run; `milliseconds` stay where the cell's decisions are unchanged. Measured errors and samples are kept.
    `laid_out` is `lay_out(trace)`, for a caller who replays one trace many times.
    Raises ValueError for arguments of another kind and a trace that is itself a replay, and TraceError for one that
    cannot be laid out.
    """
    of_kind("trace", trace, Trace, 'Trace.load("run.parquet")')
    check_policy(policy)
    if calibration is not None:
        check_calibration(calibration)
    if trace.meta.replay is not None:
        raise ValueError("This trace is itself a replay; replay the recording that it came from.")
    calibration = calibration or trace.meta.calibration
    if trace.blocks.empty:  # cancelled before its first step: nothing was decided, nothing would be
        return trace.with_meta(policy=policy.to_dict(), calibration=calibration, replay="exact")
    laid_out = laid_out or lay_out(trace)
    grid, seen = laid_out.grid, laid_out.seen
    reuse = _decide_reuse(grid, seen, policy)
    groups = _decide_groups(grid, seen, reuse, policy, calibration)
    blocks, layers = _rows(trace, grid, seen, reuse, groups, policy)
    known = bool(blocks["known"].all() and layers["known"].all())
    label = "partial" if not known else "exact" if _same_decisions(trace, blocks, layers) else "open loop"
    meta = replace(trace.meta, policy=policy.to_dict(), calibration=calibration, replay=label, seconds={}, memory={})
    return Trace(blocks, layers, meta)


@dataclass(frozen=True)
class _Reuse:
    """TDC over (step, row): each decision, the state it was made from, and what of that state was observed.

    `reason` indexes BLOCK_REASONS. `sure`: the pattern of skips so far. `gamma_seen`: what the predictor looks at.
    """

    state: BlockState
    sure: np.ndarray
    gamma_seen: np.ndarray
    known: np.ndarray
    skipped: np.ndarray
    reason: np.ndarray
    accumulated: np.ndarray
    drift: np.ndarray
    change: np.ndarray


def _decide_reuse(grid: Grid, seen: Observed, policy: Policy) -> _Reuse:
    rows = grid.shape[1]
    state = BlockState(*(np.full(rows, value) for value in _values(BlockState())))
    sure, drift_seen, gamma_seen = (np.ones(rows, bool) for _ in range(3))
    history = []
    for t in range(grid.shape[0]):
        reason = _first(rules.reuse_rules(policy, state, seen.step[t], seen.steps[t]), BLOCK_REASONS, "within budget")
        known = _PAST_FREE[reason] | (sure & (drift_seen | (reason == _SKIP_LIMIT)))
        guess = seen.skipped[t] & (state.consecutive_skips < policy.max_skips)
        skipped = np.where(known, reason == _WITHIN_BUDGET, guess)
        change, change_seen = seen.change_across(t, state.steps_since_computed)
        skip = rules.state_after_skip(state)
        compute = rules.state_after_compute(policy, state, seen.gamma[t], change)
        history.append((
            *_values(state), sure, gamma_seen, known, skipped,
            np.where(known, reason, _NOT_OBSERVED),
            np.where(known, np.where(skipped, skip.accumulated, 0.0), NAN),
            np.where(sure & drift_seen, state.drift, NAN),
            np.where(skipped | ~sure, NAN, change),
        ))  # fmt: skip
        here = seen.present[t]
        drift_seen = np.where(here, np.where(skipped, drift_seen, sure & change_seen), drift_seen)
        fresh = np.where(skipped, (policy.resume == "int8") | gamma_seen, seen.gamma_seen[t])
        gamma_seen = np.where(here, known & fresh, gamma_seen)
        sure = np.where(here, known, sure)
        skips, computes = here & skipped, here & ~skipped
        state = BlockState(*(
            np.where(skips, a, np.where(computes, b, c))
            for a, b, c in zip(_values(skip), _values(compute), _values(state), strict=True)
        ))  # fmt: skip
    stacked = [np.stack(column) for column in zip(*history, strict=True)]
    return _Reuse(BlockState(*stacked[: len(_STATE)]), *stacked[len(_STATE) :])


@dataclass(frozen=True)
class _Groups:
    """DMPQ and PDR over (step, row, group); words are indices into the tuples of `records`."""

    precision: np.ndarray
    decided_by: np.ndarray
    reason: np.ndarray
    predicted: np.ndarray
    purified: np.ndarray
    known: np.ndarray


def _decide_groups(
    grid: Grid, seen: Observed, reuse: _Reuse, policy: Policy, calibration: Calibration | None
) -> _Groups:
    """Nothing here feeds back into later steps, so all steps are decided at once."""
    state = BlockState(*(value[:, :, None] for value in _values(reuse.state)))
    alpha, beta, weight = _lines(grid, calibration)
    shape = (*grid.shape, len(grid.groups))
    dynamic = policy.precision == "dynamic"
    predicted = np.broadcast_to(rules.predict(alpha, beta, state.gamma_last), shape)
    if dynamic:
        table = rules.precision_rules(policy, state, ~np.isnan(alpha), rules.weigh(policy, predicted, weight))
    else:
        table = ((True, policy.precision, "policy", rules.forced_reason(policy)),)
    # The predictor's input is unknown: INT8, as wherever the engine has no Γ.
    foreseen = (reuse.gamma_seen & reuse.known)[:, :, None] | (state.computed == 0) | (not dynamic)
    table = ((~foreseen, "int8", "no signal", "signal not observed"), *table)
    chosen = np.full(shape, len(table) - 1)
    for number in range(len(table) - 1, -1, -1):
        chosen = np.where(table[number][0], number, chosen)

    skipped = reuse.skipped[:, :, None]
    by_predictor = np.array([rule[2] == "predictor" for rule in table])[chosen] & ~skipped
    refreshed = policy.tdc & ~skipped
    low = np.array([rule[1] in rules.purifiable(policy) for rule in table])[chosen]
    purified = rules.purifies(policy, refreshed, low, seen.ratio)
    table = (*table, (None, policy.purify_to, "outliers", "outliers"), (None, "skipped", "cache", "skipped"))
    chosen = np.where(skipped, len(table) - 1, np.where(purified, len(table) - 2, chosen))
    precision, decided_by, reason = (
        np.array([words.index(rule[place]) for rule in table])[chosen]
        for place, words in ((1, PRECISIONS), (2, DECIDED_BY), (3, GROUP_REASONS))
    )
    alarm_asked = policy.pdr & refreshed & low
    group_known = np.where(alarm_asked, seen.ratio_seen & (foreseen | purified), foreseen)
    return _Groups(
        precision=precision,
        decided_by=decided_by,
        reason=reason,
        predicted=np.where(by_predictor, predicted, NAN),
        purified=purified & ~skipped,
        known=reuse.known[:, :, None] & (skipped | group_known),
    )


def _values(state: BlockState) -> tuple:
    return tuple(getattr(state, name) for name in _STATE)


def _first(table: tuple, words: tuple[str, ...], otherwise: str) -> np.ndarray:
    """Index into `words` of the first rule that holds, elementwise."""
    chosen = words.index(otherwise)
    for holds, word in reversed(table):
        if holds is not False:  # "reuse off", which is the same for all
            chosen = np.where(holds, words.index(word), chosen)
    return chosen


def _lines(grid: Grid, calibration: Calibration | None) -> np.ndarray:
    """α, β and weight, stacked, over (row, group); NaN where a group is not calibrated."""
    known = calibration.rows if calibration else {}
    lines = np.full((3, grid.shape[1], len(grid.groups)), NAN)
    for row, (model, block) in enumerate(zip(grid.models, grid.blocks, strict=True)):
        for g, group in enumerate(grid.groups):
            if line := known.get((model, block, group)):
                lines[:, row, g] = line.alpha, line.beta, line.weight
    return lines


def _rows(
    trace: Trace, grid: Grid, seen: Observed, reuse: _Reuse, groups: _Groups, policy: Policy
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The two tables of the replay, row for row as in the recording."""
    at, layer_at = grid.block_at, grid.layer_at
    skipped = reuse.skipped[at]
    precision = _words(PRECISIONS, groups.precision[layer_at])
    # A cell costs what it cost, as long as nothing in it changed.
    changed = np.zeros(grid.shape, bool)
    differs = np.asarray(precision != trace.layers["precision"].array) | ~groups.known[layer_at]
    changed[tuple(index[differs] for index in layer_at[:2])] = True
    same = ~changed[at] & reuse.known[at] & (skipped == trace.blocks["skipped"].to_numpy())
    blocks = _with(
        trace.blocks,
        gamma=np.where(reuse.skipped, NAN, seen.gamma)[at],
        delta_change=reuse.change[at],
        gap=np.where(reuse.sure & (reuse.state.computed > 0), reuse.state.steps_since_computed, 0)[at],
        drift=reuse.drift[at],
        accumulated=reuse.accumulated[at],
        skipped=skipped,
        refreshed=policy.tdc & ~skipped,
        reason=_words(BLOCK_REASONS, reuse.reason[at]),
        known=reuse.known[at],
        milliseconds=np.where(same, trace.blocks["milliseconds"].to_numpy(), NAN),
    )
    layers = _with(
        trace.layers,
        precision=precision,
        predicted_error=groups.predicted[layer_at],
        outlier_ratio=np.where(reuse.skipped[layer_at[:2]], NAN, trace.layers["outlier_ratio"].to_numpy()),
        purified=groups.purified[layer_at],
        decided_by=_words(DECIDED_BY, groups.decided_by[layer_at]),
        reason=_words(GROUP_REASONS, groups.reason[layer_at]),
        known=groups.known[layer_at],
    )
    return blocks, layers


def _with(table: pd.DataFrame, **columns) -> pd.DataFrame:
    """The table with other columns in the places of its own. From arrays: series would be aligned one by one."""
    own = {name: columns[name] if name in columns else table[name].array for name in table.columns}
    return pd.DataFrame(own, index=table.index, copy=False)


def _words(words: tuple[str, ...], codes: np.ndarray) -> pd.api.extensions.ExtensionArray:
    return column(words, str).take(codes)


def _same_decisions(trace: Trace, blocks: pd.DataFrame, layers: pd.DataFrame) -> bool:
    pairs = (
        (trace.blocks, blocks, ("skipped", "refreshed", "reason")),
        (trace.layers, layers, ("precision", "purified", "decided_by", "reason")),
    )
    return all((old[name].array == new[name].array).all() for old, new, names in pairs for name in names)
