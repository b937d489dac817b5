"""Lesson 6 on the page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.figures import lesson_refresh as figures
from app.i18n import sentences, text
from app.lessons import controls, refresh, words
from app.lessons.material import Material
from app.lessons.page import Page, group, missing, plot, source

KEY = "refresh"
LITTLE = 0.5          # dB: what an eye does not see at these qualities


def page(material: Material, lang: str, sent: Mapping[str, Any]) -> Page:
    """`sent`: {"purified": "off" | "on"}."""
    grid, info = material.probe_grid, material.refresh
    if grid is None or info is None or not grid.blocks:
        return missing(lang, KEY)
    state = controls.choice(sent, "purified", ("off", "on"), "off")
    on = state == "on"
    limit = f"{material.policy.outlier_threshold:g}"

    def say(key: str, **values: Any) -> str:
        return text(lang, f"{KEY}.{key}", **values)

    names = {name: group(lang, name) for name in grid.groups}
    labels = {"with": say("with"), "without": say("without"), "axis_error": say("axis_error"),
              "axis_share": say("axis_share"), "axis_reuse": say("axis_reuse"), "axis_gain": say("axis_gain"),
              "step": text(lang, "common.step"),
              "empty": text(lang, "learn.empty_figure"),
              "percent": {row.group: words.percent(row.rings) for row in info.alarm.itertuples()}}  # fmt: skip
    figure_list = [
        plot("kept", figures.kept(info, on, labels),
             say("line", block=grid.blocks[info.block], group=names[grid.groups[info.group]]), say("line_alt"), 15),
        plot("alarm", figures.alarm(info.alarm, names, labels), say("alarm", limit=limit), say("alarm_alt"), 11),
    ]  # fmt: skip
    reuse = material.theory.reuse
    if reuse is not None:
        figure_list.append(plot("gains", figures.gains(reuse, labels),
        say("gains", prompts=int(reuse["prompts"].max())),
                                say("gains_alt"), 12))  # fmt: skip
    return Page(
        say("title"), say("lead"), say("task"),
        [controls.chips("purified", say("switch"), state, [("off", say("off")), ("on", say("on"))])],
        figure_list,
        [
            (words.percent(info.share if on else 0.0), say("fact_share")),
            (words.bits(info.bits[int(on)]), say("fact_bits", without=words.bits(info.bits[0]))),
            (words.percent(info.removed if on else 0.0), say("fact_error")),
        ],
        insight(material, info, on, limit, names, lang, say),
        sentences(lang, text(lang, "learn.estimate"), say("after_gelu"), source(lang, material)),
        replace(material.policy, pdr=on),
    )  # fmt: skip


def insight(
    material: Material, info: refresh.Refresh, on: bool, limit: str, names: dict[str, str], lang: str, say
) -> str:
    """What purifying does to the cache here, and what it did to real videos where that was measured."""
    if not info.share > 0:
        return say("aha_never", limit=limit)
    if not on:
        return say("aha_off")
    removed = words.percent(info.removed) if math.isfinite(info.removed) else "–"
    said = [say("aha_on", share=words.percent(info.share), removed=removed)]
    top = info.alarm.sort_values("rings").iloc[-1]
    if top["rings"] > 0.8 * info.alarm["rings"].sum():
        said.append(say("one_layer", group=names[top["group"]], rings=words.percent(top["rings"])))
    seen = refresh.measured(material.frontier)
    if seen is None:
        return sentences(lang, *said, say("unmeasured"))
    better = seen.with_ - seen.without
    verdict = "worse" if better <= 0 else "little" if better < LITTLE else "much"
    said.append(
        say(f"measured_{verdict}", prompts=seen.prompts, without=f"{seen.without:.1f}", with_=f"{seen.with_:.1f}")
    )
    return sentences(lang, *said)
