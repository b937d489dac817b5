"""Import Gradio in half the time.

At import Gradio writes an editor stub (.pyi) for each of its 76 components: every source file is read, parsed and cut
up again, every time, and nothing at run time uses the result. That is half of the import, on two cores some two
seconds before the first paint. Its own way out is taken for a class without a source file, so for the length of the
import the question "which file is this class from?" has no answer, and only for the module that writes the stubs.
"""

from __future__ import annotations

import importlib
import inspect
import sys


def load():
    """The gradio module, imported without writing stubs if this is the first import."""
    if "gradio" in sys.modules:
        return sys.modules["gradio"]
    asked = inspect.getfile

    def getfile(thing):
        if sys._getframe(1).f_globals.get("__name__") == "gradio.component_meta":
            raise OSError("no stubs wanted")
        return asked(thing)

    inspect.getfile = getfile
    try:
        return importlib.import_module("gradio")
    finally:
        inspect.getfile = asked


gr = load()
