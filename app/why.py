"""Why a cell has its colours: one sentence for each of them, the likeliest question first, then why the block computed.

A colour is a number of bits and what decided it, so the layers of a cell that share both share a sentence.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.figures import grid as grids
from app.i18n import plain
from engine.settings import Policy, weighs

MARKS = {grids.SKIPPED: "skipped", grids.NVFP4: "nvfp4", grids.INT8: "int8", grids.W4A16: "w4a16", grids.STOCK: "stock",
         grids.PURIFIED: "w4a16", grids.UNKNOWN: "unknown"}


class Line(NamedTuple):
    """One sentence. `mark` is the colour that it explains, a key of `MARKS`' values; "" where it is about none."""

    mark: str
    text: str


def lines(grid: grids.Grid, policy: Policy, weights: np.ndarray, block: int, step: int, lang: str) -> list[Line]:
    """Why the cell is as it is: a sentence per colour, the one that most layers took first, then the block's own cause.
    `weights` (B, 1, G): what the policy multiplied predicted errors by."""
    # A replay does not know the cell.
    if named(grid.block_reasons, grid.block_reason[block, step]) == "signal not observed":
        nothing = plain(lang, "lab.why.unknown_bits")
        return [
            Line(
                "unknown", plain(lang, "lab.why.colour", took=nothing, cause=plain(lang, "lab.why.signal_not_observed"))
            ),
            Line("", plain(lang, "lab.why.run_to_know")),
        ]
    if grid.decision[block, step, 0] == grids.SKIPPED:
        since = run_of_skips(grid, block, step)
        return [Line("skipped", _block(grid, policy, block, step, lang)),
                Line("", plain(lang, "lab.why.skip_cost", nth=since, left=policy.max_skips))]
    colours = [
        _colour(grid, policy, weights[block, 0], block, step, layers, lang) for layers in _alike(grid, block, step)
    ]
    head = plain(lang, "lab.why.computed", cause=_block(grid, policy, block, step, lang))
    return [*colours, Line("", head)]


def _alike(grid: grids.Grid, block: int, step: int) -> list[list[int]]:
    """The cell's groups by what they took and why; the largest party first."""
    parties: dict[tuple[int, int], list[int]] = {}
    for g in range(len(grid.groups)):
        parties.setdefault((int(grid.decision[block, step, g]), int(grid.group_reason[block, step, g])), []).append(g)
    return sorted(parties.values(), key=len, reverse=True)


def _colour(
    grid: grids.Grid, policy: Policy, weights: np.ndarray, block: int, step: int, layers: list[int], lang: str
) -> Line:
    code = int(grid.decision[block, step, layers[0]])
    cause = named(grid.group_reasons, grid.group_reason[block, step, layers[0]])
    if code == grids.UNKNOWN and cause != "signal not observed":
        cause = "ratio not observed"
    seen, limit = grid.outlier[block, step, layers], policy.outlier_threshold
    predicted = grid.predicted[block, step, layers]
    digits = digits_above(predicted * weights[layers], policy.error_threshold)
    values = {
        "tau": percent(policy.error_threshold, digits),
        "predicted": span(predicted, digits),
        "weight": times(weights[layers]),
        "weighed": span(predicted * weights[layers], digits),
        "limit": f"{limit:g}",
        "ratio": listed([f"{figure(r, 1 if r > limit >= np.round(r) else 0)} ×" for r in seen], lang),
    }
    took = (
        plain(lang, "lab.why.unknown_bits")
        if code == grids.UNKNOWN
        else plain(lang, "lab.why.bits", bits=int(grids.BITS[code]))
    )
    if len(layers) < len(grid.groups):
        took = plain(lang, "lab.why.bits_in", took=took, layers=_who(grid, layers, lang))
    rule = "weighed" if weighs(policy) and cause.startswith("predicted error") else "layers"
    return Line(
        MARKS.get(code, ""),
        plain(lang, "lab.why.colour", took=took, cause=plain(lang, f"lab.why.{rule}.{key(cause)}", **values)),
    )


def _who(grid: grids.Grid, layers: list[int], lang: str) -> str:
    """Some of the cell's groups, by name, or by the one that is left out."""
    others = [g for g in range(len(grid.groups)) if g not in layers]
    if len(others) == 1 < len(layers):
        return plain(lang, "lab.why.who.but", layers=group(grid.groups[others[0]], lang))
    return plain(lang, "lab.why.who.join").join(group(grid.groups[g], lang) for g in layers)


def _block(grid: grids.Grid, policy: Policy, block: int, step: int, lang: str) -> str:
    """The block's cause: of a skip a whole sentence, else what follows "computed, because"."""
    reason = named(grid.block_reasons, grid.block_reason[block, step])
    drift, spent = grid.weighed[block, step], grid.accumulated[block, step]
    values = {"tau": percent(policy.tdc_threshold), "max_skips": policy.max_skips, "warmup": policy.warmup_steps,
              "last": policy.protect_last, "drift": percent(drift), "spent": percent(spent)}
    if reason == "budget spent":
        values.update(overspent(grid.accumulated[block, step - 1] if step else 0.0, drift, policy.tdc_threshold))
    return plain(lang, f"lab.why.{key(reason)}", **values)


def overspent(spent: float, drift: float, tau: float) -> dict[str, str]:
    """The sum that made a block compute, with as many digits as it takes to see which side of the tolerance it is
    on."""
    spent, drift = float(spent) if np.isfinite(spent) else 0.0, float(drift)     # nothing spent: computed just before
    digits = next((d for d in (1, 2, 3) if round(100 * (spent + drift), d) > round(100 * tau, d)), 4)
    told = {"spent": spent, "drift": drift, "sum": spent + drift, "tau": tau}
    return {name: percent(value, digits) for name, value in told.items()}


def run_of_skips(grid: grids.Grid, block: int, step: int) -> int:
    """How many steps in a row up to and including this one were skipped."""
    count = 0
    while step - count >= 0 and grid.decision[block, step - count, 0] == grids.SKIPPED:
        count += 1
    return count


def listed(parts: list[str], lang: str) -> str:
    """a, b and c."""
    head = plain(lang, "lab.state.comma").join(parts[:-1])
    return plain(lang, "lab.state.and").join(part for part in (head, parts[-1]) if part)


def figure(value: float, digits: int) -> str:
    """A number with so many digits after the point; from a million on as a power of ten, beyond all numbers ∞."""
    if not np.isfinite(value):
        return "–" if np.isnan(value) else "∞"
    return f"{value:.1e}" if abs(value) >= 1e6 else f"{value:.{digits}f}"


def percent(value: float, digits: int = 1) -> str:
    """7.3 %, or a dash for a value that was never observed."""
    return f"{figure(100 * float(value), digits)} %" if np.isfinite(value) else "–"


def span(values: np.ndarray, digits: int = 1) -> str:
    """7.3 %, or 7.3 to 9.1 % as a range, or a dash."""
    known = values[np.isfinite(values)]
    if not known.size:
        return percent(np.nan)
    low, high = percent(known.min(), digits), percent(known.max(), digits)
    return low if low == high else f"{low.removesuffix(' %')}–{high}"


def digits_above(values: np.ndarray, limit: float) -> int:
    """As many digits of a percentage as it takes to see that what is above the limit is."""
    above = values[np.isfinite(values) & (values > limit)]
    return next((d for d in (1, 2, 3) if all(round(100 * float(v), d) > round(100 * limit, d) for v in above)), 4)


def times(values: np.ndarray) -> str:
    """1.8×, or 0.4–1.8× as a range; two digits at least."""
    ends = [f"{value:.2g}" if value < 1 else figure(value, 1) for value in (values.min(), values.max())]
    return "–".join(dict.fromkeys(ends)) + "×"


def named(names: tuple[str, ...], code: int) -> str:
    """The reason with a code; "" for none."""
    return names[code] if code < len(names) else ""


def key(reason: str) -> str:
    """A reason as part of a text's key."""
    return reason.replace(" ", "_").replace("-", "_") or "unknown"


def group(name: str, lang: str) -> str:
    """A layer group's name in full; the model's own where the page has none."""
    try:
        return plain(lang, f"group.{name}")
    except KeyError:
        return name
