"""Lesson 5 on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.figures import lesson_budget as figures
from app.i18n import sentences, text
from app.lessons import average, budget, controls, words
from app.lessons.material import Material
from app.lessons.page import Page, missing, plot, source
from engine.settings import Policy

KEY = "budget"


def page(material: Material, lang: str, sent: Mapping[str, Any]) -> Page:
    """`sent`: {"tolerance": tdc_threshold, "block": position as text}."""
    grid = material.probe_grid
    if grid is None or not grid.blocks:
        return missing(lang, KEY)
    places = [str(i) for i in range(len(grid.blocks))]
    place = controls.choice(sent, "block", places, str(material.start_block))
    name = grid.blocks[int(place)]
    most = budget.TOLERANCES[-1]
    tolerance = controls.number(sent, "tolerance", 0.0, most, min(most, material.policy.tdc_threshold))
    policy = budget.with_budget(material.policy, round(tolerance, 4))
    info = budget.facts(material.probe, policy, name)

    def say(key: str, **values: Any) -> str:
        return text(lang, f"{KEY}.{key}", **values)

    labels = {"spent": say("spent"), "drift": say("drift"), "limit": say("limit"), "skipped": say("skipped"),
              "predictor": say("predictor"), "axis_spent": say("axis_spent"), "axis_budget": say("tolerance"),
              "step": text(lang, "common.step"), "empty": text(lang, "learn.empty_figure")}  # fmt: skip
    without = words.percent(float(material.curve["predictor"].iloc[0]))
    note = [text(lang, "learn.estimate"), say("limit_note", limit=policy.max_skips, first=policy.warmup_steps,
                                               last=policy.protect_last)]  # fmt: skip
    if info.replay == "partial":
        note.append(say("partial"))
    ran = measured(material, policy)
    if ran is not None:
        note.insert(1, say("measured", bits=words.bits(ran.bits), computed=words.bits(ran.bits_computed),
                           skipped=words.percent(float(material.run_grid.skipped.mean()))))  # fmt: skip
    return Page(
        say("title"), say("lead"), say("task"),
        [
            controls.slider("tolerance", say("tolerance"), tolerance, 0.0, most, 0.005, words.percent(tolerance),
                            (say("ends_low"), say("ends_high"))),
            controls.pick("block", say("block"), place, [(p, str(grid.blocks[int(p)])) for p in places]),
        ],
        [
            plot("saw", figures.sawtooth(info, tolerance, labels), say("saw", block=name), say("saw_alt"), 17),
            plot("curve", figures.shares(material.curve, tolerance, labels), say("curve"), say("curve_alt"), 13),
        ],
        [
            (words.percent(info.skipped), say("fact_skipped")),
            (words.percent(info.predictor), say("fact_predictor", without=without)),
            (words.bits(info.bits), say("fact_bits", computed=words.bits(info.bits_computed))),
        ],
        say("aha_none") if info.skipped == 0 else say(
            "aha", budget=words.percent(tolerance), skipped=words.percent(info.skipped),
            share=words.percent(info.predictor), without=without),
        sentences(lang, *note, source(lang, material)), policy,
    )  # fmt: skip


def measured(material: Material, policy: Policy) -> average.Average | None:
    """What the recorded run itself came to, where it ran at the settings shown; None for a replay or another budget."""
    run, own = material.run, material.policy
    if run is None or run.meta.replay or not own.tdc or abs(own.tdc_threshold - policy.tdc_threshold) > 1e-4:
        return None
    return average.facts(material.run_grid)
