"""The form of one lesson's answer to the browser, and what all lessons say alike."""

from __future__ import annotations

from typing import Any, NamedTuple

from app.i18n import text, texts
from app.lessons import words
from app.lessons.material import Material
from engine.settings import Policy


class Page(NamedTuple):
    """What a lesson shows. Every string is ready for HTML.

    figures: dictionaries {kind, id, title, alt, height (em), spec}; facts: (big, small) pairs;
    lab: the policy that "Open in the Lab" carries, or None.
    """

    title: str
    lead: str
    task: str
    controls: list[dict[str, Any]]
    figures: list[dict[str, Any]]
    facts: list[tuple[str, str]]
    aha: str
    note: str
    lab: Policy | None = None
    lab_label: str = ""


def plot(name: str, figure: dict, title: str, alt: str, height: float) -> dict[str, Any]:
    """A plotly figure on the stage; `height` in em, so that it grows with the presenter's type."""
    return {"kind": "plot", "id": name, "title": title, "alt": alt, "height": height, "spec": figure}


def group(lang: str, name: str) -> str:
    """A layer group as people call it; an unknown one keeps its own name, escaped."""
    return text(lang, f"group.{name}") if f"group.{name}" in texts()[lang] else text(lang, "learn.plain", value=name)


def source(lang: str, material: Material) -> str:
    """Where the numbers come from."""
    trace = material.probe or material.run
    return text(lang, "learn.source", **words.origin(trace)) if trace is not None else ""


def missing(lang: str, key: str) -> Page:
    """A lesson without its data: title, lead and one sentence, no figure and no error."""
    figure = {"data": [], "layout": {"annotations": [{
        "text": text(lang, "learn.empty_figure"), "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5,
        "y": 0.5,
    }], "xaxis": {"visible": False}, "yaxis": {"visible": False}}}  # fmt: skip
    blank = plot("empty", figure, text(lang, "learn.empty_figure"), text(lang, "learn.empty_figure"), 12)
    return Page(text(lang, f"{key}.title"), "", "", [], [blank], [], text(lang, "learn.empty"), "")
