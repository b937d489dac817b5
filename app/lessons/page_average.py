"""Lesson 1 on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.figures import lesson_average as figures
from app.i18n import sentences, text
from app.lessons import average, controls, words
from app.lessons.material import Film, Material
from app.lessons.page import Page, missing, plot, source

KEY = "average"
SHOWN = 9


def page(material: Material, lang: str, sent: Mapping[str, Any]) -> Page:
    """`sent`: {"step": 1-based denoising step}."""
    grid = material.run_grid
    if grid is None or not grid.blocks:
        return missing(lang, KEY)
    step = controls.whole(sent, "step", 1, grid.steps, max(1, grid.steps // 3)) - 1
    info = average.facts(grid)
    here = average.at_step(grid, step)

    def say(key: str, **values: Any) -> str:
        return text(lang, f"{KEY}.{key}", **values)

    labels = {"step": text(lang, "common.step"), "block": text(lang, "common.block"), "share": say("axis_share"),
              "empty": text(lang, "learn.empty_figure")}  # fmt: skip
    names = {size: say(f"size_{size}") for size in average.SIZES}
    shown = [
        plot("map", figures.marked_map(grid, step, labels), say("map"), say("map_alt"), 14),
        plot("bars", figures.shares(info, step, names, labels), say("bars"), say("bars_alt"), 12),
    ]
    note = [source(lang, material)]
    if material.film is not None and material.film.steps:
        title = say("film", step=step + 1, steps=grid.steps)
        shown.insert(0, film(material.film, step, title, lambda n: say("frame", frame=n)))
    else:
        note.append(say("no_film"))
    parts = dict(zip(("s0", "s4", "s8", "s16"), map(words.percent, info.totals), strict=True))
    return Page(
        say("title"), say("lead", steps=grid.steps, blocks=len(grid.blocks)), say("task"),
        [controls.slider("step", say("step"), step + 1, 1, grid.steps, 1, f"{step + 1} / {grid.steps}")],
        shown,
        [
            (words.bits(info.by_step[step]), say("fact_step", step=step + 1)),
            (f"{here['skipped']} / {len(grid.blocks)}", say("fact_blocks")),
            (words.bits(info.bits), say("fact_run")),
            (words.bits(info.bits_computed), say("fact_computed")),
        ],
        say("aha", bits=words.bits(info.bits), computed=words.bits(info.bits_computed), **parts),
        sentences(lang, *note), material.policy,
    )  # fmt: skip


def film(sheet: Film, step: int, title: str, name) -> dict[str, Any]:
    """Up to nine frames, evenly spaced over the clip, as they were at one step."""
    count = min(SHOWN, sheet.frames)
    picked = sorted({round(i * (sheet.frames - 1) / max(1, count - 1)) for i in range(count)})
    spec = {"path": sheet.path, "columns": sheet.frames, "rows": sheet.steps, "row": min(step, sheet.steps - 1),
            "aspect": sheet.aspect, "frames": [[frame, name(frame + 1)] for frame in picked]}  # fmt: skip
    return {"kind": "film", "id": "film", "title": title, "alt": title, "height": 0, "spec": spec}
