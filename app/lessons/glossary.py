"""The words at the end of Learn, in one language, and where the paper is."""

from __future__ import annotations

from typing import Any

from app.i18n import catalogue, text

PREFIX, TERM = "glossary.", ".term"
PAPER = "https://arxiv.org/abs/2603.18742"


def glossary(lang: str) -> dict[str, Any]:
    """{"title", "terms": [[term, one line], …] in the page's order, "paper": the link}."""
    names = [key[len(PREFIX):-len(TERM)] for key in catalogue(lang, PREFIX) if key.endswith(TERM)]
    return {
        "title": text(lang, "glossary.title"),
        "terms": [[text(lang, f"{PREFIX}{name}{TERM}"), text(lang, f"{PREFIX}{name}")] for name in names],
        "paper": paper(lang),
    }


def paper(lang: str) -> dict[str, str]:
    """The link to the paper: {"label", "href"}."""
    return {"label": text(lang, "glossary.paper"), "href": PAPER}
