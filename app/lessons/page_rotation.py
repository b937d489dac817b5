"""Lesson 3 on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.figures import lesson_rotation as figures
from app.i18n import sentences, text
from app.lessons import controls, rotation, words
from app.lessons.material import Material
from app.lessons.page import Page, group, missing, plot
from app.lessons.page_ruler import about, run_of
from app.lessons.tokens import groups

KEY = "rotation"


def page(material: Material, lang: str, sent: Mapping[str, Any]) -> Page:
    """`sent`: {"rotated": "off" | "on", "group": a layer group}."""
    known = [name for name in groups(material.tokens) if name in set(material.rotation["group"])]
    if not known:
        return missing(lang, KEY)
    chosen = controls.choice(sent, "group", known, most_moved(material))
    state = controls.choice(sent, "rotated", ("off", "on"), "off")
    on = state == "on"
    info = rotation.facts(material.tokens, chosen, material.rotation)

    def say(key: str, **values: Any) -> str:
        return text(lang, f"{KEY}.{key}", **values)

    names = {name: group(lang, name) for name in known}
    labels = {"error": say("axis_error"), "empty": text(lang, "learn.empty_figure")}
    errors = {row.format: row for row in info.table[info.table["group"] == chosen].itertuples()}
    now = {name: row.rotated if on else row.plain for name, row in errors.items()}
    count = int(errors["int8"].tokens)
    return Page(
        say("title"), say("lead", width=len(info.before)), say("task"),
        [
            controls.chips("rotated", say("switch"), state, [("off", say("off")), ("on", say("on"))]),
            controls.pick("group", say("layer"), chosen, list(names.items())),
        ],
        [
            plot("values", figures.values(info, on, labels), say("values", width=len(info.before)),
                 say("values_alt", state=say(state)), 11),
            plot("errors", figures.errors(info, on, chosen, names, labels), say("errors"), say("errors_alt"), 15),
        ],
        [
            (words.ratio(info.ratio[int(on)]), say("fact_ratio")),
            (words.percent(now["int8"]), say("fact_int8")),
            (words.percent(now["nvfp4"]), say("fact_nvfp4")),
        ],
        insight(info, chosen, on, lang, say),
        sentences(lang, say("note" if material.theory.rotation is None else "note_measured", count=count),
                  about(info.token, lang), run_of(info.token, lang, material)),
    )  # fmt: skip


def most_moved(material: Material) -> str:
    """The layer whose INT8 error rotation changes most: the clearest one to begin with."""
    known = groups(material.tokens)
    table = material.rotation[(material.rotation["format"] == "int8") & material.rotation["group"].isin(known)]
    return str(table.iloc[int((table["plain"] / table["rotated"]).to_numpy().argmax())]["group"])


def insight(info: rotation.Rotation, chosen: str, on: bool, lang: str, say) -> str:
    """Off: what is lost. On: what each format gained, as measured, also where the answer is "nothing"."""
    rows = {row.format: row for row in info.table[info.table["group"] == chosen].itertuples()}
    if not on:
        return say("aha_off", **{name: words.percent(row.plain) for name, row in rows.items()})
    said = []
    for name in rotation.FORMATS:
        gain = rotation.gain(info.table, name, chosen)
        verdict = "gain" if gain > 1.08 else "worse" if gain < 0.97 else "same"
        values = {"before": words.percent(rows[name].plain), "after": words.percent(rows[name].rotated)}
        if (name, verdict) == ("int8", "gain"):
            values["times"] = words.times(gain)
        said.append(say(f"{name}_{verdict}", **values))
    gains = {name: f"{rotation.gain(info.table, name):.2f}" for name in rotation.FORMATS}
    return sentences(lang, *said, say("all", **gains))
