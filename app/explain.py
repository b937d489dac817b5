"""Why is this cell like that? A few plain sentences (`app.why`), then the numbers against their limits, layer by layer.

Pure: a source, a policy and a cell in; texts and numbers out. Nothing is recomputed that the trace does not hold.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from app import look as looks
from app.figures import grid as grids
from app.i18n import plain
from app.lessons import numbers
from app.session import Source
from app.weights import weights as weights_in
from app.why import figure, key, lines, listed, named, percent, run_of_skips, times
from app.why import group as group_name
from engine.settings import Policy, weighs
from engine.trace import Trace

SHOWN = {
    grids.SKIPPED: "–",
    grids.NVFP4: "4",
    grids.INT8: "8",
    grids.W4A16: "16",
    grids.STOCK: "16",
    grids.PURIFIED: "16",
    grids.UNKNOWN: "?",
}


def explain(grid: grids.Grid, signals: grids.Grid, samples: Trace, policy: Policy,
            block: int, step: int, lang: str, weights: np.ndarray | None = None) -> dict[str, Any]:
    """Everything about cell (`block`, `step`), both indices into `grid`. `signals` fills in what was measured where
    `grid` is a what-if; `samples` is the trace in which real values may be; `weights` (B, 1, G) is what the policy
    multiplies predicted errors by, by default as the calibration of `samples` says. Raises ValueError for a cell
    outside."""
    if not (0 <= block < len(grid.blocks) and 0 <= step < grid.steps):
        raise ValueError(
            f"Expected a block below {len(grid.blocks)} and a step below {grid.steps}; got {block} and {step}."
        )
    codes = grid.decision[block, step]
    name = {"block": grid.blocks[block], "step": step + 1}
    if not codes.size or codes[0] == grids.NOTHING:
        return {
            "title": plain(lang, "lab.explain.pending", **name),
            "sentences": [],
            "marks": [],
            "numbers": [],
            "layers": [],
            "sample": None,
        }
    if weights is None:
        weights = weights_in(
            grid, samples.meta.calibration, policy, next((v.model for v in grids.views(samples.blocks)), "")
        )
    why = lines(grid, policy, weights, block, step, lang)
    return {
        "title": plain(lang, "lab.explain.head", **name, state=state(codes, lang)),
        "sentences": [line.text for line in why],
        "marks": [line.mark for line in why],
        "numbers": limits(grid, signals, policy, block, step, lang),
        "layers": layers(grid, signals, policy, weights[block, 0], block, step, lang),
        "sample": sample(samples, grid, block, step, lang),
    }


def explain_in(source: Source, wish: looks.Wish, block: int, step: int, lang: str) -> dict[str, Any]:
    """`explain` of a cell of the map that `wish` shows. Under a draft, a cell that stays as it was is explained by the
    run, another one by the draft. Raises ValueError for a cell outside."""
    basis = source.signals or source.trace
    pair = looks.drawn(source, wish.policy, {}, "draft")
    seen, signals = looks.grid_of(pair.shown, wish.which), looks.grid_of(basis, wish.which)
    was = looks.grid_of(source.trace, wish.which)
    known = 0 <= block < len(was.blocks) and 0 <= step < was.steps

    def told(grid: grids.Grid, policy: Policy) -> dict[str, Any]:
        return explain(
            grid, signals, basis, policy, block, step, lang, looks.weights_of(source, policy, grid, wish.which)
        )

    if not (pair.draft and known and grids.same_shape(was, seen)) or (was.decision[block, step] == grids.NOTHING).any():
        return told(seen, wish.policy)
    shown = looks.map_of(source, pair.shown, wish.policy, wish.which)
    same = (shown.decision[block, step] == was.decision[block, step]).all()
    by_run = same and source.signals is not None
    answer = told(was, source.policy) if by_run else told(seen, wish.policy)
    note = (
        plain(lang, "lab.explain.kept")
        if same
        else plain(lang, "lab.explain.drafted", state=state(was.decision[block, step], lang))
    )
    return {**answer, "sentences": [*answer["sentences"], note], "marks": [*answer["marks"], ""]}


def state(codes: np.ndarray, lang: str) -> str:
    """The cell in three words: skipped, computed at 8 bits, computed at 4 and 8 bits …"""
    if codes[0] == grids.SKIPPED:
        return plain(lang, "lab.state.skipped")
    if (codes == grids.UNKNOWN).any():
        return plain(lang, "lab.state.unknown")
    bits = sorted({int(grids.BITS[c]) for c in codes})
    if len(bits) == 1:
        return plain(lang, "lab.state.one", bits=bits[0])
    return plain(lang, "lab.state.mixed", bits=listed([str(b) for b in bits], lang))


def limits(grid: grids.Grid, signals: grids.Grid, policy: Policy, block: int, step: int, lang: str) -> list[list[str]]:
    """Rows of [quantity, value, limit] for the block."""
    rows = []

    def add(key: str, value: str, limit: str = "") -> None:
        rows.append([plain(lang, f"lab.quantity.{key}"), value, limit])

    before = grid.accumulated[block, step - 1] if step else 0.0
    gamma_before = grid.gamma[block, step - 1] if step else np.nan
    add("gamma_before", percent(gamma_before) if np.isfinite(gamma_before) else plain(lang, "lab.value.none"))
    add("gamma", percent(_either(grid.gamma, signals.gamma, block, step)))
    if policy.tdc:
        add("drift", percent(grid.weighed[block, step]))
        add("budget", f"{percent(before)} → {percent(grid.accumulated[block, step])}", percent(policy.tdc_threshold))
        add("skips", str(run_of_skips(grid, block, step)), str(policy.max_skips))
    milliseconds = grid.milliseconds[block, step]
    if np.isfinite(milliseconds):
        add("time", f"{milliseconds:.1f} ms")
    return rows


def layers(
    grid: grids.Grid, signals: grids.Grid, policy: Policy, weights: np.ndarray, block: int, step: int, lang: str
) -> list[list[str]]:
    """Rows of [layer, bits, why with its numbers]. `weights` (G): what the policy multiplied predicted errors by."""
    rows = []
    for g, group in enumerate(grid.groups):
        cause = named(grid.group_reasons, grid.group_reason[block, step, g])
        parts = [plain(lang, f"lab.reason.{key(cause)}")]
        predicted = grid.predicted[block, step, g]
        ratio = _either3(grid.outlier, signals.outlier, block, step, g)
        four, eight = (
            _either3(getattr(grid, n), getattr(signals, n), block, step, g) for n in ("error_nvfp4", "error_int8")
        )
        if np.isfinite(predicted) and weighs(policy):
            parts.append(plain(lang, "lab.value.weighed", value=percent(predicted), weight=times(weights[[g]]),
                               weighed=percent(predicted * weights[g])))
        elif np.isfinite(predicted):
            parts.append(plain(lang, "lab.value.predicted", value=percent(predicted)))
        if np.isfinite(four):
            parts.append(plain(lang, "lab.value.measured", four=percent(four), eight=percent(eight)))
        if np.isfinite(ratio):
            parts.append(plain(lang, "lab.value.ratio", value=figure(ratio, 0)))
        rows.append([group_name(group, lang), SHOWN.get(int(grid.decision[block, step, g]), ""), " · ".join(parts)])
    return rows


def sample(trace: Trace, grid: grids.Grid, block: int, step: int, lang: str) -> dict[str, Any] | None:
    """One real block of 16 input values of this cell in both formats; None where none was kept."""
    table = trace.layers
    if "sample" not in table:
        return None
    here = table[(table["block"].to_numpy() == grid.blocks[block]) & (table["step"].to_numpy() == step)]
    here = here[[v is not None and np.size(v) == numbers.BLOCK for v in here["sample"]]]
    if here.empty:
        return None
    row = here.loc[here["outlier_ratio"].astype(float).fillna(0).idxmax()]
    values = np.asarray(row["sample"], np.float32)
    if not np.isfinite(values).all():
        return None
    token_max = float(row.get("sample_absmax", np.nan))
    token = np.concatenate(
        [values, np.full(numbers.BLOCK, token_max if np.isfinite(token_max) else np.abs(values).max(), np.float32)]
    )
    four, eight = numbers.nvfp4(token), numbers.int8(token)
    four_values, eight_values = four.values[:16], eight.values[:16]
    grid_of = [float(np.sign(c) * numbers.E2M1[abs(c)]) for c in four.codes[:16]]
    rows = [
        [plain(lang, "lab.sample.real"), *(f"{v:.3g}" for v in values)],
        [plain(lang, "lab.sample.code4"), *(f"{v:g}" for v in grid_of)],
        [plain(lang, "lab.sample.as4"), *(f"{v:.3g}" for v in four_values)],
        [plain(lang, "lab.sample.code8"), *(str(int(c)) for c in eight.codes[:16])],
        [plain(lang, "lab.sample.as8"), *(f"{v:.3g}" for v in eight_values)],
    ]
    note = plain(
        lang,
        "lab.sample.note",
        scale4=f"{float(four.ruler[0]):.3g}",
        scale8=f"{float(eight.ruler[0]):.3g}",
        error4=percent(numbers.relative_error(four_values, values)),
        error8=percent(numbers.relative_error(eight_values, values)),
    )
    return {
        "title": plain(lang, "lab.sample.title", layer=group_name(str(row["layer"]), lang)),
        "values": values.tolist(),
        "nvfp4": four_values.tolist(),
        "int8": eight_values.tolist(),
        "rows": rows,
        "note": note,
    }


def _either(a: np.ndarray, b: np.ndarray, block: int, step: int) -> float:
    value = a[block, step]
    return float(value if np.isfinite(value) or a.shape != b.shape else b[block, step])


def _either3(a: np.ndarray, b: np.ndarray, block: int, step: int, g: int) -> float:
    value = a[block, step, g]
    return float(value if np.isfinite(value) or a.shape != b.shape else b[block, step, g])
