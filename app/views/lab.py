"""The Lab: one page, run → see → tune → run again. Placement and wiring only."""

from __future__ import annotations

from pathlib import Path

import gradio as gr
from plotly import __file__ as plotly_file

from app.components.part import part
from app.figures import palette
from app.i18n import LANGUAGES, catalogue
from app.models import scene_of, vocabulary
from app.views.lab_memory import Lab, labelled
from app.views.lab_server import encoded, functions

PLOTLY = (Path(plotly_file).parent / "package_data" / "plotly.min.js").as_posix()
EXAMPLE = "a large red star bounces in a sunset room"
PREFIXES = ("lab.", "common.", "group.")


def texts() -> dict[str, dict[str, str]]:
    """The words that the page's scripts need, in every language."""
    return {lang: {k: v for prefix in PREFIXES for k, v in catalogue(lang, prefix).items()} for lang in LANGUAGES}


def hub(lab: Lab) -> gr.HTML:
    """The invisible wire between the page and the server; goes first, so that texts are there for the other parts."""
    first = lab.first()
    return part("hub", server_functions=[encoded(fn) for fn in functions(lab)], texts=texts(), sid="", event=None,
                race=labelled(first.race(), first.policy) if first else None, source=first.key if first else "",
                models=list(lab.settings.models))


def build(lab: Lab) -> None:
    """Place the Lab's parts."""
    first, words = lab.first(), vocabulary()
    prompt = first.about["prompt"] if first else EXAMPLE
    seed = first.about.get("seed") if first else None
    part("sentence", recorded=first is not None, vocabulary={**words, "scene": scene_of(prompt) or scene_of(EXAMPLE)},
         prompt=prompt, model="tiny", seed=7 if seed is None else seed)
    with gr.Row(elem_classes="lab-top", equal_height=False):
        with gr.Column(elem_classes="lab-left", scale=5, min_width=280):
            part("race")
            part("knobs", also=("chart", "theme", "strip"), dark=palette.DARK)
            part("net")
        with gr.Column(elem_classes="lab-right", scale=9, min_width=280):
            part("headline")
            part("map", also=("chart", "theme", "explain"), dark=palette.DARK, ramp=palette.SEQUENTIAL)
    part(
        "take",
        recordings=[[r.key, r.title, scene_of(r.about["prompt"])] for r in lab.recordings.values()],
        models=list(lab.settings.models),
        model_name="",
        upload_bytes=lab.settings.upload_bytes,
    )
