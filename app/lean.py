"""Gradio's import without what this page never uses: on two cores it is most of the wait before the first paint.

* For each of its 76 components Gradio writes an editor stub (.pyi): every source file is read, parsed and cut up
  again, every time. Its own way out is taken for a class without a source file, so for the length of the import the
  question "which file is this class from?" has no answer, and only for the module that writes the stubs.
* Each of 217 events compiles a Jinja template to put one name into its docstring: plain text replacement does it.
* The command line tool, loading models from the hub and the workflow editor bring terminal and inference libraries
  with them for a handful of names: stand-ins hold their places, and go when the import is over, so that a later
  `import gradio.cli` is the real one. httpx does without its own command line where that cannot be imported.
* Three HTTP clients each read the same certificate file: they share one reading.
* The garbage collector walks a quickly growing heap again and again and finds nothing: it rests.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import sys
import types
from contextlib import ExitStack, contextmanager

TOOL = "gradio.cli"
STAND_INS = {
    TOOL: ("deploy",),
    "gradio.external": ("load", "load_chat", "load_openapi"),
    "gradio.workflow": ("Workflow",),
}


def load():
    """The gradio module, imported the short way if this is the first import."""
    if "gradio" in sys.modules:
        return sys.modules["gradio"]
    with ExitStack() as stack:
        for shorter in (_resting_collector, _without_stubs, _plain_docstrings, _without_tools, _one_certificate_file):
            stack.enter_context(shorter())
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


class _Text:
    """What Gradio's docstrings need of a template."""

    def __init__(self, text: str):
        self.text = text

    def render(self, **values: object) -> str:
        text = self.text
        for name, value in values.items():
            text = text.replace("{{ %s }}" % name, str(value))
        return text


@contextmanager
def _plain_docstrings():
    import jinja2

    stock = jinja2.Template
    jinja2.Template = _Text
    try:
        yield
    finally:
        jinja2.Template = stock
        for name in ("gradio.events", "gradio.component_meta"):
            if name in sys.modules:
                sys.modules[name].Template = stock


@contextmanager
def _without_tools():
    held = {name: _stand_in(name, names) for name, names in STAND_INS.items()}
    if "httpx" not in sys.modules:
        held["httpx._main"] = None       # for Python: "there is no such module"
    sys.modules.update(held)
    try:
        yield
    finally:
        for name, module in held.items():
            if sys.modules.get(name, held) is module:
                del sys.modules[name]


def _stand_in(name: str, names: tuple[str, ...]) -> types.ModuleType:
    """A module whose functions import the real one when they are called."""

    def deferred(wanted: str):
        def call(*args, **kwargs):
            return getattr(importlib.import_module(name), wanted)(*args, **kwargs)

        call.__name__ = wanted
        return call

    module = types.ModuleType(name)
    vars(module).update({wanted: deferred(wanted) for wanted in names})
    return module


@contextmanager
def _one_certificate_file():
    import ssl

    stock, read = ssl.create_default_context, {}

    def once(*args, **kwargs):
        key = args, tuple(sorted(kwargs.items()))
        if key not in read:
            read[key] = stock(*args, **kwargs)
        return read[key]

    ssl.create_default_context = once
    try:
        yield
    finally:
        ssl.create_default_context = stock


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
