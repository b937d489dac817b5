"""Gradio's page, served sooner: one web application instead of three, and the first race's pictures decoded early."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path

from app.lean import TOOL, load

gr = load()
EARLY = Path(__file__).parent / "static" / "early.js"
QUICK = 0.0005           # seconds


def _own_head() -> None:
    """A link to the page is shown under the page's title (Gradio's template names itself before it asks for one), and
    `early.js` runs as soon as the page's description is there."""
    import jinja2
    from gradio.routes import templates

    stock, early = templates.env.loader, EARLY.read_text(encoding="utf-8")

    def source(name: str):
        text, path, fresh = stock.get_source(templates.env, name)
        text = text.replace('title" content="Gradio"', 'title" content="{{ config.title }}"')
        text = text.replace("<script data-gradio-mode>", f"<script>{early}</script><script data-gradio-mode>", 1)
        return text, path, fresh

    templates.env.loader = jinja2.FunctionLoader(source)


_own_head()


@contextmanager
def yielding():
    """Let the server's thread have the interpreter ten times as often: for work beside the first browser's requests,
    each of which would else wait its 5 ms several times."""
    was = sys.getswitchinterval()
    sys.setswitchinterval(QUICK)
    try:
        yield
    finally:
        sys.setswitchinterval(was)


class Page(gr.Blocks):
    """`gr.Blocks` whose `app` exists from the launch on."""

    def queue(self, *args, **kwargs):
        with _no_application():
            return super().queue(*args, **kwargs)

    def __exit__(self, *error):
        with _no_application():
            return super().__exit__(*error)

    @property
    def _is_running_in_reload_thread(self) -> bool:
        """Asked of the command line tool only where that is what started us (`gradio app.py`)."""
        reload = sys.modules.get(f"{TOOL}.commands.reload")
        return bool(reload) and getattr(reload.reload_thread, "running_reload", False)


@contextmanager
def _no_application():
    from gradio.routes import App

    made = App.create_app
    App.create_app = staticmethod(lambda *args, **kwargs: None)
    try:
        yield
    finally:
        App.create_app = staticmethod(made)
