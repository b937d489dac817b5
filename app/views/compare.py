"""Compare: one component that shows what was measured. Wiring only; the content is in `app.comparison`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr

from app import comparison
from app.comparison import page, points, sensitivity, speed
from app.comparison.findings import read_settings
from app.components.part import source
from app.figures import palette
from app.i18n import LANGUAGES, plain
from app.lessons.material import Material
from app.views.learn import ASSETS, LESSONS, PLOTLY

HERE = Path(comparison.__file__).parent


def build(assets: Path = ASSETS, material: Callable[[], Material] | None = None) -> gr.HTML:
    """Place the comparison into the Blocks at hand.

    assets holds quality/ and benchmarks/; material gives the recorded run that the layers are held against.
    """

    def open_compare(asked: Any) -> dict[str, Any]:
        wish = asked if isinstance(asked, Mapping) else {}
        found = findings(assets)._replace(run=material().run if material else None)
        return page.page(frontier(assets), benchmarks(assets), wish.get("lang"), wish.get("controls"), found)

    return gr.HTML(
        None, html_template='<div class="versus"></div>', css_template=style(),
        js_on_load=script(), server_functions=[open_compare], apply_default_css=False, elem_id="compare",
        elem_classes=["compare-part"], plotly=PLOTLY,
        dark=palette.DARK,
        trouble={lang: plain(lang, "compare.trouble") for lang in LANGUAGES},
    )  # fmt: skip


@cache
def frontier(assets: Path) -> points.Sweep:
    """The quality sweep, read once."""
    return points.Sweep(points.read(assets / "quality" / "frontier.parquet"))


@cache
def findings(assets: Path) -> page.Findings:
    """The lab's other tables, read once."""
    quality = assets / "quality"
    return page.Findings(
        sensitivity.read(quality / "sensitivity.parquet"), read_settings(quality / "theory_settings.parquet")
    )


@cache
def benchmarks(assets: Path) -> list[speed.Benchmark]:
    """The benchmark tables, read once."""
    return speed.read(assets / "benchmarks")


@cache
def style() -> str:
    """The look: the choices that Learn has too, then this place's own."""
    return (LESSONS / "chips.css").read_text(encoding="utf-8") + (HERE / "compare.css").read_text(encoding="utf-8")


@cache
def script() -> str:
    """The browser's part: bus and theme, then this place with the shared drawing where it belongs."""
    drawing = (LESSONS / "drawing.js").read_text(encoding="utf-8")
    return (
        source("bus.js")
        + source("theme.js")
        + (HERE / "compare.js").read_text(encoding="utf-8").replace("/* DRAWING */", drawing)
    )
