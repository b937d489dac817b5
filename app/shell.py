"""The app: header, three places, session life. `build()` makes the page, `launch()` serves it."""

from __future__ import annotations

import os
from pathlib import Path

from app.swift import Page, gr, yielding  # first: it decides how fast Gradio is imported  # isort: skip

from app import settings as settings_of
from app.components.part import part
from app.machine import chip
from app.models import shared
from app.recordings import find
from app.views import api, compare, learn
from app.views import lab as lab_view
from app.views.lab_memory import Lab
from app.views.lab_run import wire
from app.zero import ZERO

HERE = Path(__file__).parent
TITLE = "6Bit-Diffusion Lab"


def build(settings: settings_of.Settings | None = None) -> gr.Blocks:
    """The whole page. Imports no torch, touches no device, downloads nothing."""
    settings = settings or settings_of.read()
    lab = Lab(settings, find(settings.recordings), shared(settings))
    gr.set_static_paths([lab_view.PLOTLY, *(r.path.as_posix() for r in lab.recordings.values())])
    with Page(title=TITLE, analytics_enabled=False, fill_width=True, delete_cache=(600, 600)) as demo:
        hub = lab_view.hub(lab)
        part("header", **chip(ZERO))
        with gr.Column(elem_id="place-lab", elem_classes="place"):
            lab_view.build(lab)
        with gr.Column(elem_id="place-learn", elem_classes="place away"):
            learn.build(lab.material)
        with gr.Column(elem_id="place-compare", elem_classes="place away"):
            compare.build(material=lab.material)
        wire(lab, hub)
        api.wire(lab, lab.gate)

        def arrive(request: gr.Request) -> gr.HTML:
            key = request.session_hash or ""
            lab.sessions.get(key)
            return gr.HTML(sid=key)

        def leave(request: gr.Request) -> None:
            lab.sessions.close(request.session_hash or "")

        demo.load(arrive, None, hub, api_visibility="private", show_progress="hidden", queue=False)
        demo.unload(leave)
    if ZERO:
        lab.models.get("tiny", "en")       # a ZeroGPU worker is forked from this process and must find it loaded
    demo.lab = lab
    return demo


def theme() -> gr.themes.Base:
    """A quiet theme with local fonts only: nothing is fetched from another host."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.orange, neutral_hue=gr.themes.colors.slate,
        font=["Inter", "system-ui", "-apple-system", "Segoe UI", "Noto Sans", "Noto Sans CJK SC", "sans-serif"],
        font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "DejaVu Sans Mono", "monospace"],
    )


def launch_options() -> dict:
    """What belongs to serving: look, limits of uploads, no foreign footer."""
    return {
        "theme": theme(), "css": (HERE / "static" / "lab.css").read_text(encoding="utf-8"),
        "footer_links": [], "show_error": False, "max_file_size": settings_of.read().upload_bytes,
        "favicon_path": str(HERE / "static" / "favicon.svg"),
    }


def launch(demo: gr.Blocks, **over) -> None:
    """Serve the page until it is stopped; what it opens with is read while the first browser loads its scripts."""
    demo.queue(max_size=None, default_concurrency_limit=None)
    host = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")
    with yielding():
        demo.launch(**{**launch_options(), "server_name": host, "prevent_thread_lock": True, **over})
        demo.lab.prepare()
    if not over.get("prevent_thread_lock"):
        demo.block_thread()


__all__ = ["build", "launch", "launch_options"]
