"""Lesson 4 on the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from app.figures import lesson_forecast as figures
from app.i18n import sentences, text
from app.lessons import controls, forecast, words
from app.lessons.material import Material
from app.lessons.page import Page, group, missing, plot, source

KEY = "forecast"
MOST = 0.3


def page(material: Material, lang: str, sent: Mapping[str, Any]) -> Page:
    """`sent`: {"block": position as text, "group": a layer group, "tolerance": error_threshold}."""
    grid = material.probe_grid
    if grid is None or not grid.blocks or material.fits.empty:
        return missing(lang, KEY)
    first = forecast.telling(grid, material.fits, material.policy.error_threshold)
    places = [str(i) for i in range(len(grid.blocks))]
    block = int(controls.choice(sent, "block", places, str(first[0])))
    name = controls.choice(sent, "group", grid.groups, grid.groups[first[1]])
    chosen = grid.groups.index(name)
    tolerance = controls.number(sent, "tolerance", 0.0, MOST, material.policy.error_threshold)
    info = forecast.facts(grid, block, chosen, tolerance)
    count = len(info.points)
    if not count:
        return missing(lang, KEY)

    def say(key: str, **values: Any) -> str:
        return text(lang, f"{KEY}.{key}", **values)

    labels = {"gamma": say("axis_gamma"), "error": say("axis_error"), "slope": say("axis_slope"), "r2": say("axis_r2"),
              "this": say("this"), "step": text(lang, "common.step"), "empty": say("none")}  # fmt: skip
    verdicts = {verdict: say(verdict) for verdict in forecast.VERDICTS}
    dot_names = [
        f"{text(lang, 'common.block')} {grid.blocks[row.block]}, {group(lang, grid.groups[row.group])}"
        for row in material.fits.itertuples()
    ]
    right = info.counts[forecast.HIT_FOUR] + info.counts[forecast.HIT_EIGHT]
    return Page(
        say("title"), say("lead"), say("task"),
        [
            controls.pick("block", say("block"), str(block), [(p, str(grid.blocks[int(p)])) for p in places]),
            controls.pick("group", say("layer"), name, [(g, group(lang, g)) for g in grid.groups]),
            controls.slider("tolerance", say("tolerance"), tolerance, 0.0, reach(grid), 0.002,
                            words.percent(tolerance), (say("ends_low"), say("ends_high"))),
        ],
        [
            plot("dots", figures.dots(info, tolerance, verdicts, labels), say("dots"), say("dots_alt"), 19),
            plot("lines", figures.lines(material.fits, (block, chosen), dot_names, labels),
                 say("lines", count=len(material.fits)), say("lines_alt"), 14),
        ],
        [
            (str(right), say("fact_right", count=count)),
            (str(info.counts[forecast.WASTE]), say("fact_waste")),
            (str(info.counts[forecast.MISS]), say("fact_miss")),
            (words.percent(max(0.0, info.r2)), say("fact_r2")),
        ],
        insight(material, info, tolerance, lang, say), sentences(lang, say("note"), source(lang, material)),
        replace(material.policy, error_threshold=round(tolerance, 4), weighting="none"),  # as the lesson counts
    )  # fmt: skip


def reach(grid) -> float:
    """The slider's end: a little above nearly all measured errors, so that its whole length does something."""
    seen = grid.error_nvfp4[np.isfinite(grid.error_nvfp4)]
    return float(np.clip(np.ceil(np.quantile(seen, 0.99) * 1.15 * 50) / 50, 0.1, MOST)) if seen.size else MOST


def insight(material: Material, info: forecast.Forecast, tolerance: float, lang: str, say) -> str:
    """The direction of this layer's line, then what holds for all of them."""
    flat = info.r2 < 0.05
    direction = say("aha_flat") if flat else say("aha_down") if info.alpha < 0 else say("aha_up")
    fits, total = material.fits, forecast.totals(material.probe_grid, material.fits, tolerance)
    every = max(1, sum(total.values()))
    right = (total[forecast.HIT_FOUR] + total[forecast.HIT_EIGHT]) / every
    unseen = material.theory.predictor
    judged = [] if unseen is None else unseen["r2_held_out"].dropna()
    useless = len(judged) and float(judged.median()) <= 0
    held = say(
        "aha_useless" if useless else "aha_unseen", median=words.percent(max(0.0, float(judged.median()))),
        worse=words.percent(float((judged < 0).mean())),
    ) if len(judged) else ""  # a single probe leaves no unseen prompt to judge the lines on
    here = sentences(lang, direction, say(
        "aha_all", negative=int((fits["alpha"] < 0).sum()), count=len(fits), median=words.percent(fits["r2"].median()),
        right=words.percent(right), waste=words.percent(total[forecast.WASTE] / every),
        miss=words.percent(total[forecast.MISS] / every),
    ))  # fmt: skip
    # Two questions, two paragraphs: the right side of a threshold on this run, and the error itself on another prompt.
    return f"{here}<br><br>{held}" if held else here
