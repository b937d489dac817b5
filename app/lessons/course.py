"""The course: seven pages in order, and the one question that the browser asks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.i18n import resolve, text
from app.lessons import (
    page_average,
    page_budget,
    page_forecast,
    page_refresh,
    page_rotation,
    page_ruler,
    page_turn,
)
from app.lessons.glossary import glossary
from app.lessons.material import Material
from app.links import into_lab

PAGES = (page_average, page_ruler, page_rotation, page_forecast, page_budget, page_refresh, page_turn)
COUNT = len(PAGES)
LARGEST_REQUEST = 20          # controls in one request; a lesson has at most three


def open_lesson(material: Material, lesson: Any, lang: Any, sent: Any) -> dict[str, Any]:
    """One page as plain JSON values. `lesson` is 1 … COUNT; anything unusable falls back to its default."""
    number = lesson if isinstance(lesson, int) and 1 <= lesson <= COUNT else 1
    lang = resolve(lang if isinstance(lang, str) else None)
    controls = sent if isinstance(sent, Mapping) and len(sent) <= LARGEST_REQUEST else {}
    shown = PAGES[number - 1].page(material, lang, controls)
    lessons = COUNT - 1
    lab = None
    if shown.lab is not None:
        lab = {"label": shown.lab_label or text(lang, "learn.lab"), **into_lab(shown.lab, lang, material.source)}
    return finite({
        "lesson": number, "lang": lang, "title": shown.title, "lead": shown.lead, "task": shown.task,
        "controls": shown.controls, "figures": shown.figures, "facts": [list(fact) for fact in shown.facts],
        "aha": shown.aha, "note": shown.note, "lab": lab,
        "glossary": glossary(lang),
        "titles": [text(lang, f"{page.KEY}.short") for page in PAGES],
        "words": {
            "lessons": text(lang, "learn.lessons"), "aha": text(lang, "learn.aha"),
            "present": text(lang, "learn.present"), "present_hint": text(lang, "learn.present_hint"),
            "before": text(lang, "learn.before"), "after": text(lang, "learn.after"),
            "count": text(lang, "learn.number", number=number, count=lessons) if number <= lessons
            else text(lang, "learn.last"),
        },
    })  # fmt: skip


def finite(value: Any) -> Any:
    """The same value with NaN and infinities as None, which is what JSON can carry."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return value
