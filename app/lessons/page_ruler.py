"""Lesson 2 on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.figures import palette
from app.i18n import sentences, text
from app.lessons import controls, ruler, words
from app.lessons.material import Material
from app.lessons.page import Page, group, missing, source
from app.lessons.tokens import SAMPLES, Token, calmest

KEY = "ruler"
# (ruler, what is stored on a light page, on a dark one): marks must stand out from lines of their own hue.
STYLE = {"nvfp4": (palette.NVFP4, "#A86B00", "#FFD97F"), "int8": (palette.INT8, "#1F4B78", "#9CC8F0")}


def page(material: Material, lang: str, sent: Mapping[str, Any]) -> Page:
    """`sent`: {"index": which of the sixteen, "value": where it was dragged to}."""
    token = calmest(material.tokens)
    if token is None:
        return missing(lang, KEY)
    start = ruler.facts(token.values)
    index = controls.whole(sent, "index", 0, 15, start.index)
    value = controls.number(
        sent, "value", -ruler.MOST * start.span, ruler.MOST * start.span, float(start.original[index])
    )
    info = ruler.facts(token.values, index, value)

    def say(key: str, **values: Any) -> str:
        return text(lang, f"{KEY}.{key}", **values)

    width = len(token.values)
    four, eight = info.formats["nvfp4"], info.formats["int8"]
    figure = {
        "kind": "ruler", "id": "ruler", "title": say("figure"), "alt": say("alt"), "height": 0,
        "spec": {
            "values": info.values.tolist(), "original": info.original.tolist(), "index": info.index, "span": info.span,
            "most": ruler.MOST, "block": info.block, "worst": 0.5, "words": {"handle": say("handle")},
            "formats": [_panel(info, name, say(name, width=width), width, say) for name in ("nvfp4", "int8")],
        },
    }  # fmt: skip
    return Page(
        say("title"), say("lead", width=width), say("task"), [], [figure],
        [
            (words.ratio(info.ratio), say("fact_ratio", before=words.ratio(info.ratio_before))),
            (words.percent(four.neighbours[1]), say("fact_near")),
            (words.percent(eight.rest[1]), say("fact_far")),
        ],
        insight(info, lang, say),
        sentences(lang, say("strip"), say("hint"), about(token, lang), run_of(token, lang, material)),
    )  # fmt: skip


def insight(info: ruler.Ruler, lang: str, say) -> str:
    """The sentence that fits what the visitor has just done."""
    value = abs(float(info.values[info.index]))
    neighbours = float(abs(info.original).max())
    four, eight = info.formats["nvfp4"], info.formats["int8"]
    near = {"near0": words.percent(four.neighbours[0]), "near1": words.percent(four.neighbours[1])}
    if value <= 1.3 * neighbours:
        return say("aha_calm")
    if value <= 1.2 * info.largest:
        return say("aha_block", **near)
    said = say("aha_token", **near, far4=words.percent(four.rest[1]), far0=words.percent(eight.rest[0]),
               far1=words.percent(eight.rest[1]))  # fmt: skip
    gone = not four.snapped[[i for i in range(16) if i != info.index]].any()
    return sentences(lang, said, say("aha_gone")) if gone else said


def run_of(token: Token, lang: str, material: Material) -> str:
    """The recorded run that samples come from; captured tokens come from a run of their own."""
    return source(lang, material) if token.source == SAMPLES else ""


def about(token: Token, lang: str) -> str:
    """Which real values these are."""
    return text(lang, f"learn.token_{token.source}", block=token.block, group=group(lang, token.group),
                step=token.step + 1, width=len(token.values)) if token.source == "captured" else \
        text(lang, f"learn.token_{token.source}", block=token.block, group=group(lang, token.group))  # fmt: skip


def _panel(info: ruler.Ruler, name: str, title: str, width: int, say) -> dict[str, Any]:
    form = info.formats[name]
    shade, *mark = STYLE[name]
    return {
        "title": title, "colour": shade, "mark": mark, "shade": palette.MISS, "fine": name == "int8",
        "values": form.snapped.tolist(), "lines": form.lines.tolist(), "blocks": form.blocks.round(4).tolist(),
        "sentence": say(
            "sentence", others=width // 16 - 1, near0=words.percent(form.neighbours[0]),
            near1=words.percent(form.neighbours[1]), far0=words.percent(form.rest[0]), far1=words.percent(form.rest[1]),
        ),
    }  # fmt: skip
