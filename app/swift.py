"""Gradio in half the time: its import, and the page's web application.

Three things that the import does and this page never uses, on two cores some three seconds before the first paint:

* for each of its 76 components Gradio writes an editor stub (.pyi): every source file is read, parsed and cut up
  again, every time. Its own way out is taken for a class without a source file, so for the length of the import the
  question "which file is this class from?" has no answer, and only for the module that writes the stubs;
* the command line tool (`gradio`, with its TOML and terminal libraries) is imported for one name, `gradio.deploy`:
  a stand-in holds the place, and goes when the import is over, so that a later `import gradio.cli` is the real one;
* the garbage collector walks a quickly growing heap again and again and finds nothing: it rests.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import sys
import types
from contextlib import contextmanager

TOOL = "gradio.cli"


def load():
    """The gradio module, imported the short way if this is the first import."""
    if "gradio" in sys.modules:
        return sys.modules["gradio"]
    with _without_stubs(), _without_tool(), _resting_collector():
        return importlib.import_module("gradio")


@contextmanager
def _without_stubs():
    asked = inspect.getfile

    def getfile(thing):
        if sys._getframe(1).f_globals.get("__name__") == "gradio.component_meta":
            raise OSError("no stubs wanted")
        return asked(thing)

    inspect.getfile = getfile
    try:
        yield
    finally:
        inspect.getfile = asked


@contextmanager
def _without_tool():
    def deploy(*args, **kwargs):
        return importlib.import_module(TOOL).deploy(*args, **kwargs)

    stand_in = types.ModuleType(TOOL)
    stand_in.deploy = deploy
    sys.modules[TOOL] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(TOOL) is stand_in:
            del sys.modules[TOOL]


@contextmanager
def _resting_collector():
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()          # what an import leaves stays; later collections need not look at it
        if was:
            gc.enable()


gr = load()


def _own_title() -> None:
    """A link to the page is shown under the page's title: Gradio's template names itself before it asks for one."""
    import jinja2
    from gradio.routes import templates

    stock = templates.env.loader

    def source(name: str):
        text, path, fresh = stock.get_source(templates.env, name)
        return text.replace('title" content="Gradio"', 'title" content="{{ config.title }}"'), path, fresh

    templates.env.loader = jinja2.FunctionLoader(source)


_own_title()


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
