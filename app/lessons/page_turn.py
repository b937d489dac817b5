"""The last page: your turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.figures import lesson_average
from app.i18n import sentences, text
from app.lessons import controls, turn, words
from app.lessons.material import Material, grid_of
from app.lessons.page import Page, missing, plot, source
from app.lessons.page_forecast import reach

KEY = "turn"


def page(material: Material, lang: str, sent: Mapping[str, Any]) -> Page:
    """`sent`: {"precision": error_threshold, "reuse": tdc_threshold}."""
    if material.probe is None or not material.probe_grid.blocks:
        return missing(lang, KEY)
    top = reach(material.probe_grid)
    precision = controls.number(sent, "precision", 0.0, top, min(top, material.policy.error_threshold))
    reuse = controls.number(sent, "reuse", 0.0, 0.3, min(0.04, material.policy.tdc_threshold))
    info = turn.facts(material.probe, material.policy, round(precision, 4), round(reuse, 4))

    def say(key: str, **values: Any) -> str:
        return text(lang, f"{KEY}.{key}", **values)

    labels = {"step": text(lang, "common.step"), "block": text(lang, "common.block"),
              "empty": text(lang, "learn.empty_figure")}  # fmt: skip
    ends = (say("careful"), say("cheaper"))
    reached = info.bits < turn.GOAL
    said = [say("under" if reached else "over", bits=words.bits(info.bits))]
    if reached:
        said.append(say("honest", computed=words.bits(info.bits_computed)))
    seen = turn.best(material.frontier)
    if seen is not None:
        said.append(say("measured", count=seen.count, best=words.percent(seen.accuracy),
                        reference=words.percent(seen.reference)))  # fmt: skip
    figure = lesson_average.marked_map(grid_of(info.trace), None, labels)
    return Page(
        say("title"), say("lead"), say("task"),
        [
            controls.slider("precision", say("precision"), precision, 0.0, top, 0.002, words.percent(precision), ends),
            controls.slider("reuse", say("reuse"), reuse, 0.0, 0.3, 0.005, words.percent(reuse), ends),
        ],
        [plot("map", figure, say("map"), say("map_alt"), 18)],
        [
            (words.bits(info.bits), say("fact_bits")),
            (words.bits(info.bits_computed), say("fact_computed")),
            (words.percent(info.skipped), say("fact_skipped")),
        ],
        sentences(lang, *said), sentences(lang, text(lang, "learn.estimate"), source(lang, material)),
        info.policy, say("run"),
    )  # fmt: skip
