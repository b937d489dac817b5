"""Learn: one component that shows the lessons. Wiring only; what they say is in `app.lessons`.

The browser asks the server function `open_lesson` directly, past the queue, so that a lesson answers
while a run is going, and nothing of it becomes an API end point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr
from plotly import __file__ as plotly_file

from app.components.part import source
from app.figures import palette
from app.i18n import LANGUAGES, plain
from app.lessons import course
from app.lessons.material import Material, furnish

LESSONS = Path(course.__file__).parent
ASSETS = LESSONS.parent.parent / "assets"
PLOTLY = (Path(plotly_file).parent / "package_data" / "plotly.min.js").as_posix()


def build(material: Callable[[], Material]) -> gr.HTML:
    """Place the lessons into the Blocks at hand. `material` gives what is recorded; it is asked at every lesson."""

    def open_lesson(asked: Any) -> dict[str, Any]:
        wish = asked if isinstance(asked, Mapping) else {}
        ready = furnish(material(), ASSETS)
        return course.open_lesson(ready, wish.get("lesson"), wish.get("lang"), wish.get("controls"))

    return gr.HTML(
        None, html_template='<div class="course"></div>', css_template=_file("chips.css") + _file("stage.css"),
        js_on_load=script(),
        server_functions=[open_lesson], apply_default_css=False, elem_id="learn", elem_classes=["learn-part"],
        count=course.COUNT, plotly=PLOTLY, dark=palette.DARK,
        trouble={lang: plain(lang, "learn.trouble") for lang in LANGUAGES},
    )  # fmt: skip


@cache
def script() -> str:
    """The browser's part: the page's bus and theme, then the stage with the drawing parts in their place."""
    return (
        source("bus.js")
        + source("theme.js")
        + _file("stage.js").replace("/* DRAWING */", _file("drawing.js") + _file("ruler.js"))
    )


@cache
def _file(name: str) -> str:
    return (LESSONS / name).read_text(encoding="utf-8")
