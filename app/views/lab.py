"""The Lab: one page, run → see → tune → run again. Placement and wiring only."""

from __future__ import annotations

from pathlib import Path

import gradio as gr
from plotly import __file__ as plotly_file

from app import look as looks
from app.components.part import part
from app.figures import palette
from app.i18n import LANGUAGES, catalogue
from app.models import scene_of, vocabulary
from app.views.lab_memory import Lab, labelled
from app.views.lab_server import functions

PLOTLY = (Path(plotly_file).parent / "package_data" / "plotly.min.js").as_posix()
PREFIXES = ("lab.", "common.", "group.")


def texts() -> dict[str, dict[str, str]]:
    """The words that the page's scripts need, in every language."""
    return {lang: {k: v for prefix in PREFIXES for k, v in catalogue(lang, prefix).items()} for lang in LANGUAGES}


def start(lab: Lab) -> dict:
    """What the page shows before anyone asks: the first recorded race."""
    source = lab.default()
    if source is None:
        return {}
    session = lab.sessions.get("")
    return {"look": lab.look(session, source, looks.Wish(source.policy), "en"), "race": labelled(source)}


def hub(lab: Lab) -> gr.HTML:
    """The invisible wire between the page and the server; goes first, so that texts are there for the other parts."""
    source = lab.default()
    return part("hub", server_functions=functions(lab), texts=texts(), sid="", event=None, start=start(lab),
                source=source.key if source else "", models=list(lab.settings.models))


def build(lab: Lab) -> None:
    """Place the Lab's parts."""
    source = lab.default()
    words = vocabulary()
    prompt = source.prompt if source else "a large red star bounces in a sunset room"
    scene = scene_of(prompt) or scene_of("a large red star bounces in a sunset room")
    part("sentence", recorded=source is not None, vocabulary={**words, "scene": scene} if words else None, prompt=prompt, model="tiny",
         seed=source.seed if source and source.seed is not None else 7)
    with gr.Row(elem_classes="lab-top", equal_height=False):
        with gr.Column(elem_classes="lab-left", scale=5, min_width=280):
            part("race")
            part("knobs")
        with gr.Column(elem_classes="lab-right", scale=9, min_width=280):
            part("map", plotly=PLOTLY, dark=palette.DARK, ramp=palette.SEQUENTIAL)
            part("net")
            part("explain")
            part("take", recordings=[[r.key, r.title] for r in lab.recordings.values()], models=list(lab.settings.models),
                 model_name="", upload_bytes=lab.settings.upload_bytes)
